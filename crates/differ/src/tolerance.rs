//! `TOLERANCES`: the permitted differences between a parent and its child, each with its reason. A row that is no longer
//! needed hides the next real difference, so rows are as narrow as possible.

/// The condition on which a difference is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TolerancePolicy {
    /// The child may have any value.
    AnyValue,
    /// The value changes by itself, in both processes.
    Volatile,
    /// The values match these patterns, in which `*` matches any text.
    ChangesTo {
        /// Pattern of the parent's value. A missing field counts as empty text.
        parent: &'static str,
        /// Pattern of the child's value.
        child: &'static str,
    },
    /// An IPv4 address of another network becomes a loopback address.
    LoopbackAddress,
    /// The values are numbers with at most this distance.
    WithinDistance(u64),
    /// The values are numbers, and the child's has this additional bit. Octal numbers begin with 0.
    ExtraBit(u64),
    /// The descriptor is one of the child's own standard streams.
    StandardStream,
    /// The socket is connected.
    ConnectedSocket,
    /// The socket does not listen.
    NonListeningSocket,
    /// The socket is a Unix socket, and neither value is 0.
    UnixSocket,
    /// The parent's file still had the name by which it was opened or mapped.
    ExistingName,
    /// The parent has only write ends of the pipe.
    WriteOnlyPipe,
    /// The child is paused before its first instruction, and only the child has the field: it is state of the restorer.
    RestorerState,
    /// The child is paused before its first instruction, and gets the parent's value only at that instruction. Until then,
    /// its value matches this pattern. A missing field counts as empty text.
    UntilFirstStep {
        /// Pattern of the child's value.
        child: &'static str,
    },
    /// The values should be equal, but are not yet.
    KnownGap {
        /// Pattern of the parent's value. A missing field counts as empty text.
        parent: &'static str,
        /// Pattern of the child's value.
        child: &'static str,
        /// The first column of the row of `docs/process-state.md` that tells users.
        row: &'static str,
    },
}

impl TolerancePolicy {
    /// Whether the values should be equal but are not yet.
    pub fn is_known_gap(self) -> bool {
        matches!(self, Self::KnownGap { .. })
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Pattern of the field, without the process id; `*` matches any text.
    pub field: &'static str,
    /// The condition.
    pub policy: TolerancePolicy,
    /// The reason.
    pub reason: &'static str,
}

const fn any_value(field: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: TolerancePolicy::AnyValue, reason }
}

const fn volatile(field: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: TolerancePolicy::Volatile, reason }
}

const fn remaining_time(field: &'static str) -> Tolerance {
    Tolerance { field, policy: TolerancePolicy::WithinDistance(NEAR_MS), reason: "remaining time" }
}

const fn changes_to(field: &'static str, parent: &'static str, child: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: TolerancePolicy::ChangesTo { parent, child }, reason }
}

const fn until_first_step(field: &'static str, child: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: TolerancePolicy::UntilFirstStep { child }, reason }
}

const fn known_gap(
    field: &'static str,
    parent: &'static str,
    child: &'static str,
    row: &'static str,
    reason: &'static str,
) -> Tolerance {
    Tolerance { field, policy: TolerancePolicy::KnownGap { parent, child, row }, reason }
}

