//! `members.json`: the addresses of the nodes that this node knows. The next daemon finds its cluster through this file, even
//! on the cluster's first node, which has no `--join` option.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::mem;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use farfork_api::run_dir::RunDir;
use farfork_trust::TrustDirectory;
use tokio::sync::Mutex;

/// An address at which no node was known for this time is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(30 * 24);
/// Longest difference between the written and the real time at which a node was known.
const REFRESH_INTERVAL: Duration = Duration::from_hours(24);

/// The paths of the file, and its content.
///
/// | directory | until | so that |
/// |---|---|---|
/// | run directory | the daemon stops | the next daemon joins after a crash |
/// | trust directory | no node was known at the address for 30 days | the next daemon joins after a stop or a reboot, too |
///
/// Without an identity there is no trust directory. Then nothing says to which cluster the addresses belong after a stop.
#[derive(Debug)]
pub(crate) struct MemberFile {
    /// Empty once the daemon stops.
    paths: Vec<PathBuf>,
    /// The address of each node, and the time when a node was known there, in seconds since 1970.
    saved: BTreeMap<SocketAddr, u64>,
}

impl MemberFile {
    /// Reads the addresses that an earlier daemon has written. A missing or damaged file counts as empty: then other
    /// nodes or the options must supply the addresses.
    pub(crate) fn read(run_dir: &RunDir, trust: Option<&TrustDirectory>) -> Self {
        let kept = trust.map(TrustDirectory::members_path);
        let paths = [run_dir.member_file()].into_iter().chain(kept).collect::<Vec<_>>();
        let read = |path| -> io::Result<BTreeMap<_, _>> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
        let saved = paths.iter().flat_map(|path| read(path).unwrap_or_default()).collect();
        Self { paths, saved }
    }

    /// Returns the addresses that were last read or written.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.saved.keys().copied().collect()
    }

    /// Returns what to write when these nodes are known; `None` if the file has it.
    fn changed_addresses(&self, known: &[SocketAddr], now: SystemTime) -> Option<BTreeMap<SocketAddr, u64>> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut addresses = self.saved.clone();
        addresses.retain(|_, known_at| now.saturating_sub(*known_at) < FORGOTTEN_AFTER.as_secs());
        for address in known {
            let known_at = addresses.entry(*address).or_insert(now);
            if now.abs_diff(*known_at) > REFRESH_INTERVAL.as_secs() {
                *known_at = now;
            }
        }
        (addresses != self.saved).then_some(addresses)
    }

    fn write(&mut self, addresses: BTreeMap<SocketAddr, u64>) {
        let content = serde_json::to_vec(&addresses).expect("addresses and numbers");
        let write = |path: &PathBuf| {
            let draft = path.with_extension("json.new");
            // The file must survive a loss of power.
            let written =
                File::create(&draft).and_then(|mut file| file.write_all(&content).and_then(|()| file.sync_all()));
            written.and_then(|()| fs::rename(&draft, path))
        };
        match self.paths.iter().try_for_each(write) {
            Ok(()) => self.saved = addresses,
            Err(error) => tracing::warn!(%error, "the addresses of the cluster's nodes cannot be saved"),
        }
    }

    /// Removes the file in the run directory, because the daemon stops. Later changes are not written.
    pub(crate) fn close(&mut self) {
        if let Some(in_run_dir) = mem::take(&mut self.paths).first() {
            // The file may not exist.
            let _ = fs::remove_file(in_run_dir);
        }
    }
}

/// Writes the addresses of the known nodes, if they have changed. Another thread writes, because heartbeats must not wait for a
/// disk. While it writes, further calls do nothing: each round of heartbeats calls again.
pub(crate) fn save_in_background(file: &Arc<Mutex<MemberFile>>, known: &[SocketAddr]) {
    if let Ok(mut file) = Arc::clone(file).try_lock_owned()
        && let Some(addresses) = file.changed_addresses(known, SystemTime::now())
    {
        tokio::task::spawn_blocking(move || file.write(addresses));
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::{Duration, SystemTime};

    use super::{FORGOTTEN_AFTER, MemberFile};
    use farfork_api::run_dir::RunDir;
    use farfork_trust::TrustDirectory;

    fn save(file: &mut MemberFile, known: &[SocketAddr], now: SystemTime) {
        if let Some(addresses) = file.changed_addresses(known, now) {
            file.write(addresses);
        }
    }

    #[test]
    fn the_next_daemon_reads_the_known_members() {
        let parent = tempfile::tempdir().unwrap();
        let (run_dir, trust) = (RunDir::new(parent.path()), TrustDirectory::new(parent.path().join("trust")));
        std::fs::create_dir(trust.root()).unwrap();
        let [two, one] = ["10.0.0.2:7400", "10.0.0.1:7400"].map(|text| text.parse().unwrap());
        let now = SystemTime::now();
        save(&mut MemberFile::read(&run_dir, None), &[two, one], now);
        assert_eq!(MemberFile::read(&run_dir, None).addresses(), [one, two]);

        std::fs::write(run_dir.member_file(), b"damaged").unwrap();
        assert!(MemberFile::read(&run_dir, None).addresses().is_empty());
        let mut file = MemberFile::read(&run_dir, Some(&trust));
        save(&mut file, &[one], now);
        file.close();
        save(&mut file, &[one, two], now);
        assert!(!run_dir.member_file().exists());
        assert_eq!(MemberFile::read(&run_dir, Some(&trust)).addresses(), [one]);
    }

    #[test]
    fn addresses_without_a_node_are_forgotten_after_a_month() {
        let parent = tempfile::tempdir().unwrap();
        let mut file = MemberFile::read(&RunDir::new(parent.path()), None);
        let [gone, present] = ["10.0.0.2:7400", "10.0.0.1:7400"].map(|text| text.parse().unwrap());
        let start = SystemTime::now();
        save(&mut file, &[gone, present], start);
        save(&mut file, &[present], start + FORGOTTEN_AFTER / 2);
        assert_eq!(file.addresses(), [present, gone]);
        save(&mut file, &[present], start + FORGOTTEN_AFTER + Duration::from_secs(1));
        assert_eq!(file.addresses(), [present]);
        // The clock was set back.
        save(&mut file, &[gone], start);
        assert_eq!(file.addresses(), [present, gone]);
    }
}
