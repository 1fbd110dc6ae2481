//! Tests of descriptors as hostile input: decoding any bytes returns a valid descriptor or an error, and never panics.

mod attributes;
mod corpus;
mod damaged;
mod limits;
mod lineage;
mod parts;
mod written;

use farfork_wire::Token;
use farfork_wire::descriptor::{
    AltStack, Backing, ControlledSession, Credentials, DecodeError, DescendantProcess, Descriptor, EagerBytes, Extent,
    ExtentId, ExtentSource, FileDescriptor, FileLock, FileLockKind, FileOwner, FileReference, FileStatus, FileTimes,
    InheritedRun, InotifyWatch, IntervalTimer, LAYERS_MAX, Layer, Mapping, MappingFlags, MessageSender, Mm, OpenFile,
    Origin, PROCESSES_MAX, PageRun, PosixTimer, Process, ProcessRelations, REGISTER_WORDS, RESTORED_NUMBER_MAX,
    RestartableCall, Scheduling, SeccompFilter, SemaphoreSet, SharedObject, SharedObjectKind, SignalAction, Socket,
    SocketMessage, SocketState, StandardStream, TERMINAL_NUMBER_MAX, Thread, TimerSpec, VDSO_BYTES_MAX, Zombie, decode,
    encode,
};

use attributes::{attributes, open_file_attributes};
use parts::{file_extent, file_version, mapped_file, message_queue, terminal, volume_mount};

fn credentials() -> Credentials {
    Credentials {
        uids: [0; 4],
        gids: [0; 4],
        groups: vec![4, 20],
        capabilities_inheritable: 0,
        capabilities_permitted: u64::MAX >> 23,
        capabilities_effective: 0,
        capabilities_bounding: u64::MAX >> 23,
        capabilities_ambient: 0,
        securebits: 0,
        no_new_privileges: false,
    }
}

fn thread(tid: u32) -> Thread {
    Thread {
        tid,
        name: b"worker".to_vec(),
        registers: vec![0x33; REGISTER_WORDS],
        xstate: vec![0; 832],
        signal_mask: 0,
        pending_signals: Vec::new(),
        alt_stack: AltStack::default(),
        robust_list_head: 0,
        robust_list_bytes: 24,
        clear_child_tid: 0,
        rseq: None,
        scheduling: Scheduling::default(),
        is_tsc_disabled: false,
        store_bypass: 4,
        indirect_branch: 8,
        personality: 0x4_0000,
        credentials: None,
        parent_death_signal: 0,
        timer_slack_ns: 50_000,
        cpus: vec![1],
        seccomp_filters: Vec::new(),
        interrupted_call: Some(RestartableCall { remaining_ns: 150_000_000, timeout_result: -11 }),
    }
}

fn process() -> Process {
    Process {
        pid: 812,
        is_group_leader: true,
        is_session_leader: false,
        exe: "/usr/bin/program".into(),
        exe_object: None,
        arguments: vec!["program".into()],
        cwd: "/".into(),
        deleted_cwd: None,
        root: None,
        umask: 0o22,
        dumpable: 1,
        oom_score_adj: 0,
        credentials: credentials(),
        limits: Vec::new(),
        signal_actions: Vec::new(),
        pending_signals: Vec::new(),
        mm: Mm::default(),
        interval_timers: vec![IntervalTimer { which: 2, time: TimerSpec { remaining_ns: 5, interval_ns: 0 } }],
        posix_timers: vec![posix_timer(3)],
        seccomp_filters: vec![SeccompFilter { flags: 0, instructions: vec![6, 0, 0, 0, 0, 0, 0xff, 0x7f] }],
        membarrier_registrations: 0,
        is_thp_disabled: false,
        is_subreaper: false,
    }
}

fn mapping(start: u64, end: u64, backing: Backing) -> Mapping {
    Mapping { start, end, protection: 3, flags: MappingFlags::default(), backing, guards: Vec::new() }
}

