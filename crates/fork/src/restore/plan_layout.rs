//! The restore plan's structures and constants: the same as in `restorer/plan.h`, which documents the fields. The
//! assertions at the end compare sizes and offsets with the C compiler's, at compile time.

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::futex_words::FutexWords;

macro_rules! structures {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(super) struct $name { $(pub(super) $field: $type,)* }
        )*
    };
}

pub(super) const PLAN_MAGIC: u64 = 0x4e41_4c50_4b46_5246;
pub(super) const REQUEST_MAGIC: u32 = 0x5145_5246;
pub(super) const WAIT_MAGIC: u32 = 0x5449_4157;
pub(super) const NETWORK_MAGIC: u32 = 0x5754_454e;
pub(super) const SIGINFO_BYTES: usize = 128;
pub(super) const CODE_BYTES_MAX: u64 = 24576;
pub(super) const LEADER_STACK_BYTES: u64 = 16384;
pub(super) const THREAD_STACK_BYTES: u64 = 4096;

pub(super) const PLAN_PAUSED: u32 = 1;
pub(super) const PLAN_SESSION_LEADER: u32 = 2;
pub(super) const PLAN_GROUP_LEADER: u32 = 4;
pub(super) const PLAN_STOPPED: u32 = 8;
pub(super) const PLAN_SUBREAPER: u32 = 16;
pub(super) const PLAN_ZYGOTE: u32 = 32;
pub(super) const PLAN_ZYGOTE_COPY: u32 = 64;
pub(super) const PLAN_SHARES_MEMORY: u32 = 256;
pub(super) const PLAN_EXE_PASSED: u32 = 512;

pub(super) const CHILD_ZOMBIE: u32 = 1;
pub(super) const CHILD_AFTER_SESSION: u32 = 2;
pub(super) const CHILD_SESSION_LEADER: u32 = 4;
pub(super) const CHILD_GROUP_LEADER: u32 = 8;
pub(super) const CHILD_STOPPED: u32 = 16;
pub(super) const CHILD_STOP_UNREPORTED: u32 = 32;
pub(super) const CHILD_SHARES_DIRECTORY: u32 = 64;
pub(super) const CHILD_CORE_DUMPED: u32 = 128;
pub(super) const CHILD_REAPED: u32 = 256;
pub(super) const CHILD_SHARES_FILES: u32 = 512;
pub(super) const CHILD_REPARENTED: u32 = 1024;
pub(super) const CHILD_SHARES_MEMORY: u32 = 2048;
pub(super) const CHILD_SHARES_HANDLERS: u32 = 4096;

pub(super) const MAPPING_ANONYMOUS: u8 = 0;
pub(super) const MAPPING_FILE: u8 = 1;
pub(super) const MAPPING_PASSED: u8 = 2;

pub(super) const MAPPING_GROWS_DOWN: u16 = 1;
pub(super) const MAPPING_NO_RESERVE: u16 = 2;
pub(super) const MAPPING_HUGE_PAGE: u16 = 8;
pub(super) const MAPPING_NO_HUGE_PAGE: u16 = 16;
pub(super) const MAPPING_WIPE_ON_FORK: u16 = 32;
pub(super) const MAPPING_DONT_DUMP: u16 = 64;
pub(super) const MAPPING_SHARED: u16 = 128;
pub(super) const MAPPING_SEQUENTIAL: u16 = 256;
pub(super) const MAPPING_RANDOM: u16 = 512;
pub(super) const MAPPING_MERGEABLE: u16 = 1024;
pub(super) const MAPPING_DONT_FORK: u16 = 2048;
pub(super) const MAPPING_DROPPABLE: u16 = 4096;

pub(super) const DESCRIPTOR_OPEN: u32 = 0;
pub(super) const DESCRIPTOR_PASSED: u32 = 1;
pub(super) const DESCRIPTOR_DUPLICATE: u32 = 2;
pub(super) const DESCRIPTOR_EPOLL: u32 = 3;
pub(super) const DESCRIPTOR_FROM_PROCESS: u32 = 4;

