//! A node's membership in its cluster: its own certificate, the peers that it trusts, and, if it holds the authority,
//! the certificates that it issues. `farfork_trust` handles the certificates themselves.
//!
//! `enrollment` runs at the start, `renewal` while the node runs, and `service` handles requests of other nodes.

mod applied_roster;
mod enrollment;
mod join_limiter;
mod name_reservations;
mod renewal;
mod service;

use farfork_trust::Credentials;

use farfork_api::control_connection::TlsMode;

pub(crate) use applied_roster::AppliedRoster;
pub(crate) use enrollment::load_or_enroll;
pub use enrollment::{EnrollmentError, join_cluster};
pub(crate) use name_reservations::NameReservations;
pub(crate) use renewal::{fetch_roster, run_renewal};
pub(crate) use service::ClusterService;

/// The peers that a node trusts.
#[derive(Debug, Clone)]
pub(crate) enum Security {
    /// Members of its cluster.
    Members(Credentials),
    /// All peers that reach the node (`--insecure`).
    Insecure,
}

impl Security {
    /// Returns the node's credentials; `None` if it trusts all peers.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        match self {
            Self::Members(credentials) => Some(credentials),
            Self::Insecure => None,
        }
    }

    /// Returns the TLS mode of connections to other nodes.
    pub(crate) fn tls_mode(&self) -> TlsMode {
        self.credentials().map_or(TlsMode::Plaintext, |credentials| TlsMode::Mutual(credentials.clone()))
    }
}
