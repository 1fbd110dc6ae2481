//! Three offload processes in threads, with clients that append to their logs without a mount.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{Catalog, FileCatalog, VolumeName, VolumeRecord, update_volume};
use farfork_wire::NodeName;
use tempfile::TempDir;

use super::{OffloadMode, OffloadOptions, run_offload};
use crate::chain::calls::{
    AppendAnswer, AppendLog, HoldTree, LendTree, LogBytes, OpenAnswer, OpenLog, ReadTree, ReleaseTree, VolumeKey,
};
use crate::chain::{CompressedChunk, LogCompression, PathVersion, PeerClients, encode_chunks, membership};
use crate::log::{AppendedRecord, LogAppender, LogFile, LogPoint};
use crate::process::channel::MessageChannel;
use crate::process::data_copier::CopyMethod;
use crate::process::message::{AttachedClient, ClientMessage, ForeignChange, OffloadMessage};
use crate::process::store::VolumeStore;
use crate::process::work_priority::WorkPriority;
use crate::process::{ControlAnswer, ControlRequest, NewVolume, send_control_request};
use crate::publish::{Durability, PublishedMark, load_namespace};
use crate::record::{EntryName, FileKind, InodeNumber, Timestamp};
use crate::view::{CallerIdentity, NewInode, PrivilegeLoss, VolumeNamespace};

pub(super) const NODES: [&str; 3] = ["n1", "n2", "n3"];
const LOG_BYTES: u64 = 8 << 20;
/// Longest wait for an event. A slow machine must not fail a test.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Nodes with separate stores and one catalog.
pub(super) struct TestCluster {
    directory: TempDir,
}

impl TestCluster {
    pub(super) fn start() -> Self {
        Self::start_with(|_| LogCompression::Off)
    }

    /// `compression_of` returns the option of each node.
    fn start_with(compression_of: impl Fn(&str) -> LogCompression) -> Self {
        let cluster = Self { directory: TempDir::new().unwrap() };
        for name in NODES {
            let store = cluster.store(name);
            std::fs::create_dir(&store).unwrap();
            let catalog = cluster.directory.path().join("catalog").into();
            let node = NodeName::new(name).unwrap();
            let (listen, detection_time) = ([127, 0, 0, 1].into(), WAIT_LIMIT);
            let options = OffloadOptions {
                node,
                store,
                catalog,
                listen,
                detection_time,
                replica_rate_min: 64 << 10,
                scrub_interval: Duration::ZERO,
                mode: OffloadMode::default(),
                copy_method: CopyMethod::default(),
                priority: WorkPriority::default(),
                compression: compression_of(name),
                credentials: None,
            };
            thread::spawn(move || run_offload(&options).unwrap());
        }
        for name in NODES {
            let socket = VolumeStore::new(&cluster.store(name)).control_socket();
            wait_for("the control socket", || MessageChannel::connect(&socket).is_ok());
        }
        cluster
    }

    pub(super) fn store(&self, node: &str) -> PathBuf {
        self.directory.path().join(node)
    }

    pub(super) fn create_volume(&self, replicas: &[&str]) {
        let new = NewVolume {
            name: VolumeName::new("data").unwrap(),
            replicas: replicas.iter().map(|name| NodeName::new(name).unwrap()).collect(),
            log_bytes: LOG_BYTES,
            durability: Durability::Memory,
        };
        assert_eq!(self.control("n1", &ControlRequest::Create(new)), ControlAnswer::Done);
    }

    pub(super) fn control(&self, node: &str, request: &ControlRequest) -> ControlAnswer {
        send_control_request(&self.store(node), request).unwrap()
    }

    pub(super) fn catalog(&self) -> Arc<dyn Catalog> {
        Arc::new(FileCatalog::new(&self.directory.path().join("catalog")))
    }

    /// Clients for calls to the nodes.
    pub(super) fn peers(&self) -> PeerClients {
        PeerClients::new(self.catalog(), None)
    }

