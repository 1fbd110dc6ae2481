//! The trust directory: a member's private key and the roster that it trusts. Only its owner has access.
//!
//! Each file is replaced atomically: a concurrent reader gets the old file or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use zeroize::Zeroizing;

use crate::authority::{Authority, AuthorityError};
use crate::join_token::TokenStore;
use crate::private_file::PrivateDir;
use crate::roster::{Roster, RosterError};

/// Default path of the trust directory. `FARFORK_TRUST` or an option overrides it.
pub const DEFAULT_TRUST_DIR: &str = "/etc/farfork";

/// Maximum length of a file, in bytes: the longest roster.
const FILE_BYTES_MAX: u64 = crate::roster::ROSTER_BYTES_MAX as u64;

/// Why a trust directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory has no identity or no roster.
    #[error(
        "no identity at {}; name another directory with --trust, create a cluster with `farfork cluster init`, \
         or join one with `--join` and `--token-file`",
        path.display()
    )]
    NoIdentity {
        /// The missing file.
        path: PathBuf,
    },
    /// The authority is not in this directory.
    #[error("no cluster authority at {}; run this on the machine where `farfork cluster init` was run", path.display())]
    NoAuthority {
        /// The missing file.
        path: PathBuf,
    },
    /// The directory already belongs to a cluster.
    #[error("{} exists: this machine already belongs to a cluster; choose another directory with --trust, or remove this one", path.display())]
    AlreadyExists {
        /// The file.
        path: PathBuf,
    },
    /// Other users may read or change the file.
    #[error("{} is accessible to other users (mode {mode:03o}); check that they did not use it, then run `chmod go= {}`", path.display(), path.display())]
    TooPermissive {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("{} belongs to user {uid}, who could change it; chown it to the user that farfork runs as", path.display())]
    WrongOwner {
        /// The file.
        path: PathBuf,
        /// User id of the owner.
        uid: u32,
    },
    /// The file cannot be read, written, created or locked.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The contents are invalid.
    #[error("{}: {cause}; restore it from a backup, or join the cluster again", path.display())]
    InvalidContent {
        /// The file.
        path: PathBuf,
        /// The problem.
        cause: String,
    },
}

/// A trust directory.
///
/// ```text
/// TRUST/identity.pem       certificate and key of this member                         0600
/// TRUST/roster             which members the cluster trusts, signed                   0600
/// TRUST/authority.pem      certificate and key of the authority, on one member        0600
/// TRUST/authority.old.pem  the same of the previous authority, during a rotation      0600
/// TRUST/tokens.json        digests of the join tokens, next to the authority          0600
/// TRUST/catalog            where the cluster keeps its members, if in a catalog       0600
/// TRUST/members.json       addresses of other nodes, which the daemon writes
/// TRUST/lock               held while any of these changes
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustDirectory {
    root: PathBuf,
}

