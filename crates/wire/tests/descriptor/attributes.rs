//! Tests of attributes that few processes set, and of the version that lacks them.

use farfork_wire::descriptor::{
    Descriptor, FileStatus, LocalDescriptor, MemoryPolicy, OpenFileAttributes, PeerCredentials, PipeBuffer,
    ProcessAttributes, ThreadAttributes, UserDispatch, decode, encode,
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

pub(super) fn open_file_attributes() -> OpenFileAttributes {
    OpenFileAttributes {
        open_file: 2,
        status: Some(FileStatus { mode: 0o600, uid: 1000, gid: 1000 }),
        peer: Some(PeerCredentials { uid: 1, gid: 2, groups: vec![3] }),
        is_refused: true,
        sent_memory_bytes: 4,
        pipe_buffers: vec![PipeBuffer { length: 5, is_packet: true }],
    }
}

/// Earlier versions have the same body without the last lists.
#[test]
fn earlier_versions_are_decoded_without_their_lists() {
    let wanted = Descriptor { attributes: Vec::new(), open_file_attributes: Vec::new(), ..descriptor() };
    for (version, lists) in [(28, 3), (29, 1), (30, 0)] {
        let mut bytes = encode(&wanted).unwrap();
        assert_eq!(bytes.split_off(bytes.len() - lists), vec![0; lists], "the last lists are empty");
        bytes[8] = version;
        let body_bytes = bytes.len() as u64 - 24;
        bytes[16..24].copy_from_slice(&body_bytes.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(decode(&bytes).unwrap(), wanted);
    }
}

#[test]
fn attributes_of_files_are_found_and_checked() {
    let wanted = descriptor();
    let known = wanted.open_file_attributes[0].clone();
    assert_eq!(wanted.attributes_of_file(known.open_file), Some(&known));
    assert_eq!(wanted.attributes_of_file(0), None);
    let damaged = |change: fn(&mut OpenFileAttributes)| {
        let mut one = known.clone();
        change(&mut one);
        Descriptor { open_file_attributes: vec![one], ..wanted.clone() }.validate().is_err()
    };
    assert!(damaged(|one| one.open_file = 0), "a standard stream has none");
    assert!(damaged(|one| one.open_file = 1 << 20));
    assert!(damaged(|one| one.peer = Some(PeerCredentials { uid: u32::MAX, gid: 0, groups: Vec::new() })));
    assert!(damaged(|one| one.status = Some(FileStatus { mode: 0, uid: 0, gid: u32::MAX })));
    let twice = Descriptor { open_file_attributes: vec![known.clone(), known], ..wanted };
    assert!(twice.validate().is_err());
}

#[test]
fn attributes_follow_their_process() {
    let tree = descriptor();
    let member = tree.rooted_at(&tree.descendants[1]);
    assert_eq!(member.attributes, [ProcessAttributes { process: 0, ..attributes() }]);
    assert_eq!(member.thread_attributes(830).unwrap().io_priority, 0x4003);
    assert_eq!(tree.rooted_at(&tree.descendants[0]).attributes, []);
}
