//! Tests of attributes that few processes set, and of the version that lacks them.

use farfork_wire::descriptor::{
    Descriptor, LocalDescriptor, MemoryPolicy, ProcessAttributes, ThreadAttributes, UserDispatch, decode, encode,
};

use super::descriptor;

pub(super) fn attributes() -> ProcessAttributes {
    ProcessAttributes {
        process: 2,
        merges_memory: true,
        core_filter: Some(0x7f),
        local_descriptors: vec![LocalDescriptor { number: 3, segment: 0x00cf_f300_0000_ffff }],
        threads: vec![ThreadAttributes {
            tid: 830,
            io_priority: 0x4003,
            mce_kill: Some(1),
            is_io_flusher: true,
            memory_policy: Some(MemoryPolicy { mode: 2, nodes: vec![1] }),
            user_dispatch: Some(UserDispatch { mode: 1, selector: 0x1000, offset: 0x3000, bytes: 0x1000 }),
        }],
    }
}

/// The version before has the same body without the last two lists.
#[test]
fn the_version_before_is_decoded_without_its_lists() {
    let wanted = Descriptor { attributes: Vec::new(), ..descriptor() };
    let mut bytes = encode(&wanted).unwrap();
    assert_eq!(bytes.split_off(bytes.len() - 2), [0, 0], "the last lists are empty");
    bytes[8] -= 1;
    let body_bytes = bytes.len() as u64 - 24;
    bytes[16..24].copy_from_slice(&body_bytes.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(decode(&bytes).unwrap(), wanted);
}

#[test]
fn attributes_follow_their_process() {
    let tree = descriptor();
    let member = tree.rooted_at(&tree.descendants[1]);
    assert_eq!(member.attributes, [ProcessAttributes { process: 0, ..attributes() }]);
    assert_eq!(member.thread_attributes(830).unwrap().io_priority, 0x4003);
    assert_eq!(tree.rooted_at(&tree.descendants[0]).attributes, []);
}
