//! Checks of the contract of `Catalog`, for the tests of each store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farfork_wire::NodeName;

use super::{
    Catalog, CatalogContents, CatalogError, ClusterRecords, Durability, MemberRecord, RosterRecord, VolumeName,
    VolumeNode, VolumeRecord, VolumeState, claim_catalog, update_volume,
};

const WRITERS: u32 = 4;
const CHANGES_PER_WRITER: u32 = 25;

pub(super) fn volume_name(text: &str) -> VolumeName {
    VolumeName::new(text).unwrap()
}

pub(super) fn node_name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

pub(super) fn new_record() -> VolumeRecord {
    let record = VolumeRecord::new(7, vec![node_name("n1"), node_name("n2")], 64 << 20, Durability::Memory);
    VolumeRecord { state: VolumeState::Ready, ..record }
}

/// Runs all checks. `make_store` makes an empty store, and returns a function that opens it, like another process.
pub(super) fn check_all<F>(make_store: impl Fn() -> F)
where
    F: Fn() -> Box<dyn Catalog> + Sync,
{
    check_missing_volume(&make_store());
    check_read_by_another_catalog(&make_store());
    check_conflicts(&make_store());
    check_recreated_volume(&make_store());
    check_cancelled_change(&make_store());
    check_unchanged_contents_are_shared(&make_store());
    check_waiting(&make_store());
    check_writers_in_a_race(&make_store());
    check_readers_see_versions_in_order(&make_store());
    check_cluster_records(&make_store());
}

fn check_cluster_records(open: &dyn Fn() -> Box<dyn Catalog>) {
    let (one, other) = (open(), open());
    assert_eq!(one.read_cluster().unwrap(), ClusterRecords::default());
    claim_catalog(&*one, "ours").unwrap();
    claim_catalog(&*other, "ours").unwrap();
    let refused = claim_catalog(&*other, "theirs").unwrap_err().to_string();
    assert!(refused.contains("another cluster (ours)"), "{refused}");
    assert_eq!(other.write_cluster("theirs").unwrap(), "ours");

    let (name, address) = (node_name("n1"), "10.0.0.1:7400".parse().unwrap());
    let [early, late] = [1, 2].map(|issued_us| MemberRecord { address, issued_us });
    one.write_member(&name, &early).unwrap();
    one.write_member(&name, &late).unwrap();
    other.remove_member(&name, &early).unwrap();
    assert_eq!(other.read_cluster().unwrap().members, [(name.clone(), late)].into());
    other.remove_member(&name, &late).unwrap();
    assert!(one.read_cluster().unwrap().members.is_empty());

    let first = RosterRecord { revision: 0, bytes: vec![0, 255, 7] };
    assert!(one.write_roster(&first).unwrap() && !other.write_roster(&first).unwrap());
    let read = other.read_cluster().unwrap().roster.unwrap();
    assert!(read.revision > 0 && read.bytes == first.bytes, "{read:?}");
    assert!(other.write_roster(&RosterRecord { bytes: vec![8], ..read.clone() }).unwrap());
    assert!(!one.write_roster(&read).unwrap());
    let read = one.read_cluster().unwrap();
    assert_eq!((read.cluster.as_deref(), read.roster.unwrap().bytes), (Some("ours"), vec![8]));
    // Records of the cluster are not volumes, and starting to keep them starts no processes of volumes.
    assert!(!one.read().unwrap().is_in_use());
}

fn check_missing_volume(open: &dyn Fn() -> Box<dyn Catalog>) {
    assert_eq!(*open().read().unwrap(), CatalogContents::default());
    assert!(update_volume(&*open(), &volume_name("data"), |_| true).unwrap().is_none());
}

fn check_read_by_another_catalog(open: &dyn Fn() -> Box<dyn Catalog>) {
    let (writer, reader) = (open(), open());
    let node = VolumeNode { fabric: "10.0.0.1:1".parse().unwrap(), rpc: "10.0.0.1:2".parse().unwrap() };
    let revision = writer.write_volume(&volume_name("data"), &new_record()).unwrap();
    writer.register_node(&node_name("n1"), &VolumeNode { fabric: node.rpc, rpc: node.rpc }).unwrap();
    writer.register_node(&node_name("n1"), &node).unwrap();
    let contents = reader.read().unwrap();
    assert_eq!(contents.volumes[&volume_name("data")], VolumeRecord { revision, ..new_record() });
    assert_eq!(contents.nodes[&node_name("n1")], node);
}

