//! A member's credentials: its certificate and the roster, ready for connections. The files may change at any time (a
//! renewed key, a newer roster). New connections use the changed files after a second at most. The holder of an open
//! connection checks it again from time to time ([`Credentials::check_certificate`]).

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, ServerConfig};

use crate::certificate::CertificateFields;
use crate::roster::{Roster, RosterError};
use crate::trust_directory::{DirectoryError, TrustDirectory};
use crate::verify::{AuthenticatedPeer, TrustAnchors};
use crate::{Identity, PeerError, tls};

/// Interval between two checks for changed files. A revocation takes effect for new connections within this time. A check
/// costs two stat(2).
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Whether the fabric encrypts its data after both sides have authenticated each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// All data is encrypted.
    #[default]
    On,
    /// Data is sent in clear if both sides agree. For links that no other party can access.
    Off,
}

impl Encryption {
    /// The value on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// The text is neither `on` nor `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value must be `on` or `off`")]
pub struct EncryptionError;

impl FromStr for Encryption {
    type Err = EncryptionError;

    fn from_str(text: &str) -> Result<Self, EncryptionError> {
        let all = [Self::On, Self::Off];
        all.into_iter().find(|encryption| encryption.as_str() == text).ok_or(EncryptionError)
    }
}

/// Why credentials cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The trust directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A file of the trust directory is invalid.
    #[error("{}: {cause}; join the cluster again", path.display())]
    InvalidContent {
        /// The file.
        path: std::path::PathBuf,
        /// The problem.
        cause: String,
    },
    /// A roster from another member is invalid.
    #[error("the received roster is not valid: {0}")]
    ReceivedRoster(RosterError),
}

/// The credentials in force.
#[derive(Debug)]
pub(crate) struct CredentialSnapshot {
    pub(crate) own_peer: AuthenticatedPeer,
    pub(crate) roster: Roster,
    pub(crate) roster_bytes: Vec<u8>,
    pub(crate) anchors: Arc<TrustAnchors>,
    pub(crate) control_client: Arc<ClientConfig>,
    pub(crate) control_server: Arc<ServerConfig>,
    pub(crate) fabric_client: Arc<ClientConfig>,
    pub(crate) fabric_server: Arc<ServerConfig>,
}

type FileStamps = [Option<(u64, i64, i64, u64)>; 2];

/// The time of the last check for changed files, and the stamps that the files had then.
struct LastFileCheck {
    checked_at: Instant,
    stamps: FileStamps,
}

struct CredentialState {
    directory: TrustDirectory,
    encryption: Encryption,
    snapshot: RwLock<Arc<CredentialSnapshot>>,
    last_check: Mutex<LastFileCheck>,
}

/// A member's credentials. Clones share their state.
#[derive(Clone)]
pub struct Credentials(Arc<CredentialState>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.identity())
    }
}

