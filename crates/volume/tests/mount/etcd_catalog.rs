//! A volume whose catalog is in etcd. While etcd has no quorum, the writer continues, and nothing else changes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{CatalogLocation, VolumeRecord};
use farfork_cluster::local::TestEtcd;
use farfork_volume::mount::MountOptions;
use farfork_volume::process::ProcessRole;
use rustix::io::Errno;
use rustix::process::Signal;
use tempfile::TempDir;

use super::test_network::{NodeNetwork, TestNetwork, in_thread};
use super::test_node::{NO_DETECTION_MS, WAIT_LIMIT};
use super::volume_cluster::{THREE_NODES, VolumeCluster};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("without_a_quorum_of_etcd_the_writer_continues", without_a_quorum_of_etcd_the_writer_continues)];
pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("without_a_quorum_of_etcd_no_replica_leaves", without_a_quorum_of_etcd_no_replica_leaves)];

/// A volume with three replicas, and an etcd of three members. The cluster ends first.
pub(crate) struct EtcdCluster {
    pub(crate) volumes: VolumeCluster,
    pub(crate) etcd: TestEtcd,
    _directory: TempDir,
}

impl EtcdCluster {
    fn start(detection_ms: u64) -> Self {
        let directory = TempDir::new().unwrap();
        let etcd = TestEtcd::start(directory.path(), 3, None).expect("`make setup` installs etcd-server");
        let location = CatalogLocation::Etcd(etcd.location("/volumes"));
        wait_for_catalog(&location);
        let networks = THREE_NODES.iter().map(|_| NodeNetwork::loopback());
        Self { volumes: VolumeCluster::with_catalog(location, networks, detection_ms), etcd, _directory: directory }
    }

    /// As `start`, with a member and a node at each address of a network.
    pub(crate) fn networked(network: &TestNetwork, detection_ms: u64) -> Self {
        let directory = TempDir::new().unwrap();
        let networks = || (0..THREE_NODES.len()).map(|node| network.node(node));
        let places = networks().map(|node| (node.address, node.wrapper())).collect();
        let etcd = TestEtcd::start_at(directory.path(), places).expect("`make setup` installs etcd-server");
        let location = CatalogLocation::Etcd(etcd.location("/volumes"));
        in_thread(|| {
            network.node(0).enter();
            wait_for_catalog(&location);
        });
        Self { volumes: VolumeCluster::with_catalog(location, networks(), detection_ms), etcd, _directory: directory }
    }

    fn path(&self, node: usize) -> PathBuf {
        self.volumes.path(node).join("file")
    }

    fn mount_again(&mut self, node: usize, options: MountOptions) {
        self.volumes.nodes[node].unmount();
        self.volumes.nodes[node].mount_with(options);
    }

    /// Stops or continues two of the three members.
    fn signal_quorum(&self, signal: Signal) {
        (0..2).for_each(|member| self.etcd.signal(member, signal).unwrap());
    }

    fn record(&self) -> VolumeRecord {
        self.volumes.nodes[0].status().record
    }
}

fn wait_for_catalog(location: &CatalogLocation) {
    let (catalog, started) = (location.open().unwrap(), Instant::now());
    while let Err(error) = catalog.read() {
        assert!(started.elapsed() < WAIT_LIMIT, "{error}");
    }
}

/// Runs `work` in a thread, which stays if it waits for ever.
fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver
}

fn open_to_read(path: PathBuf) -> io::Result<File> {
    File::open(path)
}