fn check_conflicts(open: &dyn Fn() -> Box<dyn Catalog>) {
    let (catalog, name) = (open(), volume_name("data"));
    let first = catalog.write_volume(&name, &new_record()).unwrap();
    assert!(matches!(catalog.write_volume(&name, &new_record()), Err(CatalogError::Conflict(_))));
    let second = catalog.write_volume(&name, &VolumeRecord { revision: first, ..new_record() }).unwrap();
    assert!(second > first);
    assert!(matches!(catalog.remove_volume(&name, first), Err(CatalogError::Conflict(_))));
    catalog.remove_volume(&name, second).unwrap();
    assert!(matches!(catalog.remove_volume(&name, second), Err(CatalogError::Conflict(_))));
    assert!(catalog.read().unwrap().volumes.is_empty());
}

fn check_recreated_volume(open: &dyn Fn() -> Box<dyn Catalog>) {
    let (catalog, name) = (open(), volume_name("data"));
    let first = catalog.write_volume(&name, &new_record()).unwrap();
    catalog.remove_volume(&name, first).unwrap();
    assert!(catalog.write_volume(&name, &new_record()).unwrap() > first);
}

fn check_cancelled_change(open: &dyn Fn() -> Box<dyn Catalog>) {
    let (catalog, name) = (open(), volume_name("data"));
    let revision = catalog.write_volume(&name, &new_record()).unwrap();
    let record = update_volume(&*catalog, &name, |record| {
        record.term = 9;
        false
    });
    assert_eq!(record.unwrap().unwrap(), VolumeRecord { revision, ..new_record() });
}

fn check_unchanged_contents_are_shared(open: &dyn Fn() -> Box<dyn Catalog>) {
    let (writer, reader) = (open(), open());
    writer.write_volume(&volume_name("data"), &new_record()).unwrap();
    let first = reader.read().unwrap();
    assert!(Arc::ptr_eq(&first, &reader.read().unwrap()));
    writer.write_volume(&volume_name("more"), &new_record()).unwrap();
    assert_eq!(reader.read().unwrap().volumes.len(), 2);
}

/// A thread that waits for changes and then reads sees each of them, whenever the change happens.
fn check_waiting(open: &(dyn Fn() -> Box<dyn Catalog> + Sync)) {
    const CHANGES: u32 = 10;
    let name = volume_name("data");
    open().write_volume(&name, &new_record()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let reader = open();
            while reader.read().unwrap().volumes[&name].term < CHANGES {
                reader.wait_for_change();
            }
        });
        let writer = open();
        for term in 1..=CHANGES {
            let set_term = |record: &mut VolumeRecord| {
                record.term = term;
                true
            };
            update_volume(&*writer, &name, set_term).unwrap();
        }
    });
}

fn check_writers_in_a_race(open: &(dyn Fn() -> Box<dyn Catalog> + Sync)) {
    let name = volume_name("data");
    open().write_volume(&name, &new_record()).unwrap();
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let catalog = open();
                for _ in 0..CHANGES_PER_WRITER {
                    raise_term(&*catalog, &name);
                }
            });
        }
    });
    assert_eq!(open().read().unwrap().volumes[&name].term, WRITERS * CHANGES_PER_WRITER);
}

/// Raises the term of a volume by one.
pub(super) fn raise_term(catalog: &dyn Catalog, name: &VolumeName) {
    let raise = |record: &mut VolumeRecord| {
        record.term += 1;
        true
    };
    update_volume(catalog, name, raise).unwrap().unwrap();
}

fn check_readers_see_versions_in_order(open: &(dyn Fn() -> Box<dyn Catalog> + Sync)) {
    const VERSIONS: u32 = 100;
    let name = volume_name("data");
    open().write_volume(&name, &new_record()).unwrap();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let writer = open();
            for term in 1..=VERSIONS {
                let set_term = |record: &mut VolumeRecord| {
                    (record.term, record.epoch) = (term, u64::from(term));
                    true
                };
                update_volume(&*writer, &name, set_term).unwrap();
            }
            has_ended.store(true, Ordering::Release);
        });
        let reader = open();
        let mut last_term = 0;
        while !has_ended.load(Ordering::Acquire) {
            let record = reader.read().unwrap().volumes[&name].clone();
            assert!(record.term == 0 || u64::from(record.term) == record.epoch);
            assert!(record.term >= last_term, "{} after {last_term}", record.term);
            last_term = record.term;
        }
        assert_eq!(reader.read().unwrap().volumes[&name].term, VERSIONS);
    });
}
