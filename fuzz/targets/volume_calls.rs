//! Calls between the offload processes of different nodes: requests, and the replies of another node. No bytes panic, an accepted
//! value encodes to bytes that decode to it, names and compressed chunks are valid, and a part of a tree reads only its own data.
#![no_main]

use farfork_cluster::catalog::VolumeName;
use farfork_rpc::TypedCall;
use farfork_volume::chain::calls::{
    AppendLog, CommitLog, CreateReplica, DescribeReplica, DigestData, DigestTree, DropReplica, FindPaths, FinishTerm,
    HasClient, HasMount, HoldTree, LendTree, OpenLog, PublishLog, ReadInodeDigests, ReadTree, ReleaseTree,
    ReleaseWriter, SaveLastCheck, StoreLog, ValidateLogs, decode_request,
};
use farfork_volume::chain::{AnnouncedRange, decode_chunks};
use farfork_volume::change::DataChange;
use farfork_volume::publish::TreePart;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

const RING_BYTES: u64 = 8 << 20;
/// The first byte of the input is the id of a call, plus this value for its reply.
const REPLY: u8 = 128;

/// Decodes a request or a reply of the call with this id.
macro_rules! decode_call {
    ($id:expr, $bytes:expr, $($call:ident),*) => {
        match $id {
            $(id if u32::from(id) == $call::ID => check_request::<$call>($bytes),)*
            $(id if u32::from(id) == $call::ID + u32::from(REPLY) => check_reply::<$call>($bytes),)*
            _ => {}
        }
    };
}

fuzz_target!(|input: &[u8]| {
    let Some((id, bytes)) = input.split_first() else { return };
    match *id {
        id if u32::from(id) == AppendLog::ID => {
            decode_request::<AppendLog>(bytes).iter().for_each(check_append);
        }
        id if u32::from(id) == StoreLog::ID => {
            decode_request::<StoreLog>(bytes).iter().for_each(|store| check_append(&store.append));
        }
        id if u32::from(id) == ReadTree::ID + u32::from(REPLY) => {
            postcard::from_bytes(bytes).iter().for_each(check_tree_part);
        }
        _ => {}
    }
    decode_call!(
        *id,
        bytes,
        AppendLog,
        CommitLog,
        CreateReplica,
        DescribeReplica,
        DigestData,
        DigestTree,
        DropReplica,
        FindPaths,
        FinishTerm,
        HasClient,
        HasMount,
        HoldTree,
        LendTree,
        OpenLog,
        PublishLog,
        ReadInodeDigests,
        ReadTree,
        ReleaseTree,
        ReleaseWriter,
        SaveLastCheck,
        StoreLog,
        ValidateLogs
    );
});

fn check_request<C>(bytes: &[u8])
where
    C: TypedCall<Request = C> + Serialize + DeserializeOwned,
{
    decode_request::<C>(bytes).iter().for_each(check_value);
}

fn check_reply<C: TypedCall<Reply: Serialize + DeserializeOwned>>(bytes: &[u8]) {
    // As `TypedCall` decodes the reply.
    postcard::from_bytes::<C::Reply>(bytes).iter().for_each(check_value);
}

fn check_value<T: Serialize + DeserializeOwned>(value: &T) {
    let encode = |value: &T| postcard::to_stdvec(value).expect("a decoded value can be encoded");
    let encoded = encode(value);
    let decoded = postcard::from_bytes::<T>(&encoded).expect("an encoded value can be decoded");
    assert_eq!(encode(&decoded), encoded);
}

/// The name is the name of a directory. Chunks are parts of the bytes that the call announces.
fn check_append(append: &AppendLog) {
    let name = &append.volume.name;
    assert_eq!(VolumeName::new(name.as_str()).as_ref().ok(), Some(name), "the name is a path");
    let announced = AnnouncedRange { positions: append.bytes.position..append.end.position, ring_bytes: RING_BYTES };
    for chunk in decode_chunks(&append.chunks, &announced).unwrap_or_default() {
        assert!(announced.positions.contains(&chunk.position));
    }
}

/// The changes of a part copy its data, and nothing else.
fn check_tree_part(part: &TreePart) {
    let changes = part.changes.inodes.values().flat_map(|inode| &inode.data);
    for change in changes {
        if let DataChange::Copy { bytes, log_position, .. } = *change {
            let data = part.data_at(log_position, bytes as usize);
            assert!(data.is_none_or(|data| data.len() == bytes as usize));
        }
    }
}