fn posix_timer(id: u32) -> PosixTimer {
    PosixTimer { id, clock: 1, value: u64::MAX, signal: 34, tid: 813, time: TimerSpec::default() }
}

fn socket(pair: u32, end: u32) -> OpenFile {
    let sender = Some(MessageSender { pid: 812, uid: 0, gid: 0 });
    let (options, received) = (Vec::new(), vec![SocketMessage { bytes: b"word".to_vec(), files: vec![0], sender }]);
    let state = SocketState::UnixPaired { pair, end, through: Vec::new(), address: Vec::new() };
    OpenFile::Socket(Socket {
        family: 1,
        kind: 1,
        protocol: 0,
        flags: 2,
        state,
        file: None,
        options,
        received_messages: received,
        shutdown_flags: 0,
    })
}

fn layer(seed: &str) -> Layer {
    let owner = "192.0.2.7:7001".parse().unwrap();
    Layer { seed: seed.parse().unwrap(), token: Token::from_bytes([7; 16]), owner }
}

fn origin() -> Origin {
    Origin {
        node: "n1".parse().unwrap(),
        root: Some("/srv/image".into()),
        kernel_release: "6.18".into(),
        parent_pid: 4711,
        parent_start_ticks: 815,
        boot_id: "b".into(),
        vdso_build_id: vec![1; 20],
        vdso_image: vec![0x7f; 64],
        xcr0: 7,
        xstate_bytes: 832,
        cpu_features: [1, 2, 3, 4, 5, 6, 7, 8, u32::MAX],
        monotonic_ns: 1,
        boottime_ns: 2,
    }
}

/// A descriptor with one of everything that `validate` checks.
fn descriptor() -> Descriptor {
    let template = |address, bytes, populated| Extent {
        source: ExtentSource::Template { process: 0, address },
        bytes,
        populated,
        inherited: Vec::new(),
    };
    let inherited = InheritedRun { first: 0, count: 1, layer: 1, extent: ExtentId(5), layer_page: 70 };
    Descriptor {
        origin: origin(),
        process: process(),
        threads: vec![thread(812), thread(813)],
        mappings: vec![
            mapping(0x1000, 0x3000, Backing::Anonymous { extent: Some(ExtentId(0)) }),
            mapping(0x3000, 0x4000, Backing::PrivateFile { file: 0, offset: 0, extent: ExtentId(1) }),
            mapping(0x8000, 0x9000, Backing::SharedMemory { object: 0, offset: 0 }),
        ],
        extents: vec![
            Extent { inherited: vec![inherited], ..template(0x1000, 0x2000, vec![PageRun { first: 1, count: 1 }]) },
            template(0x3000, 0x1000, vec![PageRun { first: 0, count: 1 }]),
            Extent {
                source: ExtentSource::SharedObject { object: 0 },
                bytes: 0x1000,
                populated: Vec::new(),
                inherited: Vec::new(),
            },
            file_extent(),
        ],
        layers: vec![layer("n1.s00f3a96c5d217e84"), layer("n2.s00f3a96c5d217e84")],
        mapped_files: vec![mapped_file()],
        shared_objects: vec![SharedObject {
            name: "m".into(),
            bytes: 100,
            seals: None,
            kind: SharedObjectKind::MemFd(FileStatus { mode: 0o600, uid: 1, gid: 2 }),
            times: FileTimes { accessed_ns: 1, modified_ns: -1 },
            extent: ExtentId(2),
        }],
        semaphore_sets: vec![SemaphoreSet { key: 1, id: 2, status: FileStatus::default(), values: vec![3] }],
        message_queues: vec![message_queue()],
        terminals: vec![terminal()],
        open_files: vec![
            OpenFile::StandardStream(StandardStream::Output),
            OpenFile::MemFd { object: 0, flags: 2, offset: 0 },
            socket(0, 0),
            socket(0, 1),
            OpenFile::Terminal { terminal: 0, path: "/dev/ptmx".into(), is_master: true, flags: 2 },
            OpenFile::Terminal { terminal: 0, path: "/dev/pts/3".into(), is_master: false, flags: 2 },
            OpenFile::Inotify {
                has_lost: true,
                flags: 0,
                watches: vec![InotifyWatch { number: 2, path: "/".into(), mask: 1 }],
            },
        ],
        file_versions: vec![file_version()],
        file_descriptors: vec![
            FileDescriptor { number: 1, open_file: 0, close_on_exec: false },
            FileDescriptor { number: 7, open_file: 1, close_on_exec: true },
        ],
        file_locks: vec![FileLock { number: 7, kind: FileLockKind::Posix, is_exclusive: true, start: 1, bytes: 0 }],
        file_owners: vec![FileOwner { number: 7, tid: 813, signal: 0 }],
        eager_bytes: vec![EagerBytes { address: 0x2000, bytes: vec![9; 0x1000] }],
        descendants: vec![member(820, 0), member(830, 1)],
        zombies: vec![zombie()],
        volumes: vec![volume_mount()],
        attributes: vec![attributes()],
        moved_epoll_targets: Vec::new(),
        open_file_attributes: vec![open_file_attributes()],
    }
}

