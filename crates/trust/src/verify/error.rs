//! Why a peer is refused, as text. A TLS alert has only a number.

use std::cell::Cell;
use std::io;

use farfork_wire::NodeName;
use rustls::{AlertDescription, CertificateError, InvalidMessage};

use crate::{Identity, Role};

/// Why one side of a connection refuses the other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No authority of this cluster signed the certificate.
    #[error(
        "the certificate of {subject} is not signed by an authority of this cluster (`{cluster}`); \
         let it join again with a token of this cluster"
    )]
    UnknownAuthority {
        /// The identity in the certificate.
        subject: String,
        /// The cluster of this side.
        cluster: NodeName,
    },
    /// The certificate has expired.
    #[error("the certificate of {subject} has expired; let it join again, or issue a new one (and compare the clocks)")]
    Expired {
        /// The peer.
        subject: Identity,
    },
    /// The certificate is not valid yet.
    #[error("the certificate of {subject} is not valid yet; compare the clocks of both machines")]
    NotYetValid {
        /// The peer.
        subject: Identity,
    },
    /// The certificate was revoked.
    #[error("{subject} was revoked; to readmit it, {}", subject.role.readmission_step())]
    Revoked {
        /// The peer.
        subject: Identity,
    },
    /// The peer is a member of the cluster, but has the wrong role.
    #[error("{subject} has the role {}, but {needed} is required", subject.role)]
    WrongRole {
        /// The peer.
        subject: Identity,
        /// The required role.
        needed: Role,
    },
    /// The peer is another node than expected.
    #[error("{subject} answered instead of node `{expected}`; compare the address with `farfork nodes`")]
    WrongNode {
        /// The peer.
        subject: Identity,
        /// The expected node.
        expected: String,
    },
    /// The peer is a member of another cluster.
    #[error("{subject} does not belong to cluster `{cluster}`")]
    WrongCluster {
        /// The peer.
        subject: Identity,
        /// The cluster of this side.
        cluster: NodeName,
    },
    /// The certificate does not have farfork's form.
    #[error("its certificate is invalid: {0}")]
    MalformedCertificate(String),
    /// The peer showed no certificate.
    #[error("it showed no certificate; only members of the cluster may connect")]
    NoCertificate,
    /// The peer has another authority than the join token pins.
    #[error("it is not a node of the join token's cluster; check the address and the token")]
    WrongPin,
    /// The peer does not use TLS.
    #[error("it does not speak TLS; it runs another version, was started with `--insecure`, or is not farfork")]
    Plaintext,
    /// The peer refuses this side.
    #[error("it refuses this node's certificate: {0}")]
    RefusedByPeer(&'static str),
    /// The peer closed the connection during the handshake.
    #[error("it closed the connection during the handshake")]
    Closed,
    /// The peer violates the protocol.
    #[error("the handshake failed: {0}")]
    Protocol(String),
}

impl PeerError {
    /// The reason for a TLS stream's failure; `None` if something else failed. The thread that got the error must call this
    /// before it uses TLS again.
    pub fn from_io_error(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?;
        let known = inner.downcast_ref::<Self>().cloned();
        known.or_else(|| inner.downcast_ref::<rustls::Error>().map(from_tls_error))
    }
}

thread_local! {
    /// The last error of a verifier in this thread. A verifier runs within the call that processes the peer's message. The
    /// caller reads the error right after that call, with no other use of TLS in between.
    static FOUND: Cell<Option<PeerError>> = const { Cell::new(None) };
}

/// Returns the error that rustls sends to the peer as an alert, and keeps the full error for this side.
pub(crate) fn to_tls_error(error: PeerError) -> rustls::Error {
    let number = match &error {
        PeerError::UnknownAuthority { .. } | PeerError::WrongPin => CertificateError::UnknownIssuer,
        PeerError::Expired { .. } => CertificateError::Expired,
        PeerError::NotYetValid { .. } => CertificateError::NotValidYet,
        PeerError::Revoked { .. } => CertificateError::Revoked,
        PeerError::WrongRole { .. } | PeerError::WrongCluster { .. } => {
            CertificateError::ApplicationVerificationFailure
        }
        PeerError::WrongNode { .. } => CertificateError::NotValidForName,
        _ => CertificateError::BadEncoding,
    };
    FOUND.set(Some(error));
    rustls::Error::InvalidCertificate(number)
}

/// The meaning of a TLS error. The thread that got the error must call this before it uses TLS again.
pub(crate) fn from_tls_error(error: &rustls::Error) -> PeerError {
    match (error, FOUND.take()) {
        (rustls::Error::InvalidCertificate(_), Some(found)) => found,
        (rustls::Error::NoCertificatesPresented, _) => PeerError::NoCertificate,
        (rustls::Error::AlertReceived(alert), _) => from_alert(*alert),
        (rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), _) => PeerError::Plaintext,
        (other, _) => PeerError::Protocol(other.to_string()),
    }
}

/// The meaning of an alert from the peer.
fn from_alert(alert: AlertDescription) -> PeerError {
    match alert {
        AlertDescription::UnknownCA => {
            PeerError::RefusedByPeer("no authority of its cluster signed it; join that cluster with one of its tokens")
        }
        AlertDescription::CertificateExpired => {
            PeerError::RefusedByPeer("it has expired or is not valid yet; compare the clocks, and join again")
        }
        AlertDescription::CertificateRevoked => PeerError::RefusedByPeer(
            "it was revoked; a node joins again with a new token, and a client needs a new certificate of \
             `farfork cluster issue`",
        ),
        AlertDescription::AccessDenied => PeerError::RefusedByPeer("its role or cluster is not accepted there"),
        AlertDescription::CertificateRequired => PeerError::RefusedByPeer("none was shown"),
        AlertDescription::BadCertificate => PeerError::RefusedByPeer("it is invalid there"),
        AlertDescription::NoApplicationProtocol => PeerError::Protocol(
            "the two sides have no protocol in common (other versions, or the wrong port)".to_owned(),
        ),
        other => PeerError::Protocol(format!("the peer sent the alert {other:?}")),
    }
}
