//! `kill_tree`: handles a step that exceeded its limit. It records where the threads of every process of the step wait in
//! the kernel, and kills the processes.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Name of the process of the end-to-end tests that removes everything after their runner was killed.
const JANITOR: &str = "test-janitor";

/// Longest time for the description of a process. Reading a file of `/proc` may block on a lock that a hanging process
/// holds.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(20);

/// Describes a process and all its descendants, and kills them, except the janitors of killed runners. Processes that have
/// left the tree are not found.
pub(super) fn kill_tree(root: u32) -> String {
    let mut tree = tree_of(root);
    tree.retain(|pid| read(*pid, "comm").trim_end() != JANITOR);
    let (sender, receiver) = mpsc::channel();
    let pids = tree.clone();
    thread::spawn(move || pids.into_iter().map(describe).try_for_each(|text| sender.send(text)));
    let mut report = String::new();
    // Ends when the thread has described all processes, or when one description takes too long.
    while let Ok(text) = receiver.recv_timeout(DESCRIBE_LIMIT) {
        report.push_str(&text);
    }
    // kill(1) skips processes that have ended.
    let _ = Command::new("kill").arg("-KILL").args(tree.iter().map(u32::to_string)).status();
    report
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