pub(super) const CREDENTIALS_UNCHANGED: u32 = u32::MAX;

pub(super) const SYSCALL_ANY_RESULT: u64 = u64::MAX;
pub(super) const SYSCALL_MAY_FAIL: u64 = u64::MAX - 1;

/// Steps of the calls that `syscalls` compiles, from `enum step`.
pub(super) const STEP_CHANGE_DIRECTORY: u32 = 20;
pub(super) const STEP_OPEN_FILE: u32 = 21;
pub(super) const STEP_SCHEDULING: u32 = 31;
pub(super) const STEP_TIMER: u32 = 38;
pub(super) const STEP_TIMER_FD: u32 = 39;
pub(super) const STEP_SIGNAL_FD: u32 = 40;
pub(super) const STEP_NAMED_PIPE: u32 = 41;
pub(super) const STEP_INOTIFY: u32 = 42;
pub(super) const STEP_PIDFD: u32 = 43;
pub(super) const STEP_LOCK: u32 = 44;
pub(super) const STEP_FILE_OWNER: u32 = 45;
pub(super) const STEP_MEMORY_BARRIER: u32 = 46;
pub(super) const STEP_OOM_SCORE: u32 = 47;
pub(super) const STEP_SOCKET: u32 = 48;
pub(super) const STEP_SHARED_MEMORY: u32 = 49;
pub(super) const STEP_TERMINAL: u32 = 50;
pub(super) const STEP_SYSTEM_V: u32 = 51;
pub(super) const STEP_HUGE_PAGES: u32 = 52;
pub(super) const STEP_VDSO_BRIDGE: u32 = 57;
pub(super) const STEP_PROTECT_PROC: u32 = 61;
pub(super) const STEP_ENTER_ROOT: u32 = 64;
pub(super) const STEP_WRITTEN_PAGES: u32 = 67;
pub(super) const STEP_LOCAL_DESCRIPTOR: u32 = 69;
pub(super) const STEP_CORE_FILTER: u32 = 70;

/// Number of passed descriptors that are farfork's own: plan, pager's socket, status file.
pub(super) const PASSED_RESERVED_COUNT: u32 = 3;

pub(super) const REPORT_READY: u32 = 1;
pub(super) const REPORT_FAILED: u32 = 2;
pub(super) const REPORT_RESTORED: u32 = 3;
pub(super) const REPORT_CHILD_ENDED: u32 = 4;
pub(super) const REPORT_PROCESS_ENDED: u32 = 5;

pub(super) const COMMAND_START: u32 = 1;
pub(super) const COMMAND_START_AND_REPORT: u32 = 2;

/// Maximum size of the text for /proc/self/timens_offsets, in bytes.
pub(super) const TIME_OFFSETS_BYTES_MAX: usize = 112;

