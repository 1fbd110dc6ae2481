//! The records of the cluster itself: its members, and the roster of trusted authorities and revoked keys. A node that has
//! lost its run directory finds the other nodes by these records.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

use super::{Catalog, CatalogError};

/// The records of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRecords {
    /// Identifies the cluster whose records these are; none if no cluster has used the catalog yet.
    pub cluster: Option<String>,
    /// The nodes of the cluster.
    pub members: BTreeMap<NodeName, MemberRecord>,
    /// The roster; none if no node has written it yet.
    pub roster: Option<RosterRecord>,
}

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The address of its control port.
    pub address: SocketAddr,
    /// The time when its certificate was issued, in microseconds since 1970. A revocation concerns only earlier certificates.
    pub issued_us: u64,
}

/// A roster, as `farfork_trust` encodes and signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterRecord {
    /// Rises with each change; 0: not written yet.
    pub revision: u64,
    /// The encoded roster.
    pub bytes: Vec<u8>,
}

/// Reserves the catalog for a cluster. Does nothing if it is reserved for this one already.
///
/// # Errors
/// `OtherCluster` if it has the records of another cluster; otherwise as `Catalog::read`.
pub fn claim_catalog(catalog: &dyn Catalog, cluster: &str) -> Result<(), CatalogError> {
    let present = match catalog.read_cluster()?.cluster {
        Some(present) => present,
        None => catalog.write_cluster(cluster)?,
    };
    if present == cluster { Ok(()) } else { Err(CatalogError::OtherCluster { theirs: present }) }
}
