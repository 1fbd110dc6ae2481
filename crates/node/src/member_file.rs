//! `RUN/members.json`: the addresses of the nodes that this node knows. After a crash, the next daemon finds its
//! cluster through this file, even on the cluster's first node, which has no `--join` option.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use farfork_api::run_dir::RunDir;

/// The path of the file, and the addresses that were last read from or written to it.
#[derive(Debug)]
pub(crate) struct MemberFile {
    path: PathBuf,
    saved: Vec<SocketAddr>,
}

impl MemberFile {
    /// Reads the addresses that an earlier daemon has written. A missing or damaged file counts as empty: then other
    /// nodes or the options must supply the addresses.
    pub(crate) fn read(run_dir: &RunDir) -> Self {
        let file = run_dir.member_file();
        let read = || -> io::Result<Vec<SocketAddr>> { Ok(serde_json::from_slice(&fs::read(&file)?)?) };
        let written = read().unwrap_or_default();
        Self { path: file, saved: written }
    }

    /// Returns the addresses that were last read or written.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.saved
    }

    /// Writes the addresses, if they have changed.
    pub(crate) fn save(&mut self, mut addresses: Vec<SocketAddr>) {
        addresses.sort_unstable();
        if addresses == self.saved {
            return;
        }
        let draft = self.path.with_extension("json.new");
        let write = || -> io::Result<()> {
            fs::write(&draft, serde_json::to_vec(&addresses)?)?;
            fs::rename(&draft, &self.path)
        };
        match write() {
            Ok(()) => self.saved = addresses,
            Err(error) => tracing::warn!(%error, "the addresses of the cluster's nodes cannot be saved"),
        }
    }

    /// Removes the file, because the node stops for good.
    pub(crate) fn remove(run_dir: &RunDir) {
        // The file may not exist.
        let _ = fs::remove_file(run_dir.member_file());
    }
}

#[cfg(test)]
mod tests {
    use super::MemberFile;
    use farfork_api::run_dir::RunDir;

    #[test]
    fn the_next_daemon_reads_the_known_members() {
        let parent = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(parent.path());
        let addresses = ["10.0.0.2:7400", "10.0.0.1:7400"].map(|text| text.parse().unwrap());
        MemberFile::read(&run_dir).save(addresses.to_vec());
        assert_eq!(MemberFile::read(&run_dir).addresses(), [addresses[1], addresses[0]]);

        std::fs::write(run_dir.member_file(), b"damaged").unwrap();
        assert!(MemberFile::read(&run_dir).addresses().is_empty());
        MemberFile::remove(&run_dir);
        assert!(!run_dir.member_file().exists());
    }
}
