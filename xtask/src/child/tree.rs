//! The descendants of a process, and process groups. `kill` handles a process that exceeded its limit: it records where the
//! threads of every descendant wait in the kernel, and kills the descendants.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::RunningProcess;

/// Name of the process of the end-to-end tests that removes everything after their runner was killed.
const JANITOR: &str = "test-janitor";

/// Longest time for the description of a process. Reading a file of `/proc` may block on a lock that a hanging process
/// holds.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(20);

/// Describes a process, all its descendants and its process group without the guard, and kills them, except the janitors of killed runners. A
/// process whose parent has ended is no descendant. It is not found if it has left the group, too.
pub(super) fn kill(root: RunningProcess) -> String {
    let mut tree = tree_of(root.pid);
    let others: Vec<u32> = members(&[root]).filter(|pid| !tree.contains(pid)).collect();
    tree.extend(others);
    tree.retain(|pid| !is_janitor(*pid));
    let (sender, receiver) = mpsc::channel();
    let pids = tree.clone();
    thread::spawn(move || pids.into_iter().map(describe).try_for_each(|text| sender.send(text)));
    let mut report = String::new();
    // Ends when the thread has described all processes, or when one description takes too long.
    while let Ok(text) = receiver.recv_timeout(DESCRIBE_LIMIT) {
        report.push_str(&text);
    }
    send("KILL", tree.iter().map(u32::to_string));
    report
}

/// Sends a signal to the groups of processes. Groups without processes are skipped.
pub(super) fn signal_groups(signal: &str, running: &[RunningProcess]) {
    send(signal, running.iter().map(|process| format!("-{}", process.group)));
}

/// Returns whether a process of the groups of these processes runs.
pub(super) fn is_any_group_alive(running: &[RunningProcess]) -> bool {
    members(running).next().is_some()
}

/// Lists the processes of the groups of these processes, without the guards. A zombie does not count: its parent may never wait
/// for it.
fn members(running: &[RunningProcess]) -> impl Iterator<Item = u32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let is_guard = |process: &RunningProcess| *pid == process.group && *pid != process.pid;
        let is_member = |stat: ProcessStat| {
            !stat.is_zombie && running.iter().any(|process| stat.group == process.group && !is_guard(process))
        };
        ProcessStat::read(*pid).is_some_and(is_member)
    })
}

/// The descendants that processes had at one time.
pub(super) struct DescendantSnapshot(Vec<(u32, ProcessStat)>);

impl DescendantSnapshot {
    pub(super) fn of(roots: &[RunningProcess]) -> Self {
        let pids = roots.iter().flat_map(|root| tree_of(root.pid)).filter(|pid| !is_janitor(*pid));
        Self(pids.filter_map(|pid| Some((pid, ProcessStat::read(pid)?))).collect())
    }

    /// Kills those that still run. A process with another start time is a different one with the same number.
    pub(super) fn kill(&self) {
        let is_same = |pid: u32, old: &ProcessStat| {
            ProcessStat::read(pid).is_some_and(|stat| stat.start_ticks == old.start_ticks && !stat.is_zombie)
        };
        let left = self.0.iter().filter(|(pid, old)| is_same(*pid, old));
        send("KILL", left.map(|(pid, _)| pid.to_string()));
    }
}

/// Fields of `/proc/PID/stat`.
struct ProcessStat {
    is_zombie: bool,
    group: u32,
    start_ticks: u64,
}

impl ProcessStat {
    /// Returns `None` if the process has ended.
    fn read(pid: u32) -> Option<Self> {
        let text = read(pid, "stat");
        // The name of the program is in parentheses, and may have any characters.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let is_zombie = matches!(fields.first(), Some(&"Z" | &"X"));
        Some(Self { is_zombie, group: number(5)?.try_into().ok()?, start_ticks: number(22)? })
    }
}

/// Sends a signal to processes, and to the groups with a minus sign. kill(1) skips those that have ended.
fn send(signal: &str, targets: impl Iterator<Item = String>) {
    let targets: Vec<String> = targets.collect();
    if !targets.is_empty() {
        let mut kill = Command::new("kill");
        let _ = kill.arg("-s").arg(signal).arg("--").args(targets).stderr(Stdio::null()).status();
    }
}

fn is_janitor(pid: u32) -> bool {
    read(pid, "comm").trim_end() == JANITOR
}

/// Returns the text of a file of `/proc/PID`; empty if the process has ended.
fn read(pid: u32, file: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()).into_owned()
}

/// Lists the process and its descendants, each after its parent.
fn tree_of(root: u32) -> Vec<u32> {
    let mut tree = vec![root];
    let mut index = 0;
    while index < tree.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", tree[index])).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            tree.extend(children.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
        index += 1;
    }
    tree
}

fn describe(pid: u32) -> String {
    let command = read(pid, "cmdline").replace('\0', " ");
    let mut text = format!("{pid}: {command}\n");
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let of = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned();
        let _ = writeln!(text, "    {}, in {}, call {}", of("comm"), of("wchan"), of("syscall"));
    }
    text
}