structures! {
    /// A table or text within the plan.
    struct PlanSpan {
        offset: u32,
        count: u32,
    }
    struct PlanMapping {
        start: u64,
        bytes: u64,
        offset: u64,
        source: u32,
        kind: u8,
        protection: u8,
        flags: u16,
    }
    struct PlanRange {
        start: u64,
        bytes: u64,
    }
    struct PlanSpecialMapping {
        from: u64,
        to: u64,
        bytes: u64,
    }
    struct PlanFile {
        path: u32,
        flags: u32,
    }
    struct PlanEagerBytes {
        address: u64,
        offset: u32,
        bytes: u32,
    }
    struct PlanFileDescriptor {
        number: u32,
        kind: u32,
        source: u32,
        flags: u32,
        offset: u64,
        close_on_exec: u32,
        reserved: u32,
    }
    struct PlanEpollEntry {
        epoll: u32,
        target: u32,
        source: u32,
        events: u32,
        data: u64,
    }
    struct PlanSyscall {
        arguments: [u64; 6],
        expected: u64,
        number: u32,
        pointer_mask: u32,
        step: u32,
        object: u32,
    }
    struct PlanSignalAction {
        signal: u64,
        handler: u64,
        flags: u64,
        restorer: u64,
        mask: u64,
    }
    struct PlanResourceLimit {
        resource: u64,
        soft: u64,
        hard: u64,
    }
    struct PlanCredentials {
        uids: [u32; 4],
        gids: [u32; 4],
        groups: PlanSpan,
        inheritable: u64,
        permitted: u64,
        effective: u64,
        bounding: u64,
        ambient: u64,
        securebits: u32,
        no_new_privileges: u32,
    }
    struct PlanFutexWords {
        words: [u64; 2],
        vector: u64,
        vector_entries: u64,
    }
    struct PlanThread {
        frame: u64,
        filters: u64,
        common_filters: u64,
        stack_top: u64,
        fs_base: u64,
        gs_base: u64,
        clear_child_tid: u64,
        robust_list: u64,
        robust_list_bytes: u64,
        rseq: u64,
        futex_words: PlanFutexWords,
        rseq_bytes: u32,
        rseq_signature: u32,
        timer_slack_ns: u64,
        tid: u32,
        parent_death_signal: u32,
        policy: u32,
        nice: i32,
        priority: u32,
        credentials: u32,
        sched_attr: u32,
        forbids_tsc: u32,
        store_bypass: u32,
        indirect_branch: u32,
        personality: u32,
        memory_policy: u32,
        selectors: [u16; 4],
        io_priority: u32,
        mce_kill: u32,
        is_io_flusher: u32,
        reserved: u32,
        pending_signals: PlanSpan,
        name: [u8; 16],
    }
    struct PlanChild {
        plan_offset: u64,
        pid: u32,
        exit_signal: u32,
        flags: u32,
        status: u32,
        group_or_session: u32,
        name: [u8; 16],
        reserved: u32,
    }
    struct PlanHeader {
        magic: u64,
        plan_bytes: u64,
        region_start: u64,
        region_bytes: u64,
        retained_bytes: u64,
        code_bytes: u64,
        frame_bytes: u64,
        plan_offset: u64,
        leader_stack_offset: u64,
        staging_offset: u64,
        scratch_offset: u64,
        barrier_offset: u64,
        process_index: u32,
        process_count: u32,
        process_group: u32,
        barrier_fd: u32,
        fd_table_owner: u32,
        fd_table_users: u32,
        flags: u32,
        controlling_terminal: u32,
        address_space_count: u32,
        plan_file: u32,
        user_namespace: u32,
        fd_base: u32,
        umask: u32,
        personality: u32,
        dumpable: u32,
        exe: u32,
        cwd: u32,
        frames: u32,
        mappings: PlanSpan,
        files: PlanSpan,
        special_mappings: PlanSpan,
        eager: PlanSpan,
        userfaultfd_ranges: PlanSpan,
        file_descriptors: PlanSpan,
        epolls: PlanSpan,
        signal_actions: PlanSpan,
        resource_limits: PlanSpan,
        credentials: PlanSpan,
        threads: PlanSpan,
        pending_signals: PlanSpan,
        guards: PlanSpan,
        syscalls_before_mappings: PlanSpan,
        syscalls_before_files: PlanSpan,
        syscalls_after_paths: PlanSpan,
        syscalls_before_start: PlanSpan,
        mm: [u64; 11],
        auxv: PlanSpan,
        children: PlanSpan,
        locked_ranges: PlanSpan,
        zygote_region: PlanRange,
        confinement_filters: u64,
    }
    /// A request of the daemon to a stub.
    struct StubRequest {
        magic: u32,
        passed_count: u32,
        pid: u32,
        intermediate_pid: u32,
        fd_limit: u32,
        time_offsets_bytes: u32,
        time_offsets: [u8; TIME_OFFSETS_BYTES_MAX],
    }
}

impl From<FutexWords> for PlanFutexWords {
    fn from(FutexWords { words, vector, vector_entries }: FutexWords) -> Self {
        Self { words, vector, vector_entries }
    }
}

/// Number of timestamps in the report of a restored child, `enum restore_mark`.
pub(super) const MARK_COUNT: usize = 6;