impl Credentials {
    /// Reads a trust directory.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn open(directory: &TrustDirectory, encryption: Encryption) -> Result<Self, CredentialsError> {
        let versions = read_file_stamps(directory);
        let current = RwLock::new(Arc::new(load_snapshot(directory, encryption)?));
        let last_check = Mutex::new(LastFileCheck { checked_at: Instant::now(), stamps: versions });
        Ok(Self(Arc::new(CredentialState { directory: directory.clone(), encryption, snapshot: current, last_check })))
    }

    /// The identity of this member.
    pub fn identity(&self) -> Identity {
        self.snapshot().own_peer.identity.clone()
    }

    /// This member as its peers see it: the identity, and the time of issue of its certificate.
    pub fn own_peer(&self) -> AuthenticatedPeer {
        self.snapshot().own_peer.clone()
    }

    /// The trust directory from which the credentials are loaded.
    pub fn directory(&self) -> &TrustDirectory {
        &self.0.directory
    }

    /// Whether the fabric encrypts.
    pub fn encryption(&self) -> Encryption {
        self.0.encryption
    }

    /// When this member's certificate was issued.
    pub fn issued_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.snapshot().own_peer.issued_us)
    }

    /// The roster in force, decoded and encoded.
    pub fn roster(&self) -> (Roster, Vec<u8>) {
        let current = self.snapshot();
        (current.roster.clone(), current.roster_bytes.clone())
    }

    /// The number of the roster in force.
    pub fn roster_counter(&self) -> u64 {
        self.snapshot().roster.counter()
    }

    /// Whether this member's certificate was issued by the authority that issues certificates now.
    pub fn is_issued_by_current_authority(&self) -> bool {
        let directory = &self.0.directory;
        let current = self.snapshot();
        let issuing = current.roster.authorities().first();
        issuing.is_some_and(|authority| tls::is_issued_by(directory, authority).unwrap_or(false))
    }

    /// Installs a roster that another member sent, if it is valid and newer. Returns whether it was newer.
    ///
    /// # Errors
    /// [`CredentialsError`]. An older roster is not an error.
    pub fn install_roster(&self, bytes: &[u8]) -> Result<bool, CredentialsError> {
        let _lock = self.0.directory.lock()?;
        let (current, _) = self.0.directory.read_roster()?;
        match current.verify_successor(bytes) {
            Err(RosterError::Stale) => Ok(false),
            Err(error) => Err(CredentialsError::ReceivedRoster(error)),
            Ok(_) => {
                self.0.directory.write_roster(bytes)?;
                self.reload_if_changed(true);
                Ok(true)
            }
        }
    }

    /// Checks whether a peer with this certificate would still be accepted: it was not revoked, it has not expired, and its
    /// authority is still trusted.
    ///
    /// # Errors
    /// Why it would be refused.
    pub fn check_certificate(&self, shown: &CertificateDer<'_>) -> Result<(), PeerError> {
        self.snapshot().anchors.verify(shown, UnixTime::now()).map(drop)
    }

    /// Whether a peer's certificate was revoked.
    pub fn is_revoked(&self, peer: &AuthenticatedPeer) -> bool {
        self.snapshot().anchors.is_revoked(peer)
    }

    /// The peer of a connection that TLS accepted; `None` if it has no certificate.
    pub fn peer_from_chain(chain: Option<&[CertificateDer<'_>]>) -> Option<AuthenticatedPeer> {
        let facts = CertificateFields::parse(chain?.first()?).ok()?;
        Some(AuthenticatedPeer { identity: facts.subject, issued_us: facts.issued_us })
    }

    /// The TLS configuration for connections to a node's control port. If the server name is a node's name, only that node is
    /// accepted. If it is an IP address, any node is.
    pub fn control_client_config(&self) -> Arc<ClientConfig> {
        self.snapshot().control_client.clone()
    }

    /// The TLS configuration for connections that arrive at the control port.
    pub fn control_server_config(&self) -> Arc<ServerConfig> {
        self.snapshot().control_server.clone()
    }

    /// Checks for changed files now.
    pub fn reload(&self) {
        self.reload_if_changed(true);
    }

    pub(crate) fn snapshot(&self) -> Arc<CredentialSnapshot> {
        self.reload_if_changed(false);
        self.0.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again if they have changed. If they cannot be used, the old credentials stay in force, and the error
    /// is logged once.
    fn reload_if_changed(&self, now: bool) {
        let mut last_check = self.0.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        if !now && last_check.checked_at.elapsed() < RELOAD_INTERVAL {
            return;
        }
        last_check.checked_at = Instant::now();
        let versions = read_file_stamps(&self.0.directory);
        if versions == last_check.stamps {
            return;
        }
        last_check.stamps = versions;
        match load_snapshot(&self.0.directory, self.0.encryption) {
            Ok(loaded) => {
                tracing::info!(roster = loaded.roster.counter(), "new credentials are in force");
                *self.0.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
            }
            Err(error) => {
                tracing::error!(%error, "cannot load the changed trust directory; the old credentials stay in force")
            }
        }
    }
}

fn read_file_stamps(directory: &TrustDirectory) -> FileStamps {
    [TrustDirectory::file_stamp(&directory.identity_path()), TrustDirectory::file_stamp(&directory.roster_path())]
}

fn load_snapshot(directory: &TrustDirectory, encryption: Encryption) -> Result<CredentialSnapshot, CredentialsError> {
    let (roster, roster_bytes) = directory.read_roster()?;
    let pem = directory.read_identity()?;
    let at = directory.identity_path();
    let own = tls::OwnCertificate::from_pem(&pem, &roster).map_err(|cause| content_error(&at, &cause))?;
    let anchors = TrustAnchors::new(&roster).map_err(|error| content_error(&directory.roster_path(), &error))?;
    let anchors = Arc::new(anchors);
    let configs = tls::TlsConfigs::new(&own, &anchors, encryption).map_err(|error| content_error(&at, &error))?;
    let tls::TlsConfigs { control_client, control_server, fabric_client, fabric_server } = configs;
    let own = own.peer;
    Ok(CredentialSnapshot {
        own_peer: own,
        roster,
        roster_bytes,
        anchors,
        control_client,
        control_server,
        fabric_client,
        fabric_server,
    })
}

fn content_error(path: &Path, cause: &dyn fmt::Display) -> CredentialsError {
    CredentialsError::InvalidContent { path: path.into(), cause: cause.to_string() }
}
