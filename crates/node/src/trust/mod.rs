//! How a node comes by its place in a cluster and keeps it: its own certificate, whom it trusts, and, where the cluster's
//! authority is held, what others get from it. Certificates themselves are the business of `farfork-trust`.
//!
//! `establish` is the start, `keep` what goes on while the node runs, `service` what others ask.

mod establish;
mod followed;
mod given;
mod keep;
mod service;
mod turns;

use farfork_trust::Credentials;

use crate::gate::Proof;

pub(crate) use establish::{EstablishError, establish};
pub(crate) use followed::Followed;
pub(crate) use given::Given;
pub(crate) use keep::{keep, learn};
pub(crate) use service::ClusterService;

/// Whom a node trusts.
#[derive(Debug, Clone)]
pub(crate) enum Security {
    /// Members of its cluster.
    Members(Credentials),
    /// Whoever reaches it: it was told so.
    Anybody,
}

impl Security {
    /// Its credentials; nothing where everybody is trusted.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        match self {
            Self::Members(credentials) => Some(credentials),
            Self::Anybody => None,
        }
    }

    /// What it shows to other nodes.
    pub(crate) fn proof(&self) -> Proof {
        self.credentials().map_or(Proof::Nothing, |credentials| Proof::Member(credentials.clone()))
    }
}
