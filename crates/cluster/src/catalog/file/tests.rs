//! Tests of `FileCatalog`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::catalog::{Durability, VolumeState, update_volume};

const WRITERS: u32 = 4;
const CHANGES_PER_WRITER: u32 = 25;

fn catalog_in(directory: &Path) -> FileCatalog {
    FileCatalog::new(&directory.join("catalog"))
}

fn volume_name(text: &str) -> VolumeName {
    VolumeName::new(text).unwrap()
}

fn node_name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn new_record() -> VolumeRecord {
    let record = VolumeRecord::new(7, vec![node_name("n1"), node_name("n2")], 64 << 20, Durability::Memory);
    VolumeRecord { state: VolumeState::Ready, ..record }
}

#[test]
fn a_missing_file_is_an_empty_catalog() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(*catalog_in(directory.path()).read().unwrap(), CatalogContents::default());
    assert!(update_volume(&catalog_in(directory.path()), &volume_name("data"), |_| true).unwrap().is_none());
}

#[test]
fn a_record_is_read_back_by_another_catalog() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, reader) = (catalog_in(directory.path()), catalog_in(directory.path()));
    let node = VolumeNode { fabric: "10.0.0.1:1".parse().unwrap(), rpc: "10.0.0.1:2".parse().unwrap() };
    let revision = writer.write_volume(&volume_name("data"), &new_record()).unwrap();
    writer.register_node(&node_name("n1"), &VolumeNode { fabric: node.rpc, rpc: node.rpc }).unwrap();
    writer.register_node(&node_name("n1"), &node).unwrap();
    let contents = reader.read().unwrap();
    assert_eq!(contents.volumes[&volume_name("data")], VolumeRecord { revision, ..new_record() });
    assert_eq!(contents.nodes[&node_name("n1")], node);
}

#[test]
fn a_record_of_an_earlier_revision_conflicts() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = catalog_in(directory.path());
    let name = volume_name("data");
    let first = catalog.write_volume(&name, &new_record()).unwrap();
    assert!(matches!(catalog.write_volume(&name, &new_record()), Err(CatalogError::Conflict(_))));
    let second = catalog.write_volume(&name, &VolumeRecord { revision: first, ..new_record() }).unwrap();
    assert!(second > first);
    assert!(matches!(catalog.remove_volume(&name, first), Err(CatalogError::Conflict(_))));
    catalog.remove_volume(&name, second).unwrap();
    assert!(catalog.read().unwrap().volumes.is_empty());
}

#[test]
fn a_recreated_volume_gets_a_higher_revision() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = catalog_in(directory.path());
    let name = volume_name("data");
    let first = catalog.write_volume(&name, &new_record()).unwrap();
    catalog.remove_volume(&name, first).unwrap();
    assert!(catalog.write_volume(&name, &new_record()).unwrap() > first);
}

#[test]
fn writers_in_a_race_lose_no_change() {
    let directory = tempfile::tempdir().unwrap();
    let name = volume_name("data");
    catalog_in(directory.path()).write_volume(&name, &new_record()).unwrap();
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                // Each thread has its own catalog, with its own open file descriptions, like another process.
                let catalog = catalog_in(directory.path());
                for _ in 0..CHANGES_PER_WRITER {
                    let raise = |record: &mut VolumeRecord| {
                        record.term += 1;
                        true
                    };
                    update_volume(&catalog, &name, raise).unwrap().unwrap();
                }
            });
        }
    });
    let contents = catalog_in(directory.path()).read().unwrap();
    assert_eq!(contents.volumes[&name].term, WRITERS * CHANGES_PER_WRITER);
}

#[test]
fn a_reader_sees_whole_versions_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let name = volume_name("data");
    let writer = catalog_in(directory.path());
    writer.write_volume(&name, &new_record()).unwrap();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for term in 1..200 {
                let set_term = |record: &mut VolumeRecord| {
                    (record.term, record.epoch) = (term, u64::from(term));
                    true
                };
                update_volume(&writer, &name, set_term).unwrap();
            }
            has_ended.store(true, Ordering::Release);
        });
        let reader = catalog_in(directory.path());
        let mut last_term = 0;
        while !has_ended.load(Ordering::Acquire) {
            let record = reader.read().unwrap().volumes[&name].clone();
            assert!(record.term == 0 || u64::from(record.term) == record.epoch);
            assert!(record.term >= last_term, "{} after {last_term}", record.term);
            last_term = record.term;
        }
        assert_eq!(reader.read().unwrap().volumes[&name].term, 199);
    });
}

#[test]
fn the_file_is_read_again_only_after_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, reader) = (catalog_in(directory.path()), catalog_in(directory.path()));
    writer.write_volume(&volume_name("data"), &new_record()).unwrap();
    let first = reader.read().unwrap();
    assert!(Arc::ptr_eq(&first, &reader.read().unwrap()));
    writer.write_volume(&volume_name("more"), &new_record()).unwrap();
    assert_eq!(reader.read().unwrap().volumes.len(), 2);
    let path = directory.path().join("catalog");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("more", "moved")).unwrap();
    assert!(reader.read().unwrap().volumes.contains_key(&volume_name("moved")));
    fs::remove_file(path).unwrap();
    assert!(reader.read().unwrap().volumes.is_empty());
}

#[test]
fn the_temporary_file_of_a_writer_that_died_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = catalog_in(directory.path());
    catalog.write_volume(&volume_name("data"), &new_record()).unwrap();
    fs::write(directory.path().join("catalog.new"), vec![b'{'; 1 << 20]).unwrap();
    assert_eq!(catalog_in(directory.path()).read().unwrap().volumes.len(), 1);
    catalog.write_volume(&volume_name("more"), &new_record()).unwrap();
    assert_eq!(catalog_in(directory.path()).read().unwrap().volumes.len(), 2);
}

#[test]
fn a_damaged_or_newer_file_is_refused_and_not_overwritten() {
    for text in ["", "{", "[]", r#"{"format": 2}"#, r#"{"format": 1, "last_revision": 0}"#] {
        let directory = tempfile::tempdir().unwrap();
        let catalog = catalog_in(directory.path());
        fs::write(directory.path().join("catalog"), text).unwrap();
        assert!(matches!(catalog.read(), Err(CatalogError::Format { .. })), "{text}");
        let written = catalog.write_volume(&volume_name("data"), &new_record());
        assert!(matches!(written, Err(CatalogError::Format { .. })), "{text}");
        assert_eq!(fs::read_to_string(directory.path().join("catalog")).unwrap(), text);
    }
}

#[test]
fn a_cancelled_change_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = catalog_in(directory.path());
    let name = volume_name("data");
    let revision = catalog.write_volume(&name, &new_record()).unwrap();
    let record = update_volume(&catalog, &name, |record| {
        record.term = 9;
        false
    });
    assert_eq!(record.unwrap().unwrap(), VolumeRecord { revision, ..new_record() });
}

#[test]
fn names_have_letters_digits_hyphens_and_underscores() {
    for text in ["data", "a", "A-b_9", &"x".repeat(48)] {
        assert_eq!(VolumeName::new(text).unwrap().as_str(), text);
    }
    for text in ["", ".", "..", "a/b", "a b", "ä", "a\0", &"x".repeat(49)] {
        assert!(matches!(VolumeName::new(text), Err(CatalogError::InvalidName(_))), "{text}");
    }
    assert!(serde_json::from_str::<VolumeName>(r#""../up""#).is_err());
}
