//! The addresses of the nodes that this one knows, kept in `RUN/members.json` while it runs: a daemon that was killed and
//! is started again finds its cluster there, the first node of a cluster too, which was told of nobody to join.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::run_dir::RunDir;

/// The file, and what was last written to it.
#[derive(Debug)]
pub(crate) struct Acquaintances {
    file: PathBuf,
    written: Vec<SocketAddr>,
}

impl Acquaintances {
    /// Those that an earlier daemon wrote down. A file that is missing or damaged tells of none: then somebody else
    /// has to tell.
    pub(crate) fn read(run_dir: &RunDir) -> Self {
        let file = run_dir.members();
        let read = || -> io::Result<Vec<SocketAddr>> { Ok(serde_json::from_slice(&fs::read(&file)?)?) };
        let written = read().unwrap_or_default();
        Self { file, written }
    }

    /// What was last written down.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.written
    }

    /// Writes down the addresses, if they are not the same as before.
    pub(crate) fn keep(&mut self, mut addresses: Vec<SocketAddr>) {
        addresses.sort_unstable();
        if addresses == self.written {
            return;
        }
        let draft = self.file.with_extension("json.new");
        let write = || -> io::Result<()> {
            fs::write(&draft, serde_json::to_vec(&addresses)?)?;
            fs::rename(&draft, &self.file)
        };
        match write() {
            Ok(()) => self.written = addresses,
            Err(error) => tracing::warn!(%error, "the nodes of the cluster cannot be written down"),
        }
    }

    /// Forgets all: the node stops for good.
    pub(crate) fn forget(run_dir: &RunDir) {
        // There may be none.
        let _ = fs::remove_file(run_dir.members());
    }
}

#[cfg(test)]
mod tests {
    use super::Acquaintances;
    use crate::run_dir::RunDir;

    #[test]
    fn the_next_daemon_knows_whom_the_last_one_knew() {
        let parent = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(parent.path());
        let addresses = ["10.0.0.2:7400", "10.0.0.1:7400"].map(|text| text.parse().unwrap());
        Acquaintances::read(&run_dir).keep(addresses.to_vec());
        assert_eq!(Acquaintances::read(&run_dir).addresses(), [addresses[1], addresses[0]]);

        std::fs::write(run_dir.members(), b"damaged").unwrap();
        assert!(Acquaintances::read(&run_dir).addresses().is_empty());
        Acquaintances::forget(&run_dir);
        assert!(!run_dir.members().exists());
    }
}
