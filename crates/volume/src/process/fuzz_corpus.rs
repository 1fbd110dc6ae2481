//! Seed inputs of the fuzz targets `volume_calls` and `volume_messages`. A format change invalidates all earlier inputs, and a
//! fuzzer finds no valid one by chance.

use std::fs;
use std::path::Path;

use farfork_cluster::catalog::{DamagedRecord, Durability, VolumeName, VolumeRecord};
use farfork_rpc::TypedCall;
use farfork_wire::NodeName;
use serde::Serialize;

use super::channel::write_message;
use super::control::{
    CheckProgress, CheckReport, ControlAnswer, ControlRequest, DifferenceSubject, NewVolume, ReplicaDifference,
    ReplicaReplacement, ReplicaStatus, VolumeCheck, VolumeList, VolumeStatus,
};
use super::decoders::{MessageKind, read_messages};
use super::message::{
    AttachedClient, ClientMessage, ForeignChange, OffloadMessage, PublishFailureKind, PublishRequest, WorkerAnswer,
};
use super::{LastCheck, LogStatus};
use crate::chain::calls::{
    AppendLog, DigestData, DigestTree, DigestedTree, HoldTree, LendTree, LentTree, LogBytes, OpenAnswer, OpenLog,
    OpenedLog, ReadTree, ReplicaDescription, SaveLastCheck, StoreAnswer, StoreLog, StoredLog, VolumeKey,
};
use crate::chain::{CompressedChunk, PathVersion, TreeSpace, encode_chunks};
use crate::change::{ChangeSet, DataChange, InodeChange};
use crate::log::LogPoint;
use crate::publish::{DataPart, PublishedMark, TreePart};
use crate::record::{EntryKey, EntryName, InodeNumber};

/// The environment variable that makes the test write the inputs instead of comparing them, after a change of the format.
const RENEW: &str = "FARFORK_RENEW_CORPUS";

const POINT: LogPoint = LogPoint { sequence: 5, position: 4096 };
const MARK: PublishedMark = PublishedMark { point: POINT, epoch: 2, inode_max: 9 };
const SPACE: TreeSpace = TreeSpace::Free(1 << 30);

fn key() -> VolumeKey {
    VolumeKey { name: VolumeName::new("data").unwrap(), id: 7 }
}

fn node() -> NodeName {
    NodeName::new("n1").unwrap()
}

fn changes() -> ChangeSet {
    let mut changes = ChangeSet::new(POINT, 2);
    let data = vec![
        DataChange::SetSize { bytes: 100 },
        DataChange::Copy { offset: 8, bytes: 16, log_position: 4 },
        DataChange::PunchHole { offset: 0, bytes: 8 },
    ];
    changes.inodes.insert(InodeNumber(9), InodeChange { data, ..InodeChange::default() });
    let name = EntryName::new(b"file").unwrap();
    changes.entries.insert(EntryKey { parent: InodeNumber::ROOT, name }, Some(InodeNumber(9)));
    changes
}

#[test]
fn fuzzing_begins_with_valid_messages() {
    for kind in MessageKind::ALL {
        let (name, messages) = messages_of(kind);
        let count = read_messages(kind, &messages.concat());
        assert_eq!(count, messages.len(), "{name} are valid");
        let number = MessageKind::ALL.iter().position(|other| *other == kind).unwrap();
        check(&format!("volume_messages/{name}"), &[&[number as u8][..], &messages.concat()].concat());
    }
}

fn messages_of(kind: MessageKind) -> (&'static str, Vec<Vec<u8>>) {
    match kind {
        MessageKind::Client => ("client", client_messages().iter().map(framed).collect()),
        MessageKind::Offload => ("offload", offload_messages().iter().map(framed).collect()),
        MessageKind::Publish => {
            let (volume, durability) = ("data".to_owned(), Durability::Disk);
            let request = PublishRequest { volume, volume_id: 7, durability, client: 1, changes: changes() };
            ("publish", vec![framed(&request)])
        }
        MessageKind::Worker => {
            let failed = WorkerAnswer::Failed { reason: "full".to_owned(), kind: PublishFailureKind::DiskFull };
            ("worker", [WorkerAnswer::Working, WorkerAnswer::Done(MARK), failed].iter().map(framed).collect())
        }
        MessageKind::Control => ("control", control_requests().iter().map(framed).collect()),
        MessageKind::ControlAnswer => ("control_answer", control_answers().iter().map(framed).collect()),
    }
}

fn client_messages() -> Vec<ClientMessage> {
    let (volume, applied) = ("data".to_owned(), vec![POINT, LogPoint::START]);
    vec![
        ClientMessage::Attach { volume: volume.clone() },
        ClientMessage::Reattach { volume, client: 1, term: Some(3), tree: 8, applied },
        ClientMessage::Loaded,
        ClientMessage::Commit(POINT),
        ClientMessage::CheckSpace(POINT),
        ClientMessage::Refresh { request: 4 },
    ]
}

fn offload_messages() -> Vec<OffloadMessage> {
    let log_path = "/store/data/log-1".into();
    let (marks, unlinked) = (vec![MARK], vec![InodeNumber(9)]);
    let attached = AttachedClient { client: 1, log_path, marks, unlinked, is_only_replica: true };
    vec![
        OffloadMessage::Attached(Box::new(attached)),
        OffloadMessage::Reattached(vec![MARK, MARK]),
        OffloadMessage::Refused("dropped".to_owned()),
        OffloadMessage::Published { mark: MARK, space: SPACE },
        OffloadMessage::Changed(Box::new(ForeignChange { client: 1, changes: changes() })),
        OffloadMessage::Committed(POINT),
        OffloadMessage::WriteGranted { term: 3, space: Some(SPACE) },
        OffloadMessage::Refreshed { request: 4 },
    ]
}

