//! Tests of a node with the only replica of a volume: a replica that is removed is not opened.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_cluster::catalog::FileCatalog;
use tempfile::TempDir;

use super::*;
use crate::log::LOG_BYTES_MIN;
use crate::process::OffloadMode;
use crate::process::offload::handlers::drop_replica;
use crate::process::volume_directory::VolumeDirectory;

const ID: u64 = 7;

/// Makes the catalog name a volume as one that is being dropped.
pub(in crate::process::offload) fn begin_drop(catalog: &dyn Catalog, name: &VolumeName) {
    let dropping = |record: &mut VolumeRecord| {
        record.state = VolumeState::Dropping;
        true
    };
    update_volume(catalog, name, dropping).unwrap();
}

/// A node with the only replica of a volume.
pub(in crate::process::offload) struct SingleReplica {
    pub(in crate::process::offload) node: Arc<OffloadNode>,
    pub(in crate::process::offload) key: VolumeKey,
    _directory: TempDir,
}

impl SingleReplica {
    pub(in crate::process::offload) fn create() -> Self {
        let directory = TempDir::new().unwrap();
        let (name, path) = (NodeName::new("n1").unwrap(), directory.path().join("catalog"));
        let options = OffloadOptions {
            node: name.clone(),
            store: directory.path().to_owned(),
            catalog: path.clone().into(),
            listen: [127, 0, 0, 1].into(),
            detection_time: Duration::from_secs(1),
            replica_rate_min: 64 << 10,
            scrub_interval: Duration::ZERO,
            mode: OffloadMode::On,
            copy_method: CopyMethod::default(),
            priority: WorkPriority::default(),
            compression: LogCompression::Off,
            credentials: None,
        };
        let catalog: Arc<dyn Catalog> = Arc::new(FileCatalog::new(&path));
        let peers = PeerClients::new(Arc::clone(&catalog), None);
        let (store, regions) = (VolumeStore::new(directory.path()), RegionRegistry::new(None));
        let node = OffloadNode::new(&options, store, catalog, peers, regions).unwrap();
        let key = VolumeKey { name: VolumeName::new("data").unwrap(), id: ID };
        let mut record = VolumeRecord::new(ID, vec![name], LOG_BYTES_MIN, Durability::Memory);
        record.state = VolumeState::Ready;
        node.catalog.write_volume(&key.name, &record).unwrap();
        VolumeDirectory::create(node.store.volume("data").path(), ID).unwrap();
        Self { node: Arc::new(node), key, _directory: directory }
    }

    pub(in crate::process::offload) fn open(&self) -> Result<Arc<ReplicatedVolume>, ReplicaError> {
        self.node.volume(&self.key.name)
    }
}

impl Drop for SingleReplica {
    fn drop(&mut self) {
        self.node.close_volume(&self.key);
    }
}

#[test]
fn a_replica_is_not_opened_while_it_is_removed() {
    let replica = SingleReplica::create();
    let volume = replica.open().unwrap();
    let removed = replica.node.remove_replica(&replica.key, || {
        assert!(volume.is_closed());
        fs::remove_dir_all(volume.directory.shared_path())?;
        let error = replica.open().err().unwrap();
        assert!(matches!(error, ReplicaError::NoReplica { .. }), "{error}");
        fs::remove_dir_all(volume.directory.path())
    });
    removed.unwrap();
    assert!(!replica.node.is_open(&replica.key.name));
    assert!(!volume.directory.path().exists());
}

#[test]
fn a_volume_that_is_being_dropped_is_not_opened() {
    let replica = SingleReplica::create();
    let name = &replica.key.name;
    begin_drop(&*replica.node.catalog, name);
    fs::remove_dir_all(replica.node.store.volume("data").shared_path()).unwrap();
    assert!(matches!(replica.open(), Err(ReplicaError::BeingDropped(_))));
    let mut failures = HashMap::new();
    replica.node.open_again(name, &mut failures);
    assert!(failures.is_empty(), "this is not an error");
}

#[test]
fn a_replica_is_removed_after_the_change_set_that_is_being_applied() {
    let replica = SingleReplica::create();
    let volume = replica.open().unwrap();
    volume.lock().is_publishing = true;
    let is_removed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !volume.is_closed() {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            assert!(!is_removed.load(Ordering::Relaxed));
            volume.lock().is_publishing = false;
            volume.notify();
        });
        let removed = replica.node.remove_replica(&replica.key, || {
            is_removed.store(true, Ordering::Relaxed);
            Ok(())
        });
        removed.unwrap();
    });
}

#[test]
fn no_client_takes_its_lock_while_a_replica_is_removed() {
    let replica = SingleReplica::create();
    let (node, key, volume) = (&replica.node, &replica.key, replica.open().unwrap());
    begin_drop(&*node.catalog, &key.name);
    // The removal waits for the change set.
    volume.lock().is_publishing = true;
    thread::scope(|scope| {
        let removing = scope.spawn(|| drop_replica(node, key));
        while !volume.is_closed() {
            thread::yield_now();
        }
        let client = volume.directory.try_lock_client();
        volume.lock().is_publishing = false;
        volume.notify();
        removing.join().unwrap().unwrap();
        assert!(client.unwrap().is_none());
    });
    assert!(!volume.directory.path().exists());
}

#[test]
fn a_late_call_does_not_remove_a_replica_that_the_catalog_names() {
    let replica = SingleReplica::create();
    let (node, key) = (&replica.node, &replica.key);
    let directory = replica.open().unwrap().directory.clone();
    let refusal = drop_replica(node, key).unwrap_err();
    assert!(refusal.contains("that the catalog names") && directory.shared_path().exists(), "{refusal}");
    begin_drop(&*node.catalog, &key.name);
    drop_replica(node, key).unwrap();
    assert!(!directory.path().exists());
}
