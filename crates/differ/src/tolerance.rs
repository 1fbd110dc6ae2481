//! What may differ between a parent and its child, with the reason. A row that is not needed any more does no harm, but hides the
//! next difference: rows are as narrow as they can be.

/// Why a difference is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// A child has its own, whatever the parent's is.
    ChildsOwn,
    /// It changes by itself, in both.
    Moving,
    /// The parent's is so, the child's so: patterns, as of fields.
    Becomes {
        /// Pattern of the parent's value; of a field that it lacks, of the empty text.
        parent: &'static str,
        /// Pattern of the child's.
        child: &'static str,
    },
    /// Numbers that are at most so far apart.
    AtMost(u64),
    /// Numbers, octal ones behind a 0, of which the child's has this bit besides.
    GainsBit(u64),
    /// It is of a descriptor that is a standard stream, of which a child has its own.
    StandardStream,
    /// It is of a socket that is connected.
    Connected,
    /// It is of a socket that does not listen.
    NoListener,
    /// It is of a Unix socket, and not zero in one alone.
    UnixSocket,
    /// It is of a pipe of which the parent has ends for writing alone.
    UnreadPipe,
    /// It is the restorer's, in a child that is paused before its first step.
    Restorer,
    /// It comes with the first step of a child that is paused before it, which has this pattern meanwhile; of a field that it lacks, the empty text.
    WithFirstStep {
        /// Pattern of the child's value.
        child: &'static str,
    },
    /// It should be the same, and is not yet.
    KnownGap,
    /// The same where the values are these.
    KnownGapOf {
        /// Pattern of the parent's value; of a field that it lacks, of the empty text.
        parent: &'static str,
        /// Pattern of the child's.
        child: &'static str,
    },
}

impl Policy {
    /// Whether it should be the same, and is not yet.
    pub fn is_known_gap(self) -> bool {
        matches!(self, Self::KnownGap | Self::KnownGapOf { .. })
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Pattern of fields, behind the id of the process: `*` stands for any text.
    pub field: &'static str,
    /// What is permitted.
    pub policy: Policy,
    /// Why.
    pub reason: &'static str,
}

const fn own(field: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: Policy::ChildsOwn, reason }
}

const fn moving(field: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: Policy::Moving, reason }
}

const fn gap(field: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: Policy::KnownGap, reason }
}

const fn becomes(field: &'static str, parent: &'static str, child: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: Policy::Becomes { parent, child }, reason }
}

const fn with_first_step(field: &'static str, child: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: Policy::WithFirstStep { child }, reason }
}

const fn gap_of(field: &'static str, parent: &'static str, child: &'static str, reason: &'static str) -> Tolerance {
    Tolerance { field, policy: Policy::KnownGapOf { parent, child }, reason }
}