/// All permitted differences. The first matching row applies.
pub const TOLERANCES: &[Tolerance] = &[
    // The container.
    any_value("cgroup", "a child is in the control group of its container"),
    any_value("cpuset", "a child is in the control group of its container"),
    any_value("mountinfo", "a child has the mounts of its container"),
    any_value("ns/*", "a child has its container's namespaces; `farfork check` shows those that a parent may have"),
    any_value("timens_offsets", "a child's clocks continue from its parent's"),
    any_value("autogroup", "the kernel's own number of a session"),
    any_value("sessionid", "the audit session of the user who started the node"),
    any_value("loginuid", "the audit identity of the user who started the node"),
    changes_to("oom_score_adj", "*", "900", "a child ends before its seed does, when memory runs out"),
    changes_to("stat/session", "outside", "*", "a session whose leader is outside the tree is led by the child"),
    changes_to("status/NSsid", "outside", "*", "a session whose leader is outside the tree is led by the child"),
    changes_to("stat/pgrp", "outside", "*", "a process group whose leader is outside the tree is led by the child"),
    changes_to("status/NSpgid", "outside", "*", "a process group whose leader is outside the tree is led by the child"),
    changes_to("stat/ppid", "outside", "*", "a child's parent is its container's init"),
    changes_to("status/PPid", "outside", "*", "a child's parent is its container's init"),
    Tolerance {
        field: "fd/*",
        policy: TolerancePolicy::StandardStream,
        reason: "a child has standard streams of its own",
    },
    // The machine.
    volatile("arch_status", "the time since wide registers were last used"),
    volatile("stat/processor", "the CPU on which the thread last ran"),
    volatile("stat/starttime", "the start time of the process"),
    any_value("stat/flags", "the kernel's own flags: what a process did since its last exec(2)"),
    volatile("stat/state", "both are stopped to be read"),
    volatile("status/State", "both are stopped to be read"),
    volatile("status/TracerPid", "both are stopped to be read"),
    any_value("status/FDSize", "the size of the descriptor table, which grows as descriptors are opened"),
    any_value("status/Cpus_allowed*", "the CPUs of the child's node; `inspect` shows both values"),
    any_value("status/Mems_allowed*", "set by the control group"),
    volatile("status/SigQ", "a count for all processes of the user"),
    volatile("status/*_switches", "a counter of past activity"),
    volatile("stat/*flt", "a counter of past activity"),
    volatile("stat/*time", "a counter of past activity"),
    volatile("stat/delayacct_blkio_ticks", "a counter of past activity"),
    volatile("stat/kstkes*", "the current position on the stack"),
    volatile("stat/kstkeip", "the current position in the code"),
    changes_to("stat/exit_code", "19", "0", "a child runs even if SIGSTOP has stopped its parent"),
    changes_to(
        "fd/*/inode",
        "*",
        "* fd/0",
        "standard input of a child is /dev/null, and other descriptors may refer to it too",
    ),
    changes_to("fd/*/fcntl/F_GETFL", "4292610", "32770", REASON_NAMED_LATER),
    changes_to("fd/*/info/flags", "020300002", "0100002", REASON_NAMED_LATER),
    changes_to("fd/0/fcntl/F_GETFL", "32770", "32768", REASON_NULL_INPUT),
    changes_to("fd/0/info/flags", "0100002", "0100000", REASON_NULL_INPUT),
    // A child that is paused before its first instruction is in the restorer, which blocks all signals.
    Tolerance { field: "fd/*", policy: TolerancePolicy::RestorerState, reason: REASON_PAUSED },
    changes_to("thread/*/signal mask", "*", "fffffffffffbfeff", REASON_PAUSED),
    changes_to("status/SigBlk", "*", "fffffffffffbfeff", REASON_PAUSED),
    changes_to("stat/blocked", "*", "2147221247", REASON_PAUSED),
    until_first_step("status/Seccomp", "0", REASON_FILTERED),
    until_first_step("status/Seccomp_filters", "0", REASON_FILTERED),
    until_first_step("thread/*/filter *", "", REASON_FILTERED),
    until_first_step(
        "thread/*/value/sigaltstack",
        "000000000000000002000000000000000000000000000000",
        "a child that is paused before its first instruction gets its alternate stack with its registers",
    ),
    // Memory: pages are fetched when they are touched.
    volatile("stat/rss", "pages are fetched when they are touched"),
    volatile("status/Rss*", "pages are fetched when they are touched"),
    volatile("status/VmRSS", "pages are fetched when they are touched"),
    volatile("status/VmHWM", "pages are fetched when they are touched"),
    volatile("status/VmPTE", "pages are fetched when they are touched"),
    volatile("status/VmSwap", "pages are fetched when they are touched"),
    volatile("status/VmPeak", "the past maximum of the address space"),
    any_value("stat/vsize", "the restorer's own pages stay mapped"),
    any_value("status/VmSize", "the restorer's own pages stay mapped"),
    any_value("status/VmData", "the restorer's own pages stay mapped"),
    any_value("status/VmLib", "the restorer's own pages stay mapped"),
    any_value("status/VmExe", "the restorer's own pages stay mapped"),
    changes_to("memory/protection/1ffff*", "", "*", "the restorer's own pages stay mapped"),
    changes_to("memory/policy/1ffff*", "", "default", "the restorer's own pages stay mapped"),
    changes_to("memory/flag */1ffff*", "", "set*", "the restorer's own pages stay mapped"),
    changes_to("memory/file/1ffff*", "", "*", "the restorer's own pages stay mapped"),
    any_value("memory/flag ac/*", "overcommit accounting: a child's memory is limited by its control group"),
    any_value("memory/flag ht/*", "a child has hugetlbfs memory as ordinary memory, collapsed into huge pages"),
    any_value("memory/flag hg/*", "a child has hugetlbfs memory as ordinary memory, collapsed into huge pages"),
    any_value("memory/flag nr/*", "a child has hugetlbfs memory as ordinary memory, collapsed into huge pages"),
    any_value("memory/flag de/*", "set by the kernel: the mapping must not grow; no program sets it"),
    volatile("status/HugetlbPages", "pages are fetched when they are touched"),
    // Files seen through the container's root.
    any_value(
        "fd/*/ioctl/FS_IOC_*",
        "a child sees files through the overlay of its container, which has no such attributes",
    ),
    any_value("fd/*/ioctl/FIOQSIZE", "a child sees directories through the overlay of its container"),
    any_value("fd/*/fcntl/F_CREATED_QUERY", "the parent created the file, its child opens it"),
    changes_to(
        "fd/*/link",
        "*(deleted)",
        "/run/farfork/*(deleted)",
        "deleted directories are made where a child can remove them",
    ),
    changes_to(
        "cwd",
        "*(deleted)",
        "/run/farfork/*(deleted)",
        "deleted directories are made where a child can remove them",
    ),
    changes_to("fd/*/link", "*(deleted)", "/memfd:*(deleted)", "deleted files are memory files in a child"),
    changes_to("exe", "*(deleted)", "/memfd:*(deleted)", "deleted files are memory files in a child"),
    changes_to("memory/file/*", "*(deleted)*", "*/memfd:*(deleted)*", "deleted files are memory files in a child"),
    changes_to(
        "fd/*/fcntl/F_GET_SEALS",
        "errno 22",
        "1",
        "deleted files are memory files in a child, sealed against further seals",
    ),
    changes_to("fd/*/fcntl/F_GET_SEALS", "1", "errno 22", "POSIX shared memory is a file of the child's own /dev/shm"),
    changes_to("fd/*/link", "*(deleted)", "/*", "a file that lost the name of its open is opened by another name"),
    changes_to("memory/file/*", "shared *(deleted)*", "shared /*", "a file that lost a name is mapped by another name"),
    changes_to(
        "memory/file/*",
        "private *(deleted)*",
        "private /*",
        "a file that lost a name is mapped by another name",
    ),
    changes_to("fd/*/stat/mode", "20*", "20666", "a removed device node is opened at the device's own path"),
    changes_to("fd/*/link", "*(deleted)", "pipe of *", "deleted named pipes are pipes in a child"),
    Tolerance { field: "fd/*/has name", policy: TolerancePolicy::ExistingName, reason: REASON_UNAVAILABLE },
    Tolerance { field: "memory/has name/*", policy: TolerancePolicy::ExistingName, reason: REASON_UNAVAILABLE },
    changes_to("timers", "*tid.outside*", "*none/*", "a timer that signals a thread that has ended signals none"),
    changes_to("fd/*/stat/links", "1", "0", "files that other processes cannot open are deleted files in a child"),
    known_gap(
        "fd/*/stat/links",
        "*",
        "1",
        "number of names of an open file (st_nlink)",
        "a file that a child may write is its own copy; other names of the parent's file do not refer to it",
    ),
    changes_to("fd/*/link", "*", "*(deleted)", "files that other processes cannot open are deleted files in a child"),
    Tolerance {
        field: "fd/*/fcntl/F_GETFL",
        policy: TolerancePolicy::ExtraBit(O_LARGEFILE),
        reason: REASON_OPENED_BY_KERNEL,
    },
    Tolerance {
        field: "fd/*/info/flags",
        policy: TolerancePolicy::ExtraBit(O_LARGEFILE),
        reason: REASON_OPENED_BY_KERNEL,
    },
    Tolerance { field: "fd/*/fcntl/F_GETPIPE_SZ", policy: TolerancePolicy::WriteOnlyPipe, reason: REASON_UNREAD_PIPE },
    Tolerance { field: "fd/*/ioctl/FIONREAD", policy: TolerancePolicy::WriteOnlyPipe, reason: REASON_UNREAD_PIPE },
    // Remaining times.
    remaining_time("fd/*/info/it_value"),
    Tolerance {
        field: "fd/*/info/ticks",
        policy: TolerancePolicy::WithinDistance(1),
        reason: "the timer may expire while the other process is read",
    },
    remaining_time("interval timer/*/left"),
    remaining_time("posix timer/*/left"),
    // Sockets.
    changes_to("fd/*/option/SOL_SOCKET/SO_PEERCRED", "outside *", "*", "a process that a child does not have"),
    volatile("fd/*/option/SOL_SOCKET/SO_INCOMING_CPU", "the CPU at which the last packet arrived"),
    changes_to("fd/*/peer address", "*", "errno 107", "a connection to a process outside the tree is reset in a child"),
    Tolerance {
        field: "fd/*/peer address",
        policy: TolerancePolicy::LoopbackAddress,
        reason: "a connection over another network that its peer has shut down has loopback addresses",
    },
    changes_to(
        "fd/*/own address",
        "02*",
        "02*7f0000010000000000000000",
        "a connection that was reset has a loopback address",
    ),
    Tolerance {
        field: "fd/*/option/SOL_TCP/TCP_FASTOPEN",
        policy: TolerancePolicy::ConnectedSocket,
        reason: "an accepted connection shows its listener's queue length, and has no queue itself",
    },
    Tolerance {
        field: "fd/*/option/SOL_TCP/TCP_FASTOPEN_NO_COOKIE",
        policy: TolerancePolicy::ConnectedSocket,
        reason: "an accepted connection shows its listener's option, and cannot have one itself",
    },
    Tolerance {
        field: "fd/*/ioctl/SIOCOUTQ",
        policy: TolerancePolicy::UnixSocket,
        reason: "counts kernel memory for data queued at the other end, where a child may have it in other pieces",
    },
    changes_to("fd/*/option/SOL_IP/IP_MTU", "*", "", "a child's network has no route to the peer"),
    changes_to("fd/*/option/SOL_IPV6/IPV6_*MTU", "*", "", "a child's network has no route to the peer"),
    changes_to("fd/*/ioctl/FIONREAD", "*", "16", "a child reads IN_Q_OVERFLOW where events wait in an inotify queue"),
    changes_to(
        "memory/file/*",
        "shared *",
        "shared /memfd:*(deleted)*",
        "files that other processes cannot open are memory files in a child",
    ),
    // Known gaps.
    known_gap(
        "memory/file/*",
        "shared /SYSV*",
        "shared /SYSV00000000*",
        "key of a System V segment in the memory map",
        "the memory map of a child names a segment without its key",
    ),
    known_gap(
        "thread/*/value/PR_GET_THP_DISABLE",
        "3",
        "0",
        "a ban on huge pages with exceptions (PR_THP_DISABLE_EXCEPT_ADVISED)",
        "a ban with exceptions for advised memory is not carried",
    ),
    known_gap(
        "stat/exit_code",
        "2*",
        "19",
        "signal that has stopped a process",
        "in a child, a stopped process is reported as stopped by SIGSTOP, whatever the signal was",
    ),
    known_gap(
        "pending signals",
        "19 *",
        "",
        "signal that has stopped a process",
        "a SIGSTOP that is pending for a stopped process has stopped it in a child",
    ),
    known_gap(
        "status/ShdPnd",
        "0000000000040000",
        "0000000000000000",
        "signal that has stopped a process",
        "a SIGSTOP that is pending for a stopped process has stopped it in a child",
    ),
    known_gap(
        "fd/*/option/SOL_SOCKET/SO_PEERCRED",
        "0",
        "*",
        "SO_PEERCRED of connections without a recorded creator, or made by a descendant",
        "a child shows the creator of the other end even if the parent shows none",
    ),
    known_gap(
        "fd/*/peer user and group",
        "-1:-1",
        "*",
        "SO_PEERCRED of connections without a recorded creator, or made by a descendant",
        "a child shows the creator of the other end even if the parent shows none",
    ),
    known_gap(
        "fd/*/option/SOL_SOCKET/SO_PEERGROUPS",
        "",
        "",
        "SO_PEERCRED of connections without a recorded creator, or made by a descendant",
        "a child shows the creator of the other end even if the parent shows none",
    ),
    known_gap(
        "fd/*/fcntl/F_GETOWNER_UIDS",
        "0",
        "*",
        "user who has set the recipient of signals about a file (F_GETOWNER_UIDS)",
        "the owner of a file (F_SETOWN) is set with the current credentials of the process",
    ),
    known_gap(
        "memory/flag mw/*",
        "",
        "set at *",
        "whether a shared mapping may become writable",
        REASON_READ_ONLY_MEMORY,
    ),
    known_gap(
        "memory/policy/*",
        "*",
        "*",
        "memory policy of mappings (mbind(2), set_mempolicy_home_node(2))",
        "policies of mappings (mbind(2)) are not carried",
    ),
    known_gap(
        "fd/*/stat/modified",
        "*",
        "*",
        "st_mtime of POSIX and System V shared memory, and of files that only the process has",
        "times of memory files and deleted files are those of their copy",
    ),
    known_gap(
        "memory/file/*",
        "private *",
        "",
        "name of a private mapping in the memory map",
        "a private mapping that is writable, or was written, has no file in a child",
    ),
    known_gap(
        "fd/*/info/settime flags",
        "*",
        "*",
        "flags with which a timerfd was set",
        "a timer with an absolute time continues with its remaining time, even if the clock is set",
    ),
    known_gap(
        "fd/*/info/lock",
        "POSIX *",
        "POSIX *",
        "owner of POSIX locks of processes that share descriptors",
        "a lock of processes that share descriptors is shown with another owner among them",
    ),
    known_gap(
        "fd/*/option/SOL_SOCKET/SO_PEERCRED",
        "*",
        "*",
        "SO_PEERCRED of connections without a recorded creator, or made by a descendant",
        "a pair made by another process of the tree belongs to the process that restored it",
    ),
    known_gap(
        "fd/*/option/SOL_SOCKET/SO_SNDBUF",
        "*",
        "*",
        "options of TCP that have no effect on a connection, and its send buffer",
        "differs for TCP, which adapts the size to the connection",
    ),
    Tolerance {
        field: "fd/*/option/SOL_TCP/TCP_MAXSEG",
        policy: TolerancePolicy::NonListeningSocket,
        reason: "negotiated by the two ends of a connection; the child's network has other sizes",
    },
    known_gap(
        "fd/*/option/SOL_IP/IP_MULTICAST_*",
        "*",
        "*",
        "options of TCP that have no effect on a connection, and its send buffer",
        "for TCP, where they have no effect: not carried",
    ),
    known_gap(
        "fd/*/option/SOL_IPV6/IPV6_MULTICAST_*",
        "*",
        "*",
        "options of TCP that have no effect on a connection, and its send buffer",
        "for TCP, where they have no effect: not carried",
    ),
    known_gap(
        "fd/*/option/SOL_IPV6/IPV6_V6ONLY",
        "*",
        "*",
        "options of TCP that have no effect on a connection, and its send buffer",
        "for a connection to an IPv4 address: not carried",
    ),
];