fn zombie() -> Zombie {
    Zombie { pid: 840, relations: kinship(2), status: 0x700, name: b"gone".to_vec(), is_reaped: true }
}

fn kinship(parent: u32) -> ProcessRelations {
    ProcessRelations {
        parent,
        group: 812,
        session: 812,
        exit_signal: 17,
        shares_fs: parent > 0,
        shares_files: false,
        shares_memory: false,
        shares_handlers: false,
        is_session_orphan: false,
    }
}

/// Makes the second descendant share the address space of the first.
fn shares_memory(descriptor: &mut Descriptor) {
    descriptor.zombies.clear();
    descriptor.descendants[1].relations.shares_memory = true;
    assert_eq!(descriptor.validate(), Ok(()));
}

fn member(pid: u32, parent: u32) -> DescendantProcess {
    DescendantProcess {
        relations: kinship(parent),
        is_stopped: false,
        has_unreported_stop: false,
        process: Process { pid, posix_timers: Vec::new(), ..process() },
        threads: vec![thread(pid)],
        mappings: Vec::new(),
        file_descriptors: vec![FileDescriptor { number: 1, open_file: 0, close_on_exec: false }],
        file_locks: Vec::new(),
        file_owners: Vec::new(),
        eager_bytes: Vec::new(),
    }
}

#[test]
fn a_descriptor_is_decoded_as_encoded() {
    assert_eq!(decode(&encode(&descriptor()).unwrap()).unwrap(), descriptor());
}

#[test]
fn each_truncation_and_each_flipped_bit_is_detected() {
    let bytes = encode(&descriptor()).unwrap();
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "cut to {length} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged).is_err(), "bit {bit} flipped");
    }
}

#[test]
fn a_descriptor_of_another_version_is_named() {
    let mut bytes = encode(&descriptor()).unwrap();
    bytes[8] = 9;
    assert!(matches!(decode(&bytes), Err(DecodeError::Version { found: 9 })));
}

