//! Why a peer is not let in, in words: a TLS alert carries a number only.

use std::cell::Cell;
use std::io;

use farfork_wire::NodeName;
use rustls::{AlertDescription, CertificateError, InvalidMessage};

use crate::{Identity, Role};

/// Why a peer is not who it should be, or this side is not for the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Another authority signed its certificate, or none.
    #[error(
        "the certificate of {bearer} is not signed by an authority of this cluster (`{cluster}`); \
         let it join again with a token of this cluster"
    )]
    UnknownAuthority {
        /// Who it says it is.
        bearer: String,
        /// The cluster of this side.
        cluster: NodeName,
    },
    /// Its certificate is no longer good.
    #[error("the certificate of {bearer} has expired; let it join again, or issue a new one (and compare the clocks)")]
    Expired {
        /// Who it is.
        bearer: Identity,
    },
    /// Its certificate is not good yet.
    #[error("the certificate of {bearer} is not good yet; compare the clocks of both machines")]
    NotYetValid {
        /// Who it is.
        bearer: Identity,
    },
    /// It was revoked.
    #[error("{bearer} was revoked; if it is to come back, let it join again with a new token")]
    Revoked {
        /// Who it is.
        bearer: Identity,
    },
    /// It is of the cluster, but of the wrong kind.
    #[error("{bearer} has the role {}, and this takes {needed}", bearer.role)]
    WrongRole {
        /// Who it is.
        bearer: Identity,
        /// The role that is needed.
        needed: Role,
    },
    /// It is a node, but another one.
    #[error("{bearer} answers where node `{expected}` should; see `farfork nodes`, and who has that address")]
    WrongNode {
        /// Who it is.
        bearer: Identity,
        /// Who it should be.
        expected: String,
    },
    /// It is of another cluster.
    #[error("{bearer} is of another cluster than `{cluster}`")]
    WrongCluster {
        /// Who it is.
        bearer: Identity,
        /// The cluster of this side.
        cluster: NodeName,
    },
    /// Its certificate is not of farfork's form.
    #[error("its certificate is of no use: {0}")]
    MalformedCertificate(String),
    /// It showed none.
    #[error("it showed no certificate; only members of the cluster may come in here")]
    NoCertificate,
    /// A joining node found another authority than its token names.
    #[error("no node of the cluster that the join token is for; compare the address with the token's origin")]
    WrongPin,
    /// It does not speak TLS.
    #[error("it does not speak TLS; it is of another version, was started with `--insecure`, or is something else")]
    Plaintext,
    /// It refuses this side.
    #[error("it refuses this node's certificate: {0}")]
    RefusedByPeer(&'static str),
    /// It went away within the handshake.
    #[error("it closed the connection before both sides had shown who they are")]
    Closed,
    /// It does not keep to the protocol.
    #[error("the handshake failed: {0}")]
    Protocol(String),
}

impl PeerError {
    /// What a stream of TLS that failed says of its peer; `None` where something else failed. To be asked at once, by the
    /// thread that met the error.
    pub fn from_io_error(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?;
        let known = inner.downcast_ref::<Self>().cloned();
        known.or_else(|| inner.downcast_ref::<rustls::Error>().map(from_tls_error))
    }
}

thread_local! {
    /// What the verifier of this thread found last. A verifier runs within the call that processes the peer's message,
    /// and whoever made that call asks at once: in between, the thread does nothing else.
    static FOUND: Cell<Option<PeerError>> = const { Cell::new(None) };
}

/// What a verifier answers: the number that tells the peer, and beside it the words for this side.
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

/// What a failure of TLS means, in words. To be asked by the thread that met it, before it does anything else with TLS.
pub(crate) fn from_tls_error(error: &rustls::Error) -> PeerError {
    match (error, FOUND.take()) {
        (rustls::Error::InvalidCertificate(_), Some(found)) => found,
        (rustls::Error::NoCertificatesPresented, _) => PeerError::NoCertificate,
        (rustls::Error::AlertReceived(alert), _) => from_alert(*alert),
        (rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), _) => PeerError::Plaintext,
        (other, _) => PeerError::Protocol(other.to_string()),
    }
}

/// What a peer's alert means.
fn from_alert(alert: AlertDescription) -> PeerError {
    match alert {
        AlertDescription::UnknownCA => {
            PeerError::RefusedByPeer("no authority of its cluster signed it; join that cluster with a token of it")
        }
        AlertDescription::CertificateExpired => {
            PeerError::RefusedByPeer("it has expired, or is not good yet; join again, and compare the clocks")
        }
        AlertDescription::CertificateRevoked => PeerError::RefusedByPeer("it was revoked; join again with a new token"),
        AlertDescription::AccessDenied => PeerError::RefusedByPeer("its role or cluster may not come in there"),
        AlertDescription::CertificateRequired => PeerError::RefusedByPeer("none was shown"),
        AlertDescription::BadCertificate => PeerError::RefusedByPeer("it is of no use there"),
        AlertDescription::NoApplicationProtocol => PeerError::Protocol(
            "the two sides have no protocol in common (other versions, or the wrong port)".to_owned(),
        ),
        other => PeerError::Protocol(format!("the peer ended it: {other:?}")),
    }
}