fn control_requests() -> Vec<ControlRequest> {
    let name = key().name;
    let durability = Durability::Memory;
    vec![
        ControlRequest::Create(NewVolume {
            name: name.clone(),
            replicas: vec![node()],
            log_bytes: 8 << 20,
            durability,
        }),
        ControlRequest::List,
        ControlRequest::Replace(ReplicaReplacement { name: name.clone(), old: node(), new: node() }),
        ControlRequest::Check(VolumeCheck { name: name.clone(), should_repair: true, good: Some(node()) }),
        ControlRequest::DropReachable(name),
    ]
}

fn control_answers() -> Vec<ControlAnswer> {
    let record = VolumeRecord::new(7, vec![node()], 8 << 20, Durability::Memory);
    let damaged = [(key().name, DamagedRecord { revision: 8, reason: "no chain".to_owned() })].into();
    let replicas = vec![ReplicaStatus::unknown(node(), "no answer".to_owned())];
    let subject = DifferenceSubject::Data { inode: 9, path: Some("file".to_owned()), range: 0..4096 };
    let differences = vec![ReplicaDifference { subject, damaged: vec![node()] }];
    vec![
        ControlAnswer::DoneExceptFiles("files remain".to_owned()),
        ControlAnswer::Volumes(VolumeList { volumes: [(key().name, record.clone())].into(), damaged }),
        ControlAnswer::Status(Box::new(VolumeStatus {
            name: key().name,
            record,
            replicas,
            catalog_failure: Some("no answer".to_owned()),
            catalog_alarm: Some("NOSPACE".to_owned()),
        })),
        ControlAnswer::Progress(CheckProgress { compared_bytes: 1, data_bytes: 2 }),
        ControlAnswer::Checked(Box::new(CheckReport { differences, ..CheckReport::default() })),
    ]
}

#[test]
fn fuzzing_begins_with_valid_calls() {
    let path = PathVersion { epoch: 4, term: 3, is_writing: true };
    let chunk = CompressedChunk { position: 4096, log_bytes: 4096, compressed_bytes: 512 };
    let bytes = LogBytes { region: 6, position: 4096, data: b"the end of a record".to_vec() };
    let end = LogPoint { sequence: 6, position: 8192 };
    let append = AppendLog {
        volume: key(),
        revision: 11,
        path,
        client: 1,
        end,
        is_urgent: true,
        needs_space: false,
        bytes,
        chunks: encode_chunks(&[chunk]),
    };
    let open = OpenLog { volume: key(), revision: 11, path, client: 1, published: MARK, stored: POINT };
    let store = StoreLog { append: append.clone(), has_more: true, wait_ms: 100 };
    let digests = DigestData { volume: key(), hold: 3, parts: vec![DataPart { inode: InodeNumber(9), index: 1 }] };
    let last = LastCheck { at_seconds: 1_700_000_000, differences: 1, repaired: vec![node()] };
    check_request("open_log", &open);
    check_request("append_log", &append);
    check_request("store_log", &store);
    check_request("lend_tree", &LendTree { volume: key(), epoch: 4, at_least: vec![POINT] });
    check_request("hold_tree", &HoldTree { volume: key(), epoch: 4, hold: 3, points: vec![POINT] });
    check_request("digest_data", &digests);
    check_request("save_last_check", &SaveLastCheck { volume: key(), last: last.clone() });

    let opened = OpenAnswer::Opened(OpenedLog { region: 6, token: Default::default(), stored: POINT });
    let stored = StoredLog { committed: POINT, published: POINT, space: Some(SPACE), is_complete: true };
    let part = TreePart { changes: changes(), data: vec![7; 20].into(), is_last: true };
    let unreadable = DigestedTree::Unreadable { reason: "no space".to_owned() };
    let description = ReplicaDescription {
        logs: vec![LogStatus::default()],
        last_check: Some(last),
        ..ReplicaDescription::default()
    };
    check_reply::<OpenLog>("open_log", &opened);
    check_reply::<StoreLog>("store_log", &StoreAnswer::Stored(stored));
    check_reply::<LendTree>("lend_tree", &LentTree { loan: 2, marks: vec![MARK] });
    check_reply::<ReadTree>("read_tree", &part);
    check_reply::<DigestTree>("digest_tree", &unreadable);
    check_reply::<crate::chain::calls::DescribeReplica>("describe_replica", &description);
}

fn check_request<C: TypedCall + Serialize>(name: &str, request: &C) {
    check_call(&format!("{name}_request"), C::ID, request);
}

fn check_reply<C: TypedCall>(name: &str, reply: &C::Reply)
where
    C::Reply: Serialize,
{
    /// `REPLY` of the target.
    const REPLY: u32 = 128;
    check_call(&format!("{name}_reply"), C::ID + REPLY, reply);
}

fn check_call(name: &str, id: u32, value: &impl Serialize) {
    let bytes = postcard::to_stdvec(value).unwrap();
    check(&format!("volume_calls/{name}"), &[&[u8::try_from(id).unwrap()][..], &bytes].concat());
}

fn framed(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_message(&mut bytes, message).unwrap();
    bytes
}

fn check(name: &str, wanted: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    if std::env::var_os(RENEW).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read(&path).unwrap_or_default();
    assert!(found == wanted, "fuzz/corpus/{name} has another format: run this test once with {RENEW}=1");
}
