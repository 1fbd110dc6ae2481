//! Texts for failures that the stub and the restorer report: the step, its object, and a remedy.
//! Also traces the phases of a restore from the timestamps in its report.

use farfork_sys::clock::realtime_ns;
use farfork_wire::Descriptor;
use rustix::io::Errno;

use super::plan_layout::MARK_COUNT;

/// The names of a restore's phases. Each ends at a timestamp of `enum restore_mark` in `restorer/plan.h`; the last
/// phase ends when the child is restored.
const PHASES: [&str; MARK_COUNT + 1] =
    ["child.wake", "child.fork", "child.enter", "child.map", "child.register", "child.open", "child.thread"];

/// Traces the phases of a child's restore, given the time of the request, the marks, and the time when the child was
/// restored.
pub(super) fn trace_phases(requested_ns: u64, marks_ns: &[u64; MARK_COUNT], restored_ns: u64) {
    let mut started_ns = requested_ns;
    for (phase, ended_ns) in PHASES.into_iter().zip(marks_ns.iter().copied().chain([restored_ns])) {
        tracing::debug!(target: "farfork::phase", phase, begun_ns = started_ns, ended_ns);
        started_ns = ended_ns;
    }
    tracing::debug!(target: "farfork::phase", phase = "child.report", begun_ns = started_ns, ended_ns = realtime_ns());
}

/// Descriptions of the restorer's steps, by the numbers of `enum step` in `restorer/plan.h`.
const STEPS: [(u32, &str); 70] = [
    (1, "mounting /proc in the container"),
    (2, "receiving the request"),
    (3, "setting the clocks of the time namespace"),
    (4, "forking the child with its pid"),
    (5, "moving descriptors out of the way"),
    (6, "mapping the restorer's region"),
    (7, "mapping the plan"),
    (8, "protecting the restorer's code"),
    (9, "moving vdso and vvar aside"),
    (10, "unmapping the stub"),
    (11, "opening a mapped file"),
    (12, "mapping"),
    (13, "advising on a mapping"),
    (14, "creating the userfaultfd"),
    (15, "registering memory with the userfaultfd"),
    (16, "sending the userfaultfd to the pager"),
    (17, "placing vdso and vvar"),
    (18, "opening the executable"),
    (19, "setting the addresses of the address space"),
    (20, "changing to the current directory"),
    (21, "opening a file"),
    (22, "seeking in a file"),
    (23, "placing a file descriptor"),
    (24, "filling an epoll"),
    (25, "setting a signal's action"),
    (26, "setting a resource limit"),
    (27, "starting a thread"),
    (28, "setting a thread's base registers or segment selectors"),
    (29, "registering restartable sequences"),
    (30, "setting a robust list"),
    (31, "setting a thread's scheduling"),
    (32, "setting credentials"),
    (33, "raising a pending signal"),
    (34, "waiting to be unpaused"),
    (35, "beginning a session"),
    (36, "keeping the userfaultfd open"),
    (37, "guarding pages"),
    (38, "making a timer"),
    (39, "making a timerfd"),
    (40, "making a signalfd"),
    (41, "opening a named pipe"),
    (42, "making an inotify"),
    (43, "making a pidfd"),
    (44, "taking a file's lock again"),
    (45, "setting the owner of a file's readiness signals"),
    (46, "registering for memory barriers"),
    (47, "setting the OOM score adjustment"),
    (48, "making a socket"),
    (49, "making shared memory"),
    (50, "making a terminal"),
    (51, "making a System V semaphore set or message queue"),
    (52, "forbidding huge pages"),
    (53, "waiting for the other processes of its tree"),
    (54, "joining a process group"),
    (55, "waiting for a child's status"),
    (56, "copying a descriptor from another process"),
    (57, "bridging to the vdso of this kernel"),
    (58, "entering the child's container"),
    (59, "forking it from a process of its container"),
    (60, "unmapping the zygote's region"),
    (61, "making /proc read-only"),
    (62, "entering another network"),
    (63, "entering the user namespace"),
    (64, "entering its own root"),
    (65, "raising the limit on open files"),
    (66, "making a session keyring"),
    (67, "copying written pages into a private file mapping"),
    (68, "installing the system call filter of an untrusted child"),
    (69, "setting an entry of the local descriptor table"),
    (70, "setting which memory a core dump has"),
];

/// Returns the description of a failed step.
pub(super) fn describe_step(step: u32) -> &'static str {
    let found = STEPS.iter().find(|(number, _)| *number == step);
    found.map_or("running a step that this release does not know", |(_, words)| words)
}

/// Returns the object of a failed step, if the report's detail identifies one.
pub(super) fn describe_step_object(step: u32, detail: u32, descriptor: &Descriptor) -> String {
    let index = detail as usize;
    match step {
        4 | 55 => format!("pid {detail}"),
        54 => format!("group {detail}"),
        11 => descriptor.mapped_files.get(index).map_or_else(String::new, |file| file.path.clone()),
        18 => descriptor.process.exe.clone(),
        20 => descriptor.process.cwd.clone(),
        64 => descriptor.process.root.clone().unwrap_or_default(),
        21..=24 | 39..=45 | 48 | 50 | 56 => format!("fd {detail}{}", describe_fd_path(detail, descriptor)),
        25 | 33 => format!("signal {detail}"),
        26 => format!("limit {detail}"),
        38 => format!("timer {detail}"),
        51 => format!("number {detail}"),
        65 => format!("{detail} of them"),
        27..=31 => format!("thread {detail}"),
        12 | 13 | 15 => format!("entry {detail} of the plan"),
        _ => String::new(),
    }
}

/// Returns the remedy for a failed step, if one is known.
pub(super) fn suggest_remedy(step: u32, error: Errno) -> Option<&'static str> {
    match (step, error) {
        (31, Errno::PERM) => Some(
            "the node's root needs CAP_SYS_NICE; a kernel with RT_GROUP_SCHED gives real-time threads of containers no time: start it with rt_group_sched=0, or give the parent's threads another policy (chrt --other) before a prepare",
        ),
        (65, _) => Some(
            "start the node with a higher limit (LimitNOFILE= of its unit, or `ulimit -Hn`), of fs.nr_open at most",
        ),
        _ => None,
    }
}

fn describe_fd_path(number: u32, descriptor: &Descriptor) -> String {
    use farfork_wire::descriptor::OpenFile::{Device, Directory, NamedPipe, Regular, Socket};
    let entry = descriptor.file_descriptors.iter().find(|entry| entry.number == number);
    let file = entry.and_then(|entry| descriptor.open_files.get(entry.open_file as usize));
    match file {
        Some(Regular { path, .. } | Directory { path, .. } | Device { path, .. } | NamedPipe { path, .. }) => {
            format!(" ({path})")
        }
        Some(Socket(socket)) => {
            socket.internet_bind_address().map_or_else(String::new, |address| format!(" ({address})"))
        }
        _ => String::new(),
    }
}