/// open(2) sets this flag on a 64-bit kernel, where the flag has no effect.
const O_LARGEFILE: u64 = 0o100_000;

const REASON_OPENED_BY_KERNEL: &str = "a child opens by path what the kernel opened for the parent (TIOCGPTPEER)";

const REASON_NULL_INPUT: &str = "standard input of a child is /dev/null, which it can only read";

const REASON_NAMED_LATER: &str =
    "a file that was made without a name (O_TMPFILE) is opened by its later name, or is a memory file in a child";

const REASON_PAUSED: &str =
    "a child that is paused before its first instruction is in the restorer, which blocks all signals";

const REASON_UNREAD_PIPE: &str = "data in a pipe that the process does not read belongs to its reader outside the tree";

const REASON_READ_ONLY_MEMORY: &str = "a child has some files as memory files: a shared mapping of one can be made writable (mprotect(2)), even if the parent's file was opened for reading only";

const REASON_UNAVAILABLE: &str = "files that other processes cannot open are deleted files in a child";

const REASON_FILTERED: &str =
    "a child that is paused before its first instruction is in the restorer, whose calls its filters may forbid";

/// Tolerance for remaining times, in milliseconds: parent and child are read one after the other, on a machine that may be
/// busy.
const NEAR_MS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the page, each by its first column.
    fn documented_rows() -> Vec<String> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/process-state.md");
        let text = std::fs::read_to_string(page).expect("the page is in the repository");
        let first = |line: &str| Some(line.strip_prefix("| ")?.split(" | ").next()?.to_owned());
        text.lines().filter_map(first).collect()
    }

    #[test]
    fn every_known_gap_has_a_row_that_users_read() {
        let rows = documented_rows();
        let gaps = TOLERANCES.iter().filter_map(|tolerance| match tolerance.policy {
            TolerancePolicy::KnownGap { row, .. } => Some((tolerance.field, row)),
            _ => None,
        });
        let missing: Vec<_> = gaps.filter(|(_, row)| !rows.iter().any(|documented| documented == row)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