/// All that may differ; the first row that matches counts.
pub const TOLERANCES: &[Tolerance] = &[
    // The container.
    own("cgroup", "a child is in the control group of its container"),
    own("cpuset", "a child is in the control group of its container"),
    own("mountinfo", "a child has the mounts of its container"),
    own("ns/*", "a child has the namespaces of its container; which a parent may have is said by `check`"),
    own("timens_offsets", "a child's clocks go on from where its parent's were"),
    own("autogroup", "the kernel's own number of a session"),
    own("sessionid", "the audit session of who started the node"),
    own("loginuid", "the audit identity of who started the node"),
    becomes("oom_score_adj", "*", "900", "a child ends before its seed does, when memory runs out"),
    becomes("stat/session", "outside", "*", "a session that somebody outside leads is led by the child"),
    becomes("status/NSsid", "outside", "*", "a session that somebody outside leads is led by the child"),
    becomes("stat/pgrp", "outside", "*", "a group that somebody outside leads is led by the child"),
    becomes("status/NSpgid", "outside", "*", "a group that somebody outside leads is led by the child"),
    becomes("stat/ppid", "outside", "*", "a child's parent is its container's init"),
    becomes("status/PPid", "outside", "*", "a child's parent is its container's init"),
    Tolerance { field: "fd/*", policy: Policy::StandardStream, reason: "a child has standard streams of its own" },
    // The machine.
    moving("arch_status", "how long ago wide registers were used"),
    moving("stat/processor", "where it ran last"),
    moving("stat/starttime", "when it was born"),
    own("stat/flags", "the kernel's own flags: what a process did since its last exec(2)"),
    moving("stat/state", "both are stopped to be read"),
    moving("status/State", "both are stopped to be read"),
    moving("status/TracerPid", "both are stopped to be read"),
    own("status/FDSize", "how many descriptors the kernel has room for, which grows as they are opened"),
    own("status/Cpus_allowed*", "as far as the child's node has them; `inspect` tells of both"),
    own("status/Mems_allowed*", "the control group's"),
    moving("status/SigQ", "a count of all of the user's processes"),
    moving("status/*_switches", "a count of what was done"),
    moving("stat/*flt", "a count of what was done"),
    moving("stat/*time", "a count of what was done"),
    moving("stat/delayacct_blkio_ticks", "a count of what was done"),
    moving("stat/kstkes*", "where it is just now"),
    moving("stat/kstkeip", "where it is just now"),
    becomes("stat/exit_code", "19", "0", "a process that SIGSTOP has stopped has running children"),
    becomes("fd/*/inode", "*", "* fd/0", "standard input of a child is /dev/null, which others may be as well"),
    // A child that is paused before its first step is in the restorer, which blocks all signals.
    Tolerance { field: "fd/*", policy: Policy::Restorer, reason: PAUSED },
    becomes("thread/*/signal mask", "*", "fffffffffffbfeff", PAUSED),
    becomes("status/SigBlk", "*", "fffffffffffbfeff", PAUSED),
    becomes("stat/blocked", "*", "2147221247", PAUSED),
    with_first_step("status/Seccomp", "0", FILTERED),
    with_first_step("status/Seccomp_filters", "0", FILTERED),
    with_first_step("thread/*/filter *", "", FILTERED),
    with_first_step(
        "thread/*/value/sigaltstack",
        "000000000000000002000000000000000000000000000000",
        "a child that is paused before its first step gets its alternate stack with its registers",
    ),
    // Memory that comes when it is touched.
    moving("stat/rss", "pages come when they are touched"),
    moving("status/Rss*", "pages come when they are touched"),
    moving("status/VmRSS", "pages come when they are touched"),
    moving("status/VmHWM", "pages come when they are touched"),
    moving("status/VmPTE", "pages come when they are touched"),
    moving("status/VmSwap", "pages come when they are touched"),
    moving("status/VmPeak", "what it was once"),
    own("stat/vsize", "the restorer's own pages stay"),
    own("status/VmSize", "the restorer's own pages stay"),
    own("status/VmData", "the restorer's own pages stay"),
    own("status/VmLib", "the restorer's own pages stay"),
    own("status/VmExe", "the restorer's own pages stay"),
    becomes("memory/protection/1ffff*", "", "*", "the restorer's own pages stay"),
    becomes("memory/policy/1ffff*", "", "default", "the restorer's own pages stay"),
    becomes("memory/flag */1ffff*", "", "set*", "the restorer's own pages stay"),
    becomes("memory/file/1ffff*", "", "*", "the restorer's own pages stay"),
    own("memory/flag ac/*", "how much memory is promised: a child's is promised by its limit"),
    own("memory/flag ht/*", "a child has huge pages of hugetlbfs as other memory, put together to huge pages"),
    own("memory/flag hg/*", "a child has huge pages of hugetlbfs as other memory, put together to huge pages"),
    own("memory/flag nr/*", "a child has huge pages of hugetlbfs as other memory, put together to huge pages"),
    own("memory/flag de/*", "the kernel's own: the area must not grow, which nobody asks of another"),
    moving("status/HugetlbPages", "pages come when they are touched"),
    // Files seen through the container's root.
    own("fd/*/ioctl/FS_IOC_*", "a child sees files through the overlay of its container, which has no such attributes"),
    own("fd/*/ioctl/FIOQSIZE", "a child sees directories through the overlay of its container"),
    own("fd/*/fcntl/F_CREATED_QUERY", "the parent made the file, its child opens it"),
    becomes(
        "fd/*/link",
        "*(deleted)",
        "/run/farfork/*(deleted)",
        "deleted directories are made where a child can remove them",
    ),
    becomes(
        "cwd",
        "*(deleted)",
        "/run/farfork/*(deleted)",
        "deleted directories are made where a child can remove them",
    ),
    becomes("fd/*/link", "*(deleted)", "/memfd:*(deleted)", "deleted files are memory files in a child"),
    becomes("exe", "*(deleted)", "/memfd:*(deleted)", "deleted files are memory files in a child"),
    becomes("memory/file/*", "*(deleted)*", "*/memfd:*(deleted)*", "deleted files are memory files in a child"),
    becomes(
        "fd/*/fcntl/F_GET_SEALS",
        "errno 22",
        "1",
        "deleted files are memory files in a child, sealed against seals",
    ),
    becomes("fd/*/fcntl/F_GET_SEALS", "1", "errno 22", "POSIX shared memory is a file of the child's own /dev/shm"),
    becomes("fd/*/link", "*(deleted)", "pipe of *", "deleted named pipes are pipes in a child"),
    becomes("fd/*/stat/mode", "10*", "10600", "deleted named pipes are pipes in a child"),
    becomes("fd/*/stat/links", "1", "0", "files that others cannot have are deleted ones in a child"),
    gap_of(
        "fd/*/stat/links",
        "*",
        "1",
        "a file that a child may write to is its own copy, which the other names of the parent's file do not lead to",
    ),
    becomes("fd/*/link", "*", "*(deleted)", "files that others cannot have are deleted ones in a child"),
    Tolerance { field: "fd/*/fcntl/F_GETFL", policy: Policy::GainsBit(O_LARGEFILE), reason: OPENED },
    Tolerance { field: "fd/*/info/flags", policy: Policy::GainsBit(O_LARGEFILE), reason: OPENED },
    Tolerance { field: "fd/*/fcntl/F_GETPIPE_SZ", policy: Policy::UnreadPipe, reason: UNREAD_PIPE },
    Tolerance { field: "fd/*/ioctl/FIONREAD", policy: Policy::UnreadPipe, reason: UNREAD_PIPE },
    // Time that passes.
    Tolerance { field: "fd/*/info/it_value", policy: Policy::AtMost(NEAR_MS), reason: "time that is left" },
    Tolerance { field: "fd/*/info/ticks", policy: Policy::AtMost(1), reason: "it expires while the other is read" },
    Tolerance { field: "interval timer/*/left", policy: Policy::AtMost(NEAR_MS), reason: "time that is left" },
    Tolerance { field: "posix timer/*/left", policy: Policy::AtMost(NEAR_MS), reason: "time that is left" },
    // Sockets.
    becomes(
        "fd/*/option/SOL_SOCKET/SO_PEERCRED",
        "outside *",
        "*",
        "credentials of a process that a child does not have",
    ),
    moving("fd/*/option/SOL_SOCKET/SO_INCOMING_CPU", "where the last packet arrived"),
    becomes("fd/*/peer address", "*", "errno 107", "a connection to somebody else is reset in a child"),
    becomes(
        "fd/*/own address",
        "02*",
        "02*7f0000010000000000000000",
        "a connection that was reset has a loopback address",
    ),
    Tolerance {
        field: "fd/*/option/SOL_TCP/TCP_FASTOPEN",
        policy: Policy::Connected,
        reason: "a connection that was accepted tells its listener's queue, and has none",
    },
    Tolerance {
        field: "fd/*/ioctl/SIOCOUTQ",
        policy: Policy::UnixSocket,
        reason: "what waits at the other end, as the kernel's memory for it: messages may be in other pieces there",
    },
    becomes("fd/*/option/SOL_IP/IP_MTU", "*", "", "a child's network has no way there"),
    becomes("fd/*/option/SOL_IPV6/IPV6_*MTU", "*", "", "a child's network has no way there"),
    becomes("fd/*/ioctl/FIONREAD", "*", "16", "a child reads IN_Q_OVERFLOW where events wait in an inotify queue"),
    becomes(
        "memory/file/*",
        "shared *",
        "shared /memfd:*(deleted)*",
        "files that others cannot have are memory files in a child",
    ),
    // Known gaps.
    gap_of(
        "memory/file/*",
        "shared /SYSV*",
        "shared /SYSV00000000*",
        "the memory map of a child names a segment without its key",
    ),
    gap_of(
        "stat/exit_code",
        "2*",
        "19",
        "by whatever signal a process was stopped, its parent is told of SIGSTOP in a child",
    ),
    gap_of("pending signals", "19 *", "", "a SIGSTOP that waits for a stopped process has stopped it in a child"),
    gap_of(
        "status/ShdPnd",
        "0000000000040000",
        "0000000000000000",
        "a SIGSTOP that waits for a stopped process has stopped it in a child",
    ),
    gap_of(
        "fd/*/option/SOL_SOCKET/SO_PEERCRED",
        "0 -1:-1",
        "*",
        "who made the other end is told in a child where a parent is told of nobody",
    ),
    gap_of(
        "fd/*/option/SOL_SOCKET/SO_PEERGROUPS",
        "",
        "",
        "who made the other end is told in a child where a parent is told of nobody",
    ),
    gap_of(
        "fd/*/option/SOL_SOCKET/SO_PEERCRED",
        "* 0:*",
        "*",
        "a pair that a process made before it took another identity is of that identity",
    ),
    gap_of(
        "fd/*/option/SOL_SOCKET/SO_PEERGROUPS",
        "",
        "*",
        "a pair that a process made before it took another identity is of that identity",
    ),
    gap_of(
        "fd/*/fcntl/F_GETOWNER_UIDS",
        "0",
        "*",
        "who is told of a file (F_SETOWN) is chosen by the identity that a process has by now",
    ),
    gap_of(
        "fd/*/stat/owner",
        "0:*",
        "*",
        "a socket that a process made before it took another identity is of that identity",
    ),
    gap_of(
        "fd/*/stat/owner",
        "*",
        "0:0",
        "who made a pipe or another file without a name is not carried: root has it in a child",
    ),
    gap_of("thread/*/value/get_mempolicy", "*", "0", "memory policies (mbind(2), set_mempolicy(2)) are not carried"),
    gap_of("thread/*/ioprio", "*", "0", "priorities of input and output (ioprio_set(2)) are not carried"),
    gap_of("thread/*/value/PR_MCE_KILL_GET", "*", "2", "not carried: a child has the default"),
    gap_of("thread/*/value/PR_GET_MEMORY_MERGE", "1", "0", "not carried; areas that are mergeable are so in a child"),
    gap_of("memory/flag mw/*", "", "set at *", READ_ONLY_MEMORY),
    gap("memory/policy/*", "memory policies (mbind(2), set_mempolicy(2)) are not carried"),
    gap("fd/*/stat/modified", "times of memory files and deleted files are those of their copy"),
    gap_of(
        "memory/file/*",
        "private *",
        "",
        "a private mapping that is writable, or was written, has no file in a child",
    ),
    gap(
        "fd/*/info/settime flags",
        "a timer of an absolute time goes on with the time that was left, also when the clock is set",
    ),
    gap_of(
        "fd/*/info/lock",
        "POSIX *",
        "POSIX *",
        "a lock of processes that share descriptors is told to be of another of them",
    ),
    gap_of(
        "fd/*/option/SOL_SOCKET/SO_PEERCRED",
        "* 0:0",
        "* 0:0",
        "a pair that another process of the tree made is of who restored it",
    ),
    gap("fd/*/option/SOL_SOCKET/SO_SNDBUF", "of TCP, which fits it to the connection by itself"),
    Tolerance {
        field: "fd/*/option/SOL_TCP/TCP_MAXSEG",
        policy: Policy::NoListener,
        reason: "of a connection, what its two ends have agreed upon: the child's network has other sizes",
    },
    gap("fd/*/option/SOL_IP/IP_MULTICAST_*", "of TCP, where they mean nothing: not carried"),
    gap("fd/*/option/SOL_IPV6/IPV6_MULTICAST_*", "of TCP, where they mean nothing: not carried"),
    gap("fd/*/option/SOL_IPV6/IPV6_V6ONLY", "of a connection to an IPv4 address: not carried"),
];

/// open(2) sets it on a 64-bit kernel, where it means nothing.
const O_LARGEFILE: u64 = 0o100_000;

const OPENED: &str = "what the kernel opened for the parent (TIOCGPTPEER), its child opens by path";

const PAUSED: &str = "a child that is paused before its first step is in the restorer, which blocks all signals";

const UNREAD_PIPE: &str = "what was written to a pipe that the process does not read is whoever's who reads outside";

const READ_ONLY_MEMORY: &str = "a shared mapping of a file that is a memory file in a child, and was opened for reading alone, can be made writable there (mprotect(2))";

const FILTERED: &str =
    "a child that is paused before its first step is in the restorer, whose calls its filters need not allow";

/// Times that are left were asked for one after the other, in milliseconds, on a machine that may be busy.
const NEAR_MS: u64 = 60_000;