#[test]
fn an_inconsistent_descriptor_is_refused() {
    fn at(first: u64) -> InheritedRun {
        InheritedRun { first, count: 1, layer: 0, extent: ExtentId(0), layer_page: 0 }
    }
    let changes: &[(&str, Corruption)] = &[
        ("no threads", |d| d.threads.clear()),
        ("two threads with the same id", |d| d.threads[1].tid = 812),
        ("a leader with another id than the process", |d| d.process.pid = 1),
        ("too few registers", |d| d.threads[0].registers.truncate(26)),
        ("a mapping that ends before it begins", |d| d.mappings[0].end = 0x1000),
        ("mappings that overlap", |d| d.mappings[1].start = 0x2000),
        ("a mapping in the kernel's half", |d| d.mappings[2].end = 0x9000_0000_0000),
        ("a mapping of half a page", |d| d.mappings[2].end = 0x8800),
        ("an extent of another length", |d| d.extents[0].bytes = 0x1000),
        ("an extent that is missing", |d| d.mappings[0].backing = Backing::Anonymous { extent: Some(ExtentId(9)) }),
        ("pages outside of their extent", |d| d.extents[0].populated[0].count = 2),
        ("pages that overflow", |d| d.extents[0].populated[0].count = u64::MAX),
        ("an extent that overflows", |d| {
            d.extents[0].source = ExtentSource::Template { process: 0, address: u64::MAX - 0xfff }
        }),
        ("an inherited page that is also populated", |d| d.extents[0].inherited[0].first = 1),
        ("inherited pages that overlap populated ones", |d| d.extents[0].inherited[0].count = 2),
        ("inherited pages outside of their extent", |d| d.extents[1].inherited = vec![at(1)]),
        ("inherited pages that overflow", |d| d.extents[0].inherited[0].count = u64::MAX),
        ("no inherited page", |d| d.extents[0].inherited[0].count = 0),
        ("an inherited page twice", |d| d.extents[0].inherited.push(at(0))),
        ("a layer that is missing", |d| d.extents[0].inherited[0].layer = 2),
        ("an inherited page beyond the end of user space", |d| d.extents[0].inherited[0].layer_page = u64::MAX),
        ("an inherited page of the descriptor's extent", |d| d.extents[0].inherited[0].extent = ExtentId::DESCRIPTOR),
        ("one seed in two layers", |d| d.layers[1] = d.layers[0].clone()),
        ("too many layers", |d| {
            d.layers = (0..=LAYERS_MAX as u64).map(|number| layer(&format!("n1.s{number:016x}"))).collect();
        }),
        ("a file that is missing", |d| d.mapped_files.clear()),
        ("an object that is missing", |d| d.shared_objects.clear()),
        ("a file version of a standard stream", |d| d.file_versions[0].reference = FileReference::OpenFile(0)),
        ("a file version of another length", |d| d.file_versions[0].identity.bytes = 0x1001),
        ("an extent of a file version that is missing", |d| d.file_versions.clear()),
        ("a volume without a name", |d| d.volumes[0].volume.clear()),
        ("a volume that is mounted nowhere", |d| d.volumes[0].mount_path.clear()),
        ("paths of a volume that are out of order", |d| d.volumes[0].paths.reverse()),
        ("a path of a volume that is elsewhere", |d| d.volumes[0].mount_path = "/mnt/other".into()),
        ("descriptors out of order", |d| d.file_descriptors.reverse()),
        ("an open file that is missing", |d| d.open_files.truncate(1)),
        ("two sockets that wait for the reply to a checkpoint", |d| {
            d.open_files.extend([
                OpenFile::CheckpointSocket { is_caller: true, flags: 2 },
                OpenFile::CheckpointSocket { is_caller: true, flags: 2 },
            ]);
        }),
        ("eager bytes outside of the map", |d| d.eager_bytes[0].address = 0x7000),
        ("eager bytes over a file", |d| d.eager_bytes[0].address = 0x3000),
    ];
    require_refusal(changes);
}

#[test]
fn an_inconsistent_process_tree_is_refused() {
    let changes: &[(&str, Corruption)] = &[
        ("a process that precedes its parent", |d| d.descendants[0].relations.parent = 1),
        ("a zombie without a parent", |d| d.zombies[0].relations.parent = 3),
        ("a zombie with the id of a thread", |d| d.zombies[0].pid = 813),
        ("a process without a process group", |d| d.descendants[1].relations.group = 0),
        ("a session orphan without a zombie leader", |d| d.descendants[1].relations.is_session_orphan = true),
        ("a session orphan that shares its parent's descriptors", |d| {
            d.zombies[0].relations = ProcessRelations { session: 840, ..kinship(1) };
            d.descendants[1].relations =
                ProcessRelations { session: 840, shares_fs: false, is_session_orphan: true, ..kinship(1) };
            assert_eq!(d.validate(), Ok(()));
            d.descendants[1].file_descriptors.clear();
            d.descendants[1].relations.shares_files = true;
        }),
        ("a member of two tables of descriptors", |d| d.descendants[1].relations.shares_files = true),
        ("a zombie with descriptors", |d| d.zombies[0].relations.shares_files = true),
        ("a descendant's descriptor of a missing file", |d| d.descendants[1].file_descriptors[0].open_file = 9),
        ("an extent of a missing process", |d| d.extents[0].source = ExtentSource::Template { process: 3, address: 0 }),
        ("too many processes", |d| {
            d.zombies = (0..PROCESSES_MAX as u32).map(|n| Zombie { pid: 900 + n, ..d.zombies[0].clone() }).collect();
        }),
    ];
    require_refusal(changes);
}