/// A report of the stub or the restorer.
#[derive(Debug, Clone, Copy, TryFromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct StubReport {
    pub(super) kind: u32,
    pub(super) error: i32,
    pub(super) step: u32,
    pub(super) detail: u32,
    pub(super) process_index: u32,
    pub(super) status: u32,
    pub(super) realtime_ns: u64,
    pub(super) marks_ns: [u64; MARK_COUNT],
}

/// Sizes and offsets from the C compiler.
mod c {
    include!(concat!(env!("OUT_DIR"), "/layout.rs"));
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(farfork_wire::descriptor::PROCESSES_MAX == c::PROCESSES_MAX);
    assert!(size_of::<PlanHeader>() == c::PLAN_BYTES);
    assert!(size_of::<PlanMapping>() == c::MAPPING_BYTES);
    assert!(size_of::<PlanRange>() == c::RANGE_BYTES);
    assert!(size_of::<PlanSpecialMapping>() == c::SPECIAL_BYTES);
    assert!(size_of::<PlanFile>() == c::FILE_BYTES);
    assert!(size_of::<PlanEagerBytes>() == c::EAGER_BYTES);
    assert!(size_of::<PlanFileDescriptor>() == c::DESCRIPTOR_BYTES);
    assert!(size_of::<PlanEpollEntry>() == c::EPOLL_BYTES);
    assert!(size_of::<PlanSignalAction>() == c::ACTION_BYTES);
    assert!(size_of::<PlanResourceLimit>() == c::LIMIT_BYTES);
    assert!(size_of::<PlanCredentials>() == c::CREDENTIALS_BYTES);
    assert!(size_of::<PlanThread>() == c::THREAD_BYTES);
    assert!(size_of::<PlanSyscall>() == c::SYSCALL_BYTES);
    assert!(size_of::<PlanChild>() == c::CHILD_BYTES);
    assert!(size_of::<StubRequest>() == c::REQUEST_BYTES);
    assert!(size_of::<StubReport>() == c::REPORT_BYTES);
    assert!(offset_of!(PlanHeader, flags) == c::PLAN_FLAGS);
    assert!(offset_of!(PlanHeader, mappings) == c::PLAN_MAPPINGS);
    assert!(offset_of!(PlanHeader, mm) == c::PLAN_MM);
    assert!(offset_of!(PlanHeader, auxv) == c::PLAN_AUXV);
    assert!(offset_of!(PlanThread, futex_words) == c::THREAD_FUTEX_WORDS);
    assert!(offset_of!(PlanThread, tid) == c::THREAD_TID);
    assert!(offset_of!(PlanThread, name) == c::THREAD_NAME);
    assert!(offset_of!(PlanCredentials, securebits) == c::CREDENTIALS_SECUREBITS);
    assert!(offset_of!(PlanFileDescriptor, offset) == c::DESCRIPTOR_OFFSET);
    assert!(offset_of!(PlanSyscall, step) == c::SYSCALL_STEP);
    assert!(offset_of!(PlanHeader, syscalls_before_start) == c::PLAN_SYSCALLS_BEFORE_START);
    assert!(offset_of!(PlanMapping, flags) == c::MAPPING_FLAGS);
    assert!(offset_of!(PlanHeader, children) == c::PLAN_CHILDREN);
    assert!(offset_of!(PlanHeader, locked_ranges) == c::PLAN_LOCKED_RANGES);
    assert!(offset_of!(PlanHeader, zygote_region) == c::PLAN_ZYGOTE_REGION);
    assert!(offset_of!(PlanHeader, confinement_filters) == c::PLAN_CONFINEMENT_FILTERS);
    assert!(offset_of!(PlanChild, name) == c::CHILD_NAME);
    assert!(offset_of!(StubReport, process_index) == c::REPORT_PROCESS_INDEX);
    assert!(offset_of!(StubReport, realtime_ns) == c::REPORT_REALTIME);
    assert!(offset_of!(StubReport, marks_ns) == c::REPORT_MARKS);
    assert!(MARK_COUNT == c::MARK_COUNT);
};