    /// The volume, and the epoch of its chain.
    pub(super) fn volume_key(&self) -> (VolumeKey, u64) {
        let name = VolumeName::new("data").unwrap();
        let record = self.catalog().read().unwrap().volumes[&name].clone();
        (VolumeKey { name, id: record.id }, record.epoch)
    }

    /// The names in the root of the shared tree of a node.
    pub(super) fn published_names(&self, node: &str) -> Vec<String> {
        let tree = self.store(node).join("data/shared/tree");
        let entries = std::fs::read_dir(tree).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A client of a node. It does the same as a mount, one operation at a time.
pub(super) struct TestClient {
    channel: MessageChannel,
    attached: AttachedClient,
    namespace: VolumeNamespace,
    log: LogAppender<LogFile>,
}

impl TestClient {
    pub(super) fn attach(store: &Path) -> Self {
        let store = VolumeStore::new(store);
        let mut channel = MessageChannel::connect(&store.offload_socket()).unwrap();
        channel.set_receive_timeout(Some(WAIT_LIMIT)).unwrap();
        channel.send(&ClientMessage::Attach { volume: "data".to_owned() }).unwrap();
        let attached = match channel.receive().unwrap() {
            OffloadMessage::Attached(attached) => *attached,
            other => panic!("{other:?}"),
        };
        let mark = attached.marks[usize::from(attached.client)];
        let shared = store.volume("data").open_shared().unwrap();
        let namespace = load_namespace(&shared, attached.client, mark.inode_max).unwrap();
        channel.send(&ClientMessage::Loaded).unwrap();
        let log = LogAppender::new(LogFile::open(&attached.log_path).unwrap(), LOG_BYTES, 0, mark.point);
        Self { channel, attached, namespace, log }
    }

    /// Whether the client knows a file in the root.
    pub(super) fn has_file(&self, name: &str) -> bool {
        self.namespace.lookup(InodeNumber::ROOT, &EntryName::new(name.as_bytes()).unwrap()).is_ok()
    }

    /// Receives the next message other than `Published`, which only advances the tail of the log.
    fn receive(&mut self) -> OffloadMessage {
        loop {
            match self.channel.receive().unwrap() {
                OffloadMessage::Published { mark, .. } => {
                    let point = mark.point.max(self.log.ring().tail());
                    self.log.advance_tail(point);
                }
                other => return other,
            }
        }
    }

    pub(super) fn request_write(&mut self) -> io::Result<()> {
        self.channel.send(&ClientMessage::AcquireWrite)
    }

    /// Waits until the offload process has ended this client.
    pub(super) fn wait_until_refused(&mut self) {
        while !matches!(self.receive(), OffloadMessage::Refused(_)) {}
    }

    pub(super) fn acquire_write(&mut self) -> Vec<ForeignChange> {
        self.request_write().unwrap();
        let mut changes = Vec::new();
        loop {
            match self.receive() {
                OffloadMessage::Changed(change) => changes.push(*change),
                OffloadMessage::WriteGranted { term, .. } => {
                    let (storage, tail) = (LogFile::open(&self.attached.log_path).unwrap(), self.log.ring().head());
                    self.log = LogAppender::new(storage, LOG_BYTES, term, tail);
                    return changes;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn create_file(&mut self, name: &str) {
        let now = Timestamp { seconds: 7, nanoseconds: 0 };
        let caller = CallerIdentity { user: 0, group: 0, now };
        let new = NewInode { kind: FileKind::Regular, mode: 0o644, device: 0, symlink_target: Vec::new() };
        let name = EntryName::new(name.as_bytes()).unwrap();
        let planned = self.namespace.plan_create(InodeNumber::ROOT, &name, &new, caller).unwrap();
        let record = self.log.append(&planned.effects, &[]).unwrap();
        self.namespace.apply(&planned.effects, record);
        let data = name.as_bytes().repeat(10_000);
        let effects =
            self.namespace.plan_write(planned.inode, 0, data.len() as u32, PrivilegeLoss::Nothing, caller).unwrap();
        let record: AppendedRecord = self.log.append(&effects, &data).unwrap();
        self.namespace.apply(&effects, record);
    }

    pub(super) fn commit(&mut self) {
        let head = self.log.ring().head();
        self.channel.send(&ClientMessage::Commit(head)).unwrap();
        match self.receive() {
            OffloadMessage::Committed(point) => assert!(point >= head),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn answer_release(&mut self) {
        match self.receive() {
            OffloadMessage::ReleaseWrite => {
                self.channel.send(&ClientMessage::Released).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {WAIT_LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_commit_is_on_each_replica_and_published_on_each() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let mut client = TestClient::attach(&cluster.store("n2"));
    client.acquire_write();
    client.create_file("one");
    client.commit();
    let head = client.log.ring().head().position;
    let status = ControlRequest::Status(VolumeName::new("data").unwrap());
    let ControlAnswer::Status(volume) = cluster.control("n3", &status) else { panic!("no status") };
    for replica in &volume.replicas {
        assert_eq!((&replica.failure, replica.logs[0].logged), (&None, head), "{}", replica.node);
    }
    for node in NODES {
        wait_for("the file is published", || cluster.published_names(node) == ["one"]);
        let path = cluster.store(node).join("data/shared/tree/one");
        wait_for("its data is published", || std::fs::read(&path).unwrap() == b"one".repeat(10_000));
    }
}

/// The middle node expands the data of the first node, and sends it according to its own option.
#[test]
fn nodes_that_compress_and_nodes_that_do_not_are_in_one_chain() {
    for compressing in [&["n1", "n2"][..], &["n1"], &["n2"]] {
        let is_compressing = |name: &str| compressing.contains(&name);
        let cluster = TestCluster::start_with(|name| match is_compressing(name) {
            true => LogCompression::Lz4,
            false => LogCompression::Off,
        });
        cluster.create_volume(&NODES);
        let mut client = TestClient::attach(&cluster.store("n1"));
        client.acquire_write();
        // Each commit has more data than fits within a call.
        let names: Vec<String> = (0..40).map(|number| format!("name of file {number:03}")).collect();
        for names in names.chunks(4) {
            names.iter().for_each(|name| client.create_file(name));
            client.commit();
        }
        let status = ControlRequest::Status(VolumeName::new("data").unwrap());
        let ControlAnswer::Status(volume) = cluster.control("n3", &status) else { panic!("no status") };
        for replica in &volume.replicas {
            let (name, log) = (replica.node.as_str(), replica.logs[0]);
            assert_eq!(log.forwarded >= log.logged, name != "n3", "{name}: {log:?}");
            assert_eq!(log.compressed < log.forwarded / 2, is_compressing(name), "{name}: {log:?}");
        }
        for node in NODES {
            wait_for("the files are published", || cluster.published_names(node) == names);
            for name in &names {
                let path = cluster.store(node).join("data/shared/tree").join(name);
                wait_for("its data is published", || std::fs::read(&path).unwrap() == name.repeat(10_000).as_bytes());
            }
        }
    }
}

/// None of the data is stored, and the predecessor can continue.
#[test]
fn compressed_data_that_is_damaged_or_out_of_bounds_is_refused() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let mut client = TestClient::attach(&cluster.store("n1"));
    client.acquire_write();
    let (peers, node) = (cluster.peers(), NodeName::new("n2").unwrap());
    let (volume, _) = cluster.volume_key();
    let record = cluster.catalog().read().unwrap().volumes[&volume.name].clone();
    let (path, revision, stored) = (PathVersion::of(&record, 0), record.revision, LogPoint::START);
    let published = PublishedMark::start_of(0);
    let request = OpenLog { volume: volume.clone(), revision, path, client: 0, published, stored };
    let OpenAnswer::Opened(opened) = peers.call::<OpenLog>(&node, &request, WAIT_LIMIT).unwrap() else {
        panic!("the disk has room")
    };
    let append = |region, position| {
        let end = LogPoint { sequence: 2, position: 20_000 };
        let bytes = LogBytes { region, position: 0, data: vec![0x11; 100] };
        let (is_urgent, needs_space) = (false, false);
        let chunks = encode_chunks(&[CompressedChunk { position, log_bytes: 20_000, compressed_bytes: 100 }]);
        let volume = volume.clone();
        let request = AppendLog { volume, revision, path, client: 0, end, is_urgent, needs_space, bytes, chunks };
        peers.call::<AppendLog>(&node, &request, WAIT_LIMIT)
    };
    let other_region = append(opened.region ^ 1, 0);
    assert!(matches!(other_region, Ok(AppendAnswer::OtherPath)), "another predecessor's: {other_region:?}");
    for (position, refusal) in [(0, "the log is not valid after position 0"), (1, "out of bounds")] {
        let found = append(opened.region, position).unwrap_err().to_string();
        assert!(found.contains(refusal), "{found}");
    }
    client.create_file("one");
    client.commit();
    wait_for("the file is published", || cluster.published_names("n2") == ["one"]);
}

#[test]
fn the_next_writer_has_all_records_of_the_previous_one() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let mut one = TestClient::attach(&cluster.store("n1"));
    let mut other = TestClient::attach(&cluster.store("n3"));
    one.acquire_write();
    for round in 0..3 {
        one.create_file(&format!("one-{round}"));
        let releasing = thread::spawn(move || {
            one.answer_release();
            one
        });
        let changes = other.acquire_write();
        one = releasing.join().unwrap();
        assert!(changes.iter().all(|change| change.client == 0));
        let end = changes.last().map(|change| change.changes.end);
        assert_eq!(end, Some(one.log.ring().head()), "round {round}");

        other.create_file(&format!("other-{round}"));
        let releasing = thread::spawn(move || {
            other.answer_release();
            other
        });
        let changes = one.acquire_write();
        other = releasing.join().unwrap();
        assert!(changes.iter().all(|change| change.client == 1));
    }
    for node in NODES {
        let names = ["one-0", "one-1", "one-2", "other-0", "other-1", "other-2"];
        assert_eq!(cluster.published_names(node), names, "{node}");
    }
}

/// A node that copies a tree gives up, and its next attempt borrows the tree again.
#[test]
fn a_borrowed_tree_that_is_borrowed_again_is_read_to_its_end() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let mut client = TestClient::attach(&cluster.store("n1"));
    client.acquire_write();
    client.create_file("one");
    client.commit();
    let (peers, lender) = (cluster.peers(), NodeName::new("n1").unwrap());
    let (volume, epoch) = cluster.volume_key();
    let borrow = |published| {
        let request = LendTree { volume: volume.clone(), epoch, at_least: vec![published] };
        peers.call::<LendTree>(&lender, &request, WAIT_LIMIT).unwrap().loan
    };
    let first = borrow(LogPoint::START);
    client.create_file("more");
    client.commit();
    // The first loan must not keep this record from being published.
    let second = borrow(client.log.ring().head());
    let read = |loan| peers.call::<ReadTree>(&lender, &ReadTree { volume: volume.clone(), loan }, WAIT_LIMIT);
    let refusal = read(first).unwrap_err().to_string();
    assert!(refusal.contains("not lent"), "{refusal}");
    while !read(second).unwrap().is_last {}
    client.create_file("other");
    client.commit();
    wait_for("publishing continues", || cluster.published_names("n1") == ["more", "one", "other"]);
}

/// A node that was stopped may execute the call of a check after the call that ends the check.
#[test]
fn an_ended_check_does_not_hold_a_tree() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let mut client = TestClient::attach(&cluster.store("n1"));
    client.acquire_write();
    let (peers, node) = (cluster.peers(), NodeName::new("n2").unwrap());
    let (volume, epoch) = cluster.volume_key();
    let hold = |hold| {
        let request = HoldTree { volume: volume.clone(), epoch, hold, points: Vec::new() };
        peers.call::<HoldTree>(&node, &request, WAIT_LIMIT)
    };
    let end = |hold| {
        let request = ReleaseTree { volume: volume.clone(), epoch, hold, is_end: true };
        peers.call::<ReleaseTree>(&node, &request, WAIT_LIMIT).unwrap();
    };
    hold(1).unwrap();
    end(1);
    // The `HoldTree` call of the second check arrives after its end.
    end(2);
    for ended in [1, 2] {
        let refusal = hold(ended).unwrap_err().to_string();
        assert!(refusal.contains("has ended"), "{refusal}");
    }
    client.create_file("one");
    client.commit();
    wait_for("publishing continues", || cluster.published_names("n2") == ["one"]);
    hold(3).unwrap();
    let refusal = hold(4).unwrap_err().to_string();
    assert!(refusal.contains("another check of volume data is running"), "{refusal}");
    end(3);
}

/// A node may miss the end of a check, because it has left the chain that was checked.
#[test]
fn a_check_of_an_earlier_chain_does_not_hold_a_tree() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let [node, leaving] = ["n2", "n3"].map(|name| NodeName::new(name).unwrap());
    let peers = cluster.peers();
    let hold = |hold| {
        let (volume, epoch) = cluster.volume_key();
        let request = HoldTree { volume, epoch, hold, points: Vec::new() };
        peers.call::<HoldTree>(&node, &request, WAIT_LIMIT).map_err(|error| error.to_string())
    };
    hold(1).unwrap();
    let (volume, epoch) = cluster.volume_key();
    let change = |record: &mut VolumeRecord| membership::remove_member(record, &leaving, epoch);
    update_volume(&*cluster.catalog(), &volume.name, change).unwrap();
    // The first call may arrive before the node knows the new chain.
    wait_for("the next check holds the tree", || match hold(2) {
        Ok(_) => true,
        Err(refusal) => {
            assert!(!refusal.contains("another check"), "{refusal}");
            false
        }
    });
}

/// Both have a lock, as after the directory of the replica was exchanged.
#[test]
fn a_second_client_of_a_node_is_refused_while_the_first_one_is_attached() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let store = cluster.store("n2");
    let mut first = TestClient::attach(&store);
    first.acquire_write();
    let mut channel = MessageChannel::connect(&VolumeStore::new(&store).offload_socket()).unwrap();
    channel.set_receive_timeout(Some(WAIT_LIMIT)).unwrap();
    channel.send(&ClientMessage::Attach { volume: "data".to_owned() }).unwrap();
    match channel.receive().unwrap() {
        OffloadMessage::Refused(reason) => assert!(reason.contains("is mounted on this node already"), "{reason}"),
        other => panic!("{other:?}"),
    }
    first.create_file("one");
    first.commit();
    drop(first);
    TestClient::attach(&store);
}

#[test]
fn a_mounted_volume_is_not_dropped() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let name = VolumeName::new("data").unwrap();
    let lock = VolumeStore::new(&cluster.store("n2")).volume("data").try_lock_client().unwrap();
    let _client = TestClient::attach(&cluster.store("n2"));
    let ControlAnswer::Failed(reason) = cluster.control("n1", &ControlRequest::Drop(name.clone())) else {
        panic!("it was dropped")
    };
    assert!(reason.contains("is mounted on n2: unmount it there, and end children that use it"), "{reason}");
    // The client ends while `drop` waits for it, as after an umount(8) on a busy machine.
    let ending = thread::spawn(move || {
        thread::sleep(Duration::from_secs(3));
        drop(lock);
    });
    assert_eq!(cluster.control("n1", &ControlRequest::Drop(name)), ControlAnswer::Done);
    ending.join().unwrap();
    for node in NODES {
        assert!(!cluster.store(node).join("data").exists(), "{node}");
    }
    cluster.create_volume(&["n2"]);
    assert!(cluster.published_names("n2").is_empty());
}