#[test]
fn an_inconsistent_root_directory_is_refused() {
    require_refusal(&[
        ("a relative root directory of the first process", |d| {
            d.process.root = Some("/jail".into());
            assert_eq!(d.validate(), Ok(()));
            d.process.root = Some("jail".into());
        }),
        ("a shared root directory and another one", |d| d.descendants[1].process.root = Some("/jail".into())),
        ("a relative root directory of a descendant", |d| {
            d.descendants[1].relations.shares_fs = false;
            d.descendants[1].process.root = Some("/jail".into());
            assert_eq!(d.validate(), Ok(()));
            d.descendants[1].process.root = Some("jail".into());
        }),
    ]);
}

#[test]
fn inconsistent_shared_memory_is_refused() {
    require_refusal(&[
        ("a zombie with memory", |d| d.zombies[0].relations.shares_memory = true),
        ("a member of two address spaces", |d| {
            shares_memory(d);
            d.descendants[1].mappings = vec![d.mappings[2].clone()];
        }),
        ("shared signal handlers without shared memory", |d| {
            shares_memory(d);
            d.descendants[1].relations =
                ProcessRelations { shares_memory: false, shares_handlers: true, ..d.descendants[1].relations };
        }),
        ("shared signal handlers and other ones", |d| {
            shares_memory(d);
            d.descendants[1].relations.shares_handlers = true;
            assert_eq!(d.validate(), Ok(()));
            let action = SignalAction { signal: 10, handler: 1, flags: 0, restorer: 0, mask: 0 };
            d.descendants[1].process.signal_actions = vec![action];
        }),
        ("a session of neither the process nor its parent", |d| {
            shares_memory(d);
            d.descendants[0].relations.session = 820;
        }),
        ("a zombie whose parent shares memory", |d| {
            shares_memory(d);
            d.zombies = vec![zombie()];
        }),
        ("a process with its own memory whose parent shares memory", |d| {
            shares_memory(d);
            d.descendants[0].relations.shares_memory = true;
            assert_eq!(d.validate(), Ok(()));
            d.descendants[1].relations.shares_memory = false;
        }),
    ]);
}

