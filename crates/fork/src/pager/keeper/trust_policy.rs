//! `TrustPolicy`: which nodes a pager trusts, and which credentials it presents. The pager outlives its daemon, and the
//! next daemon may write another policy to a file in the run directory. Each pager reads the file when it starts, and
//! prefers it to the policy with which its keeper was started.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use farfork_trust::{Credentials, Encryption, TrustDirectory};
use serde::{Deserialize, Serialize};

/// Name of the file in the run directory. It contains `on` or `off` (encryption), a space, and the trust directory; or
/// only `anybody`.
const TRUST_POLICY_FILE: &str = "pager.trust";

/// The word in the file for [`TrustPolicy::Unauthenticated`].
const UNAUTHENTICATED_WORD: &str = "anybody";

/// Which peers a pager trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrustPolicy {
    /// Any peer to which it connects; no peer is authenticated.
    Unauthenticated,
    /// The members of a cluster.
    ClusterMembers {
        /// The trust directory.
        directory: PathBuf,
        /// Whether connections are encrypted.
        is_encrypted: bool,
    },
}

impl TrustPolicy {
    /// Returns the policy for these credentials, or [`Self::Unauthenticated`] without credentials.
    pub fn from_credentials(credentials: Option<&Credentials>) -> Self {
        credentials.map_or(Self::Unauthenticated, |credentials| Self::ClusterMembers {
            directory: credentials.directory().root().to_owned(),
            is_encrypted: credentials.encryption() == Encryption::On,
        })
    }

    /// Opens the credentials.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub(in crate::pager) fn open_credentials(&self) -> io::Result<Option<Credentials>> {
        let Self::ClusterMembers { directory, is_encrypted } = self else { return Ok(None) };
        let encryption = if *is_encrypted { Encryption::On } else { Encryption::Off };
        Credentials::open(&TrustDirectory::new(directory), encryption).map(Some).map_err(io::Error::other)
    }

    /// Reads the policy from the run directory. `None` if there is no file, so that the keeper's policy applies.
    ///
    /// # Errors
    /// The file exists and cannot be read. The keeper then retries: no pager may trust other peers than the file names.
    pub(in crate::pager) fn read(run_dir: &Path) -> io::Result<Option<Self>> {
        let bytes = match fs::read(run_dir.join(TRUST_POLICY_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let (word, directory) = match bytes.iter().position(|byte| *byte == b' ') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (&bytes[..], None),
        };
        match (std::str::from_utf8(word), directory) {
            (Ok(UNAUTHENTICATED_WORD), None) => Ok(Some(Self::Unauthenticated)),
            (Ok(word @ ("on" | "off")), Some(directory)) => {
                let directory = OsString::from_vec(directory.to_vec()).into();
                Ok(Some(Self::ClusterMembers { directory, is_encrypted: word == "on" }))
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{TRUST_POLICY_FILE} in the run directory is damaged"),
            )),
        }
    }

    /// Writes the policy to the run directory. Pagers read it when they start.
    ///
    /// # Errors
    /// As open(2), write(2), rename(2).
    pub(in crate::pager) fn write(&self, run_dir: &Path) -> io::Result<()> {
        let text = match self {
            Self::Unauthenticated => UNAUTHENTICATED_WORD.as_bytes().to_vec(),
            Self::ClusterMembers { directory, is_encrypted } => {
                let word: &[u8] = if *is_encrypted { b"on " } else { b"off " };
                [word, directory.as_os_str().as_bytes()].concat()
            }
        };
        let temp_path = run_dir.join("pager.trust.new");
        let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp_path)?;
        file.write_all(&text)?;
        fs::rename(&temp_path, run_dir.join(TRUST_POLICY_FILE))
    }

    /// Removes the file, if there is one, so that the keeper's policy applies again.
    pub(in crate::pager) fn remove_file(run_dir: &Path) {
        // Fails if there is no file.
        let _ = fs::remove_file(run_dir.join(TRUST_POLICY_FILE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trust_policy_is_read_back() {
        let run_dir = tempfile::tempdir().unwrap();
        assert_eq!(TrustPolicy::read(run_dir.path()).unwrap(), None);
        let directory = PathBuf::from("/etc/far fork");
        for policy in [
            TrustPolicy::Unauthenticated,
            TrustPolicy::ClusterMembers { directory: directory.clone(), is_encrypted: true },
            TrustPolicy::ClusterMembers { directory, is_encrypted: false },
        ] {
            policy.write(run_dir.path()).unwrap();
            assert_eq!(TrustPolicy::read(run_dir.path()).unwrap(), Some(policy));
        }
        for damaged in ["", "on", "nobody", "perhaps /etc/farfork"] {
            fs::write(run_dir.path().join(TRUST_POLICY_FILE), damaged).unwrap();
            assert!(TrustPolicy::read(run_dir.path()).is_err(), "{damaged:?}");
        }
        TrustPolicy::remove_file(run_dir.path());
        assert_eq!(TrustPolicy::read(run_dir.path()).unwrap(), None);
    }
}