/// A lock that is held while files change.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl TrustDirectory {
    /// The directory at `root`, which may not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of the certificate and key of this member.
    pub fn identity_path(&self) -> PathBuf {
        self.root.join("identity.pem")
    }

    /// Path of the roster.
    pub fn roster_path(&self) -> PathBuf {
        self.root.join("roster")
    }

    /// Path of the reference to the catalog.
    pub fn catalog_path(&self) -> PathBuf {
        self.root.join("catalog")
    }

    /// Path of the addresses of other nodes.
    pub fn members_path(&self) -> PathBuf {
        self.root.join("members.json")
    }

    fn authority_path(&self) -> PathBuf {
        self.root.join("authority.pem")
    }

    fn old_authority_path(&self) -> PathBuf {
        self.root.join("authority.old.pem")
    }

    fn tokens_path(&self) -> PathBuf {
        self.root.join("tokens.json")
    }

    /// Whether the directory has an identity.
    pub fn has_identity(&self) -> bool {
        self.identity_path().exists()
    }

    /// Whether the directory has the cluster's authority.
    pub fn holds_authority(&self) -> bool {
        self.authority_path().exists()
    }

    /// Creates the directory, accessible to its owner only.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn create(&self) -> Result<(), DirectoryError> {
        let make = DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        make.map_err(io_error("make", &self.root))?;
        PrivateDir::open(&self.root)?.map_or(Ok(()), |dir| dir.check_unreadable_by_others())
    }

    /// Acquires the lock for changing files; waits for it if necessary.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn lock(&self) -> Result<DirectoryLock, DirectoryError> {
        let path = self.root.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(io_error("open", &path))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| io_error("lock", &path)(errno.into()))?;
        Ok(DirectoryLock { _file: file })
    }

    /// The PEM of this member's certificate and key.
    ///
    /// # Errors
    /// [`DirectoryError::NoIdentity`]; errors of the file.
    pub fn read_identity(&self) -> Result<Zeroizing<String>, DirectoryError> {
        let path = self.identity_path();
        self.read(&path)?
            .map_or_else(|| Err(DirectoryError::NoIdentity { path: path.clone() }), |b| decode_utf8(&path, b))
    }

    /// Installs a certificate with its key.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn write_identity(&self, pem: &str) -> Result<(), DirectoryError> {
        self.write(&self.identity_path(), pem.as_bytes())
    }

    /// The roster in force, decoded and encoded.
    ///
    /// # Errors
    /// [`DirectoryError::NoIdentity`], [`DirectoryError::InvalidContent`]; errors of the file.
    pub fn read_roster(&self) -> Result<(Roster, Vec<u8>), DirectoryError> {
        let path = self.roster_path();
        let bytes = self.read(&path)?.ok_or_else(|| DirectoryError::NoIdentity { path: path.clone() })?.to_vec();
        let content = |error: RosterError| DirectoryError::InvalidContent { path, cause: error.to_string() };
        Ok((Roster::decode_trusted(&bytes).map_err(content)?, bytes))
    }

    /// Installs a roster that was verified or created here.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn write_roster(&self, bytes: &[u8]) -> Result<(), DirectoryError> {
        self.write(&self.roster_path(), bytes)
    }

    /// The authority that issues certificates.
    ///
    /// # Errors
    /// [`DirectoryError::NoAuthority`], [`DirectoryError::InvalidContent`]; errors of the file.
    pub fn read_authority(&self) -> Result<Authority, DirectoryError> {
        let path = self.authority_path();
        self.read_authority_at(&path)?.ok_or(DirectoryError::NoAuthority { path })
    }

    /// The previous authority, during a rotation.
    ///
    /// # Errors
    /// As [`Self::read_authority`].
    pub fn read_old_authority(&self) -> Result<Option<Authority>, DirectoryError> {
        self.read_authority_at(&self.old_authority_path())
    }

    fn read_authority_at(&self, path: &Path) -> Result<Option<Authority>, DirectoryError> {
        let content =
            |error: AuthorityError| DirectoryError::InvalidContent { path: path.into(), cause: error.to_string() };
        let Some(bytes) = self.read(path)? else { return Ok(None) };
        Authority::from_pem(&decode_utf8(path, bytes)?).map(Some).map_err(content)
    }

    /// Installs an authority. The present one, if any, becomes the old authority. There is an issuing authority at all
    /// times.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn write_authority(&self, authority: &Authority) -> Result<(), DirectoryError> {
        if let Some(bytes) = self.read(&self.authority_path())? {
            self.write(&self.old_authority_path(), &bytes)?;
        }
        self.write(&self.authority_path(), authority.to_pem().as_bytes())
    }

    /// Removes the previous authority.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn remove_old_authority(&self) -> Result<(), DirectoryError> {
        let path = self.old_authority_path();
        fs::remove_file(&path).map_err(io_error("remove", &path))
    }

    /// The join tokens.
    ///
    /// # Errors
    /// [`DirectoryError::InvalidContent`]; errors of the file.
    pub fn read_tokens(&self) -> Result<TokenStore, DirectoryError> {
        let path = self.tokens_path();
        let Some(bytes) = self.read(&path)? else { return Ok(TokenStore::default()) };
        serde_json::from_slice(&bytes)
            .map_err(|error| DirectoryError::InvalidContent { path, cause: error.to_string() })
    }

    /// Writes the join tokens.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn write_tokens(&self, tokens: &TokenStore) -> Result<(), DirectoryError> {
        let path = self.tokens_path();
        let bytes = serde_json::to_vec(tokens).map_err(|error| io_error("write", &path)(error.into()))?;
        self.write(&path, &bytes)
    }

    /// The reference to the catalog, whose format `farfork-node` defines.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn read_catalog(&self) -> Result<Option<Zeroizing<Vec<u8>>>, DirectoryError> {
        self.read(&self.catalog_path())
    }

    /// Writes the reference to the catalog.
    ///
    /// # Errors
    /// [`DirectoryError::Io`].
    pub fn write_catalog(&self, bytes: &[u8]) -> Result<(), DirectoryError> {
        self.write(&self.catalog_path(), bytes)
    }

    /// Values that change whenever a file is replaced.
    pub(crate) fn file_stamp(path: &Path) -> Option<(u64, i64, i64, u64)> {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
    }

    /// Reads a file of this directory.
    fn read(&self, path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, DirectoryError> {
        let Some(dir) = PrivateDir::open(&self.root)? else { return Ok(None) };
        dir.read(path.file_name().unwrap_or_default(), FILE_BYTES_MAX)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), DirectoryError> {
        let missing = || io_error("write", path)(io::ErrorKind::NotFound.into());
        let dir = PrivateDir::open(&self.root)?.ok_or_else(missing)?;
        dir.write(path.file_name().unwrap_or_default(), bytes).map_err(io_error("write", path))
    }
}