#[test]
fn inconsistent_resources_are_refused() {
    require_refusal(&[
        ("guard pages outside of their mapping", |d| d.mappings[0].guards = vec![PageRun { first: 1, count: 2 }]),
        ("an interval timer that does not exist", |d| d.process.interval_timers[0].which = 3),
        ("a timer whose time exceeds the limit", |d| d.process.interval_timers[0].time.remaining_ns = u64::MAX),
        ("POSIX timers out of order", |d| d.process.posix_timers.push(posix_timer(2))),
        ("a POSIX timer with too high a number", |d| d.process.posix_timers[0].id = RESTORED_NUMBER_MAX + 1),
        ("a POSIX timer of a missing thread", |d| d.process.posix_timers[0].tid = 7),
        ("a filter that is missing", |d| d.threads[0].seccomp_filters.push(1)),
        ("a filter of half an instruction", |d| d.process.seccomp_filters[0].instructions.truncate(4)),
        ("a lock held by no descriptor", |d| d.file_locks[0].number = 8),
        ("a lock that overflows", |d| d.file_locks[0].bytes = u64::MAX),
        ("a file owner with an invalid signal", |d| d.file_owners[0].signal = 65),
        ("two sockets with the same end of a Unix pair", |d| d.open_files.push(socket(0, 1))),
        ("two sockets with the same end of a TCP pair", |d| {
            let state = || SocketState::TcpPaired { pair: 9, end: 1, address: vec![2; 16], peer: vec![2; 16] };
            for _ in 0..2 {
                let OpenFile::Socket(plain) = socket(1, 0) else { unreachable!("it is one") };
                d.open_files.push(OpenFile::Socket(Socket { state: state(), ..plain }));
            }
        }),
        ("a message with a missing file", |d| {
            let files = d.open_files.len() as u32;
            let OpenFile::Socket(mut socket) = socket(8, 0) else { unreachable!("it is one") };
            socket.received_messages[0].files = vec![files + 1];
            d.open_files.push(OpenFile::Socket(socket));
        }),
        ("files in a message of an internet socket", |d| {
            let OpenFile::Socket(socket) = socket(8, 0) else { unreachable!("it is one") };
            d.open_files.push(OpenFile::Socket(Socket { family: 2, ..socket }));
        }),
        ("a socket with a path and without a file", |d| {
            let state = SocketState::Listening { address: b"\x01\x00/socket".to_vec(), backlog: 1 };
            let OpenFile::Socket(socket) = socket(8, 0) else { unreachable!("it is one") };
            d.open_files.push(OpenFile::Socket(Socket { state, ..socket }));
        }),
        ("a relative root", |d| d.origin.root = Some("srv/image".into())),
        ("a vdso that is too large", |d| d.origin.vdso_image = vec![0; VDSO_BYTES_MAX + 1]),
        ("an end 2 of a socket pair", |d| d.open_files.push(socket(0, 2))),
        ("a semaphore set without a semaphore", |d| d.semaphore_sets[0].values.clear()),
        ("a message with an invalid type", |d| d.message_queues[0].messages[0].0 = 0),
        ("a message queue with an invalid id", |d| d.message_queues[0].id = u32::MAX),
        ("a terminal with too high a number", |d| d.terminals[0].number = TERMINAL_NUMBER_MAX + 1),
        ("two terminals with the same number", |d| d.terminals.push(terminal())),
        ("a terminal of a session without a leader", |d| {
            d.terminals[0].session = Some(ControlledSession { leader: 999_999, foreground: d.process.pid });
        }),
        ("a foreground group without processes", |d| {
            d.terminals[0].session = Some(ControlledSession { leader: d.process.pid, foreground: 999_999 });
        }),
        ("truncated terminal settings", |d| d.terminals[0].settings.truncate(9)),
        ("a terminal without a master", |d| {
            d.open_files.retain(|file| !matches!(file, OpenFile::Terminal { is_master: true, .. }));
        }),
        ("an end of a terminal with another path", |d| {
            let path = "/dev/pts/../kmsg".into();
            d.open_files.push(OpenFile::Terminal { terminal: 0, path, is_master: false, flags: 2 });
        }),
        ("an inotify watch with number 0", |d| {
            let watches = vec![InotifyWatch { number: 0, path: "/".into(), mask: 1 }];
            d.open_files.push(OpenFile::Inotify { has_lost: false, flags: 0, watches });
        }),
        ("shared memory with a path outside of /dev/shm", |d| {
            d.shared_objects[0].kind =
                SharedObjectKind::PosixShm { path: "/dev/shm/../../etc/shadow".into(), status: FileStatus::default() };
        }),
    ]);
}

/// Makes a descriptor invalid.
type Corruption = fn(&mut Descriptor);

fn require_refusal(changes: &[(&str, Corruption)]) {
    for (what, change) in changes {
        let mut wrong = descriptor();
        change(&mut wrong);
        assert!(matches!(decode(&encode(&wrong).unwrap()), Err(DecodeError::Invalid(_))), "{what} was accepted");
    }
}
