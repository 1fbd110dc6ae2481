//! Parts of a descriptor, as a starting point for tests.

use farfork_wire::descriptor::{
    ControlledSession, DIGEST_BYTES, Extent, ExtentId, ExtentSource, FileIdentity, FileReference, FileStatus,
    FileVersion, MappedFile, MappedRange, MessageQueue, PageRun, PseudoTerminal, TERMINAL_SETTINGS_BYTES, VolumeMount,
};

fn identity(bytes: u64) -> FileIdentity {
    FileIdentity {
        bytes,
        device: 2,
        inode: 3,
        modified_ns: 4,
        changed_ns: 5,
        links: 1,
        status: FileStatus::default(),
        build_id: Some(vec![5; 20]),
        digest: Some([6; DIGEST_BYTES]),
    }
}

pub(super) fn mapped_file() -> MappedFile {
    let owner_range = MappedRange { process: 0, start: 0x3000, end: 0x4000 };
    MappedFile { path: "/lib/libc.so".into(), identity: identity(1), owner_range, has_written_pages: false }
}

pub(super) fn file_version() -> FileVersion {
    FileVersion { reference: FileReference::Executable(0), identity: identity(9), extent: Some(ExtentId(3)) }
}

pub(super) fn file_extent() -> Extent {
    Extent {
        source: ExtentSource::File { version: 0 },
        bytes: 0x1000,
        populated: vec![PageRun { first: 0, count: 1 }],
        inherited: Vec::new(),
    }
}

pub(super) fn message_queue() -> MessageQueue {
    let (status, messages) = (FileStatus::default(), vec![(1, b"text".to_vec())]);
    MessageQueue { key: 1, id: 2, status, bytes_max: 100, messages }
}

pub(super) fn terminal() -> PseudoTerminal {
    PseudoTerminal {
        number: 3,
        settings: vec![0; TERMINAL_SETTINGS_BYTES],
        window: [24, 80, 0, 0],
        is_locked: false,
        is_hung_up: false,
        is_packet_mode: true,
        is_exclusive: false,
        session: Some(ControlledSession { leader: 812, foreground: 812 }),
        status: Some(FileStatus { mode: 0o620, uid: 0, gid: 5 }),
    }
}

pub(super) fn volume_mount() -> VolumeMount {
    VolumeMount {
        volume: "data".into(),
        directory: "/".into(),
        mount_path: "/mnt/data".into(),
        paths: vec!["/mnt/data/a".into(), "/mnt/data/b".into()],
    }
}
