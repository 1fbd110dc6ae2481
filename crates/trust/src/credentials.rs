//! What a member shows and whom it trusts, ready for connections. The files may change at any time (a renewed key, a newer
//! roster): each new connection uses what is in force. Those that stand are asked about now and then, by whoever holds them
//! ([`Credentials::check_standing`]).

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, ServerConfig};

use crate::certificate::Facts;
use crate::directory::{Directory, DirectoryError};
use crate::roster::{Roster, RosterError};
use crate::verify::{Anchors, Peer};
use crate::{Identity, PeerError, tls};

/// Between two looks at the files: a revocation is in force within this time, and a look costs two stat(2).
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Whether what the fabric carries is encrypted once both sides have shown who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// All of it is.
    #[default]
    On,
    /// It goes in clear where both sides say so: for links that nobody else can reach.
    Off,
}

impl Encryption {
    /// As it stands on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A text that is neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is on or off")]
pub struct EncryptionError;

impl FromStr for Encryption {
    type Err = EncryptionError;

    fn from_str(text: &str) -> Result<Self, EncryptionError> {
        let all = [Self::On, Self::Off];
        all.into_iter().find(|encryption| encryption.as_str() == text).ok_or(EncryptionError)
    }
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// What is in it does not fit together.
    #[error("{}: {cause}; join the cluster again", path.display())]
    Content {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        cause: String,
    },
}

/// What is in force.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) own: Peer,
    pub(crate) roster: Roster,
    pub(crate) roster_bytes: Vec<u8>,
    pub(crate) anchors: Arc<Anchors>,
    pub(crate) control_client: Arc<ClientConfig>,
    pub(crate) control_server: Arc<ServerConfig>,
    pub(crate) fabric_client: Arc<ClientConfig>,
    pub(crate) fabric_server: Arc<ServerConfig>,
}

type Versions = [Option<(u64, i64, i64, u64)>; 2];

/// When the files were last looked at, and which they were.
struct Looked {
    at: Instant,
    versions: Versions,
}

struct Shared {
    directory: Directory,
    encryption: Encryption,
    current: RwLock<Arc<Current>>,
    looked: Mutex<Looked>,
}

/// A member's credentials. Clones are the same credentials.
#[derive(Clone)]
pub struct Credentials(Arc<Shared>);

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
    pub fn open(directory: &Directory, encryption: Encryption) -> Result<Self, CredentialsError> {
        let versions = versions(directory);
        let current = RwLock::new(Arc::new(load(directory, encryption)?));
        let looked = Mutex::new(Looked { at: Instant::now(), versions });
        Ok(Self(Arc::new(Shared { directory: directory.clone(), encryption, current, looked })))
    }

    /// Who this member is.
    pub fn identity(&self) -> Identity {
        self.current().own.identity.clone()
    }

    /// Who this member is, as its certificate says.
    pub fn own(&self) -> Peer {
        self.current().own.clone()
    }

    /// Where they come from.
    pub fn directory(&self) -> &Directory {
        &self.0.directory
    }

    /// Whether the fabric is to encrypt.
    pub fn encryption(&self) -> Encryption {
        self.0.encryption
    }

    /// When this member's certificate was made.
    pub fn issued(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.current().own.issued_us)
    }

    /// The roster in force, and as it travels.
    pub fn roster(&self) -> (Roster, Vec<u8>) {
        let current = self.current();
        (current.roster.clone(), current.roster_bytes.clone())
    }

    /// The number of the roster in force.
    pub fn roster_counter(&self) -> u64 {
        self.current().roster.counter()
    }

    /// Whether the authority that issues now also issued this member's certificate.
    pub fn is_of_current_authority(&self) -> bool {
        let directory = &self.0.directory;
        let current = self.current();
        let issuing = current.roster.authorities().first();
        issuing.is_some_and(|authority| tls::is_issued_by(directory, authority).unwrap_or(false))
    }

    /// Puts a roster in force that another member sent, if it counts and is newer.
    ///
    /// # Errors
    /// [`RosterError`] but for one that is not newer; [`DirectoryError`].
    pub fn adopt_roster(&self, bytes: &[u8]) -> Result<bool, CredentialsError> {
        let _lock = self.0.directory.lock()?;
        let (mine, _) = self.0.directory.read_roster()?;
        match mine.check_successor(bytes) {
            Err(RosterError::Stale) => Ok(false),
            Err(error) => Err(content(&self.0.directory.roster(), &error)),
            Ok(_) => {
                self.0.directory.write_roster(bytes)?;
                self.look(true);
                Ok(true)
            }
        }
    }

    /// Whether a peer that came in with this certificate would still be let in: it was not revoked since, it has not
    /// expired, and its authority is still trusted.
    ///
    /// # Errors
    /// It would not.
    pub fn check_standing(&self, shown: &CertificateDer<'_>) -> Result<(), PeerError> {
        self.current().anchors.check(shown, UnixTime::now()).map(drop)
    }

    /// Whether a peer that came in is welcome no longer.
    pub fn is_revoked(&self, peer: &Peer) -> bool {
        self.current().anchors.is_revoked(peer)
    }

    /// Who the peer of a connection is that TLS has let in; `None` where it showed no certificate.
    pub fn peer_of(chain: Option<&[CertificateDer<'_>]>) -> Option<Peer> {
        let facts = Facts::of(chain?.first()?).ok()?;
        Some(Peer { identity: facts.bearer, issued_us: facts.issued_us })
    }

    /// For connections to the control port of a node. Name the node, or its address where any node will do.
    pub fn control_client(&self) -> Arc<ClientConfig> {
        self.current().control_client.clone()
    }

    /// For connections at the control port.
    pub fn control_server(&self) -> Arc<ServerConfig> {
        self.current().control_server.clone()
    }

    /// Looks at the files now, whenever that was done last.
    pub fn reload(&self) {
        self.look(true);
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        self.look(false);
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again if they have changed. What cannot be used changes nothing, and is said once.
    fn look(&self, now: bool) {
        let mut looked = self.0.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if !now && looked.at.elapsed() < LOOK_INTERVAL {
            return;
        }
        looked.at = Instant::now();
        let versions = versions(&self.0.directory);
        if versions == looked.versions {
            return;
        }
        looked.versions = versions;
        match load(&self.0.directory, self.0.encryption) {
            Ok(loaded) => {
                tracing::info!(roster = loaded.roster.counter(), "new credentials are in force");
                *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
            }
            Err(error) => {
                tracing::error!(%error, "the trust directory has changed and cannot be used: the credentials stay")
            }
        }
    }
}

fn versions(directory: &Directory) -> Versions {
    [Directory::version(&directory.identity()), Directory::version(&directory.roster())]
}

fn load(directory: &Directory, encryption: Encryption) -> Result<Current, CredentialsError> {
    let (roster, roster_bytes) = directory.read_roster()?;
    let pem = directory.read_identity()?;
    let at = directory.identity();
    let own = tls::Own::read(&pem, &roster).map_err(|cause| content(&at, &cause))?;
    let anchors = Anchors::new(&roster).map_err(|error| content(&directory.roster(), &error))?;
    let anchors = Arc::new(anchors);
    let configs = tls::Configs::new(&own, &anchors, encryption).map_err(|error| content(&at, &error))?;
    let tls::Configs { control_client, control_server, fabric_client, fabric_server } = configs;
    let own = own.peer;
    Ok(Current { own, roster, roster_bytes, anchors, control_client, control_server, fabric_client, fabric_server })
}

fn content(path: &Path, cause: &dyn fmt::Display) -> CredentialsError {
    CredentialsError::Content { path: path.into(), cause: cause.to_string() }
}
