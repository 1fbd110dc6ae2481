//! `kill_tree`: handles a step that exceeded its limit. It records where the threads of every process of the step wait in
//! the kernel, and kills the processes.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

/// Describes a process and all its descendants, and kills them. Processes that have left the tree are not found.
pub(super) fn kill_tree(root: u32) -> String {
    let tree = tree_of(root);
    let report = tree.iter().map(|pid| describe(*pid)).collect();
    let pids = tree.iter().map(u32::to_string);
    // kill(1) skips processes that have ended.
    let _ = Command::new("kill").arg("-KILL").args(pids).status();
    report
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
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
    let mut text = format!("{pid}: {command}\n");
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let of = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned();
        let _ = writeln!(text, "    {}, in {}, call {}", of("comm"), of("wchan"), of("syscall"));
    }
    text
}
