//! Properties of change sets: folding loses nothing, and applying again changes nothing.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::ModelVolume;
use super::{ChangeSet, DataChange};
use crate::log::LogPoint;
use crate::record::{
    EntryName, FileKind, InodeAttributes, InodeNumber, RecordEffect, RecordShape, Timestamp, encode_body,
};
use crate::replay::ReplayedRecord;

/// Files are at most this large, so that changes overlap.
const FILE_BYTES: u64 = 64;
const RECORD_BYTES: u64 = 128;

fn attributes(size: u64, mode: u16) -> InodeAttributes {
    let time = Timestamp { seconds: 1, nanoseconds: 2 };
    let (accessed, modified, changed) = (time, time, time);
    InodeAttributes { kind: FileKind::Regular, mode, user: 1, group: 2, device: 0, size, accessed, modified, changed }
}

fn effect() -> impl Strategy<Value = RecordEffect> {
    let inode = || (2..5_u64).prop_map(InodeNumber);
    let name = || "[ab]".prop_map(|name| EntryName::new(name.as_bytes()).unwrap());
    prop_oneof![
        4 => (inode(), 0..FILE_BYTES, 1..16_u32)
            .prop_map(|(inode, offset, bytes)| RecordEffect::WriteData { inode, offset, bytes }),
        2 => (inode(), 0..FILE_BYTES, 1..16_u64)
            .prop_map(|(inode, offset, bytes)| RecordEffect::PunchHole { inode, offset, bytes }),
        2 => (inode(), 0..FILE_BYTES).prop_map(|(inode, bytes)| RecordEffect::SetSize { inode, bytes }),
        2 => (1..3_u64, name(), proptest::option::of(inode()))
            .prop_map(|(parent, name, inode)| RecordEffect::SetEntry { parent: InodeNumber(parent), name, inode }),
        1 => (inode(), any::<bool>(), 0..9_u8).prop_map(|(inode, is_set, byte)| RecordEffect::SetXattr {
            inode,
            name: b"user.a".to_vec().into(),
            value: is_set.then(|| vec![byte].into()),
        }),
        1 => inode().prop_map(|inode| RecordEffect::DropInode { inode }),
    ]
}

/// Adds the attributes with the new size, as a client logs them with each change of an inode. Skips effects on dropped
/// inodes, which no client uses.
fn with_attributes(effects: Vec<RecordEffect>) -> Vec<Vec<RecordEffect>> {
    let mut volume = ModelVolume::default();
    let mut mode = 0;
    let mut records = Vec::new();
    let mut dropped = BTreeSet::new();
    for effect in effects {
        let inode = effect.inode();
        if dropped.contains(&inode) {
            continue;
        }
        if let RecordEffect::DropInode { inode } = effect {
            dropped.insert(inode);
        }
        volume.apply(&effect, &data_of(&effect, 0));
        let mut record = vec![effect];
        if let (Some(state), false) = (volume.inodes.get(&inode), matches!(record[0], RecordEffect::SetEntry { .. })) {
            mode = (mode + 1) % 0o1000;
            let attributes = attributes(state.data.len() as u64, mode);
            record.push(RecordEffect::SetAttributes { inode, attributes });
        }
        records.push(record);
    }
    records
}

/// Bytes that identify their record.
fn data_of(effect: &RecordEffect, index: usize) -> Vec<u8> {
    let RecordEffect::WriteData { bytes, .. } = effect else { return Vec::new() };
    vec![index as u8 + 1; *bytes as usize]
}

fn load(position: u64, bytes: usize) -> Vec<u8> {
    vec![(position / RECORD_BYTES) as u8 + 1; bytes]
}

/// Whether two copies write the same byte.
fn has_overlapping_copies(changes: &[DataChange]) -> bool {
    let mut written = BTreeSet::new();
    changes.iter().any(|change| match *change {
        DataChange::Copy { offset, bytes, .. } => (offset..offset + u64::from(bytes)).any(|byte| !written.insert(byte)),
        _ => false,
    })
}

fn fold(records: &[Vec<RecordEffect>], first: usize) -> ChangeSet {
    let point = |index: usize| LogPoint { sequence: index as u64 + 1, position: index as u64 * RECORD_BYTES };
    let mut changes = ChangeSet::new(point(first), 1);
    for (index, effects) in records.iter().enumerate().skip(first) {
        let data_position = point(index).position;
        changes.fold(ReplayedRecord {
            point: point(index),
            effects: effects.clone(),
            data_position,
            epoch: 1,
            end: point(index + 1),
        });
    }
    changes
}

/// The states before the first record and after each record.
fn states(records: &[Vec<RecordEffect>]) -> Vec<ModelVolume> {
    let mut volume = ModelVolume::default();
    let mut states = vec![volume.clone()];
    for (index, effects) in records.iter().enumerate() {
        let data = data_of(&effects[0], index);
        effects.iter().for_each(|effect| volume.apply(effect, &data));
        states.push(volume.clone());
    }
    states
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_change_set_converges_over_every_state_that_a_crash_may_leave(
        effects in vec(effect(), 1..40),
        published in 0..40_usize,
    ) {
        let records = with_attributes(effects);
        let published = published.min(records.len());
        let states = states(&records);
        let changes = fold(&records, published);
        let last = states.last().unwrap();
        for state in &states[published..] {
            let mut volume = state.clone();
            volume.apply_change_set(&changes, load);
            prop_assert_eq!(&volume, last);
        }
    }

    #[test]
    fn a_coalesced_change_set_converges_as_well(effects in vec(effect(), 1..40), published in 0..40_usize) {
        let records = with_attributes(effects);
        let published = published.min(records.len());
        let states = states(&records);
        let mut changes = fold(&records, published);
        changes.coalesce();
        prop_assert!(changes.inodes.values().all(|change| !has_overlapping_copies(&change.data)));
        for state in &states[published..] {
            let mut volume = state.clone();
            volume.apply_change_set(&changes, load);
            prop_assert_eq!(Some(&volume), states.last());
        }
    }

    /// A message to the worker has room for this.
    #[test]
    fn a_change_set_has_at_most_half_more_bytes_than_its_records(effects in vec(effect(), 1..40)) {
        let records = with_attributes(effects);
        let mut changes = fold(&records, 0);
        changes.coalesce();
        let record_bytes = |effects: &Vec<RecordEffect>| {
            let body_bytes = encode_body(effects).len() as u32;
            RecordShape { body_bytes, data_bytes: data_of(&effects[0], 0).len() as u32 }.end(0)
        };
        let record_bytes: u64 = records.iter().map(record_bytes).sum();
        let change_bytes = postcard::to_stdvec(&changes).unwrap().len() as u64;
        prop_assert!(change_bytes <= record_bytes / 2 * 3, "{} bytes of {}", change_bytes, record_bytes);
    }

    #[test]
    fn two_change_sets_have_the_effect_of_one(effects in vec(effect(), 1..40), cut in 0..40_usize) {
        let records = with_attributes(effects);
        let cut = cut.min(records.len());
        let mut volume = ModelVolume::default();
        volume.apply_change_set(&fold(&records[..cut], 0), load);
        volume.apply_change_set(&fold(&records, cut), load);
        prop_assert_eq!(Some(volume), states(&records).pop());
    }
}