fn decode_utf8(path: &Path, bytes: Zeroizing<Vec<u8>>) -> Result<Zeroizing<String>, DirectoryError> {
    let text = std::str::from_utf8(&bytes).map(|text| Zeroizing::new(text.to_owned()));
    text.map_err(|error| DirectoryError::InvalidContent { path: path.into(), cause: error.to_string() })
}

/// Converts the I/O error of `action`, for `map_err`.
pub(crate) fn io_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> DirectoryError + 'a {
    move |cause| DirectoryError::Io { action, path: path.into(), cause }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_are_readable_only_by_their_owner() {
        let parent = tempfile::tempdir().unwrap();
        let directory = TrustDirectory::new(parent.path().join("trust"));
        directory.create().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(directory.root()), 0o700);
        directory.write_identity("secret").unwrap();
        assert_eq!(mode(&directory.identity_path()), 0o600);
        assert_eq!(*directory.read_identity().unwrap(), "secret");
        fs::set_permissions(directory.identity_path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(directory.read_identity(), Err(DirectoryError::TooPermissive { mode: 0o640, .. })));
    }

    #[test]
    fn a_missing_file_is_named() {
        let parent = tempfile::tempdir().unwrap();
        let directory = TrustDirectory::new(parent.path());
        assert!(matches!(directory.read_identity(), Err(DirectoryError::NoIdentity { .. })));
        assert!(matches!(directory.read_authority(), Err(DirectoryError::NoAuthority { .. })));
        assert_eq!(directory.read_tokens().unwrap(), TokenStore::default());
    }

    #[test]
    fn a_temporary_file_of_a_crash_is_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let directory = TrustDirectory::new(parent.path());
        fs::write(parent.path().join("identity.pem.new"), "half").unwrap();
        directory.write_identity("whole").unwrap();
        assert_eq!(*directory.read_identity().unwrap(), "whole");
    }
}
