//! The members of the cluster and its roster in the catalog, if `farfork cluster init --catalog` was used. A node whose run
//! directory is empty, as after a reboot, finds the other nodes there, and learns which keys were revoked meanwhile.
//!
//! Heartbeats do not use the catalog: a running node only keeps its own records current.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farfork_cluster::catalog::{
    Catalog, CatalogError, CatalogLocation, CatalogReference, MemberRecord, RosterRecord, claim_catalog,
};
use farfork_trust::{AuthenticatedPeer, Credentials, CredentialsError, Identity, RosterError};
use farfork_wire::NodeName;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::peers::Peers;

/// Interval between two reads of the catalog. A new member is known by heartbeats long before.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between checks for a new roster or certificate of this node, which are written at once.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why the records of the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
enum MemberCatalogError {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(
        "{place}: {cause}: delete it, and a node that runs writes its roster again; if only this node refuses it, join the cluster again"
    )]
    Roster { place: String, cause: RosterError },
}

/// The part of the catalog about the cluster itself.
#[derive(Clone, Debug)]
pub(crate) struct MemberCatalog {
    catalog: Arc<dyn Catalog>,
    location: CatalogLocation,
    /// The identity of the cluster.
    cluster: String,
    credentials: Credentials,
    peers: Arc<Peers>,
    addresses: watch::Sender<Vec<SocketAddr>>,
}

impl MemberCatalog {
    /// Opens the catalog of members that the trust directory names, and reads it. If it cannot be read, it is read again later.
    pub(crate) async fn open(
        peers: &Arc<Peers>,
        reference: CatalogReference,
        addresses: watch::Sender<Vec<SocketAddr>>,
    ) -> Option<Self> {
        let (location, cluster) = (reference.location?, reference.cluster);
        let credentials = peers.security().credentials()?.clone();
        let catalog = match location.open() {
            Ok(catalog) => catalog,
            Err(error) => {
                tracing::error!(%error, "the members of the cluster are not read from the catalog");
                return None;
            }
        };
        let opened = Self { catalog, location, cluster, credentials, peers: peers.clone(), addresses };
        opened.synchronize().await;
        Some(opened)
    }

    /// Keeps the records current until the daemon stops.
    pub(crate) async fn run(self) {
        let state = || (self.credentials.roster_counter(), self.credentials.own_peer().issued_us);
        let (mut written, mut read_at) = (state(), Instant::now());
        let mut has_failed = false;
        loop {
            sleep(CHECK_INTERVAL).await;
            if read_at.elapsed() < READ_INTERVAL && (state() == written || has_failed) {
                continue;
            }
            (written, read_at) = (state(), Instant::now());
            has_failed = !self.synchronize().await;
        }
    }

    /// Exchanges records with the catalog on a thread that may block. The heartbeats apply a newer roster. Returns whether that
    /// has succeeded.
    async fn synchronize(&self) -> bool {
        let work = self.clone();
        let exchanged = tokio::task::spawn_blocking(move || work.exchange_records()).await;
        match exchanged {
            Ok(Ok(addresses)) => {
                self.addresses.send_if_modified(|known| {
                    let is_new = *known != addresses;
                    *known = addresses;
                    is_new
                });
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(catalog = %self.location, %error, "the members of the cluster are not read from the catalog, and are tried again");
                false
            }
            // A panic is in the log.
            Err(_) => false,
        }
    }

    /// Installs a newer roster, writes the records of this node, and removes those of revoked nodes. Returns the addresses of
    /// the other nodes.
    fn exchange_records(&self) -> Result<Vec<SocketAddr>, MemberCatalogError> {
        claim_catalog(&*self.catalog, &self.cluster)?;
        let records = self.catalog.read_cluster()?;
        if let Some(roster) = &records.roster {
            // Before any address is used: a revoked node must not be trusted.
            self.credentials.install_roster(&roster.bytes).map_err(|error| self.roster_error(error))?;
        }
        self.write_roster(records.roster.as_ref())?;
        let own = self.peers.membership().own_member().clone();
        let own_peer = self.credentials.own_peer();
        let record = MemberRecord { address: own.address, issued_us: own_peer.issued_us };
        if records.members.get(&own.name) != Some(&record) && !self.credentials.is_revoked(&own_peer) {
            self.catalog.write_member(&own.name, &record)?;
        }
        let mut addresses = Vec::new();
        for (name, record) in records.members.iter().filter(|(name, _)| **name != own.name) {
            if self.credentials.is_revoked(&self.peer_of(name, record)) {
                self.catalog.remove_member(name, record)?;
            } else {
                addresses.push(record.address);
            }
        }
        Ok(addresses)
    }

    /// A roster that is not valid is the fault of the catalog, not of a file of this node.
    fn roster_error(&self, error: CredentialsError) -> MemberCatalogError {
        match error {
            CredentialsError::ReceivedRoster(cause) => {
                MemberCatalogError::Roster { place: self.location.roster_place(), cause }
            }
            error => error.into(),
        }
    }

    /// Writes this node's roster, if the catalog has another one. That one is older, because a newer one was installed before.
    fn write_roster(&self, present: Option<&RosterRecord>) -> Result<(), CatalogError> {
        let (_, bytes) = self.credentials.roster();
        if present.is_some_and(|present| present.bytes == bytes) {
            return Ok(());
        }
        // If another node has written one meanwhile, this node reads it next time.
        let revision = present.map_or(0, |present| present.revision);
        self.catalog.write_roster(&RosterRecord { revision, bytes }).map(drop)
    }

    fn peer_of(&self, name: &NodeName, record: &MemberRecord) -> AuthenticatedPeer {
        let identity = Identity::for_node(&self.credentials.identity().cluster, name);
        AuthenticatedPeer { identity, issued_us: record.issued_us }
    }
}