fn open_to_append(path: PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

fn append(mut file: &File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn without_a_quorum_of_etcd_the_writer_continues() {
    let mut cluster = EtcdCluster::start(NO_DETECTION_MS);
    cluster.mount_again(1, MountOptions { catalog_wait: Duration::ZERO, ..MountOptions::default() });
    cluster.mount_again(2, MountOptions { stale_reads: true, catalog_wait: Duration::ZERO, ..MountOptions::default() });
    fs::write(cluster.path(0), "one").unwrap();
    fs::create_dir(cluster.path(0).with_file_name("directory")).unwrap();
    fs::write(cluster.path(0).with_file_name("directory/old"), "").unwrap();
    let writer = open_to_append(cluster.path(0)).unwrap();
    let (reader, other_writer) = (File::open(cluster.path(1)).unwrap(), open_to_append(cluster.path(1)).unwrap());
    assert_eq!(fs::read_to_string(cluster.path(2)).unwrap(), "one");
    let record = cluster.record();
    cluster.signal_quorum(Signal::STOP);

    let (path, stale_path) = (cluster.path(1), cluster.path(2));
    let opened = [open_to_read, open_to_append].map(|open: fn(PathBuf) -> io::Result<File>| {
        let path = path.clone();
        start(move || open(path).map(drop))
    });
    let stale = start(move || fs::read_to_string(stale_path).unwrap());
    let other_written = start(move || append(&other_writer, ", three").unwrap());
    // A stopped member may answer once more: kill(2) returns before its threads have stopped.
    let mut failure = None;
    cluster.volumes.nodes[0].wait_for("the catalog cannot be read", || {
        failure = cluster.volumes.nodes[0].status().catalog_failure;
        failure.is_some()
    });
    let failure = failure.expect("it was waited for");
    assert!(failure.contains("no member has answered") && failure.contains("endpoint status"), "{failure}");
    // From here on, etcd is known to be silent.
    let written = start(move || {
        append(&writer, ", two").unwrap();
        append(&writer, "!").unwrap();
    });
    written.recv_timeout(WAIT_LIMIT).expect("the writer waits for etcd");
    cluster.volumes.nodes[1].wait_for("an open file has the published data", || {
        let mut data = [0; 9];
        reader.read_at(&mut data, 0).unwrap() == data.len() && data == *b"one, two!"
    });
    for opened in opened {
        let error = opened.recv_timeout(WAIT_LIMIT).expect("open(2) ends").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
    assert!(stale.recv_timeout(WAIT_LIMIT).expect("files can be opened for reading").starts_with("one"));
    assert_eq!(fs::read_to_string(cluster.path(2)).unwrap(), "one, two!");
    require_refused_changes(cluster.volumes.path(2));
    assert_eq!(other_written.try_recv(), Err(TryRecvError::Empty), "a new writer without a quorum");

    cluster.signal_quorum(Signal::CONT);
    other_written.recv_timeout(WAIT_LIMIT).expect("the next writer continues by itself");
    for node in 0..3 {
        assert_eq!(fs::read_to_string(cluster.path(node)).unwrap(), "one, two!, three");
        assert!(!cluster.path(node).with_file_name("new").exists(), "a refused call was executed later");
    }
    let present = cluster.record();
    assert_eq!((&present.chain, present.epoch), (&record.chain, record.epoch));
    assert_ne!(present.writer, record.writer);
    cluster.volumes.published_tree();
}

/// With `MountOptions::stale_reads`, the lookup of a name is answered at once, and the change itself waits for the catalog. It
/// ends, and releases the lock that the kernel takes of the directory meanwhile.
fn require_refused_changes(mount_point: PathBuf) {
    // In different directories, because the lock would make one change wait for the other.
    let (directory, created) = (mount_point.join("directory"), mount_point.join("new"));
    let renamed = directory.clone();
    let changes = [
        start(move || File::create(created).map(drop)),
        start(move || fs::rename(renamed.join("old"), renamed.join("new"))),
    ];
    for change in changes {
        let error = change.recv_timeout(WAIT_LIMIT).expect("the change ends").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
    for path in [mount_point, directory] {
        let listed = start(move || fs::read_dir(path).unwrap().count());
        assert!(listed.recv_timeout(WAIT_LIMIT).expect("a directory can be listed") > 0);
    }
}

/// A replica that does not answer stays in the chain, and the writer waits for it.
fn without_a_quorum_of_etcd_no_replica_leaves() {
    const DETECTION_MS: u64 = 2000;
    let cluster = EtcdCluster::start(DETECTION_MS);
    fs::write(cluster.path(0), "one").unwrap();
    let writer = open_to_append(cluster.path(0)).unwrap();
    append(&writer, ", two").unwrap();
    let record = cluster.record();
    assert_eq!(record.chain.len(), 3);
    cluster.signal_quorum(Signal::STOP);
    let (offload, stopped) = ([ProcessRole::Offload], &cluster.volumes.nodes[2]);
    stopped.signal(&offload, Signal::STOP);
    let written = start(move || append(&writer, ", three").unwrap());
    let waited = written.recv_timeout(5 * Duration::from_millis(DETECTION_MS));
    assert!(waited.is_err(), "the replica has left the chain without a quorum");
    stopped.signal(&offload, Signal::CONT);
    written.recv_timeout(WAIT_LIMIT).expect("the writer continues when the replica answers");
    cluster.signal_quorum(Signal::CONT);
    cluster.volumes.nodes[0].wait_for("the catalog answers", || {
        let status = cluster.volumes.nodes[0].status();
        assert_eq!((&status.record.chain, status.record.epoch), (&record.chain, record.epoch));
        status.catalog_failure.is_none()
    });
    assert_eq!(fs::read_to_string(cluster.path(2)).unwrap(), "one, two, three");
    cluster.volumes.published_tree();
}
