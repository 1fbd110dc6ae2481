//! Process trees that change, that are counted, or that cannot be frozen or restored.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FileType, Mode};

use super::Subject;
use crate::harness::{Cluster, Parent, Seed, scratch, wait};

/// `check`, `prepare` and `seeds` show the number of processes of a tree.
pub(super) fn process_tree_counted(cluster: &Cluster) {
    let subject = Subject::start("process_tree");
    let pid = subject.parent.pid_text();
    let checked = cluster.first().json(&["check", &pid]);
    let shown = format!("{} processes with {} threads", checked["processes"], checked["threads"]);
    assert!(checked["processes"].as_u64() > Some(1), "{checked}");
    assert!(cluster.first().run(&["check", &pid]).stdout.contains(&shown), "{shown}");
    let seed = Seed::prepare(cluster.first(), &subject.parent);
    assert_eq!(seed.prepare_output["processes"], checked["processes"], "{}", seed.prepare_output);
    let listed = cluster.first().json(&["inspect", seed.id()]);
    assert_eq!(listed["processes"], checked["processes"], "{listed}");
    drop(seed);
    subject.check();
}

/// `check` finds no refusal in a tree whose processes end all the time, whichever process is ending.
pub(super) fn keep_changing(cluster: &Cluster) {
    const LOOKS: usize = 60;
    for name in ["process_loop", "program_loop"] {
        let subject = Subject::start(name);
        for _ in 0..LOOKS {
            let report = cluster.first().json(&["check", &subject.parent.pid_text()]);
            assert_eq!(report["refusals"], serde_json::json!([]), "{name}");
        }
        subject.check();
    }
}

/// `--freeze` is refused if processes of the tree share their address space (CLONE_VM): it cannot be frozen twice.
pub(super) fn freeze_refused(cluster: &Cluster) {
    let subject = Subject::start("shared_memory_of_processes");
    let pid = subject.parent.pid_text();
    cluster.first().run_failing(&["prepare", "--freeze", &pid]).require_mentions(&["CLONE_VM", "--freeze"]);
    subject.check();
}

/// A process of a tree is killed while it opens a file. The fork fails at once, not after the time limit of a restore.
pub(super) fn dies_during_restore(cluster: &Cluster) {
    let files = scratch::directory();
    let path = files.path().join("file");
    fs::write(&path, "").expect("a scratch directory can be written");
    // The shell prints `ready` when the other process has the file open.
    let script = r#"sleep 60 3< "$0" & until [ -e /proc/$!/fd/3 ]; do :; done; echo ready $$ 0; wait"#;
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(&path);
    let parent = Parent::start_command(&mut command);
    let sleeper = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.pid())).expect("it waits");
    let sleeper = sleeper.trim();
    let seed = Seed::prepare(cluster.first(), &parent);
    // No process opens the pipe for writing, so open(2) for reading blocks.
    fs::remove_file(&path).expect("it was there");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("mkfifo(3)");
    // Below a shared path, a child opens the file that is there at the fork.
    let shared = files.path().to_string_lossy();
    let fork = cluster.first().spawn(&["fork", seed.id(), "--detach", "--to", cluster.name(1), "--shared", &shared]);
    let opening = wait::wait_until("a process of the child opens the file", OPEN_LIMIT, || opens_as(sleeper));
    let process = farfork_sys::pidfd::open(opening).expect("it waits");
    farfork_sys::pidfd::send_signal(&process, 9).expect("it waits");
    let ended = wait::wait_with_output(fork, "farfork fork", OPEN_LIMIT);
    let process = farfork_sys::pidfd::open(sleeper.parse().expect("a number")).expect("it sleeps");
    farfork_sys::pidfd::send_signal(&process, 9).expect("it sleeps");
    let expected = format!("process {sleeper} of the child died while it was restored (wait status 0x9)");
    assert!(!ended.status.success() && ended.stderr.contains(&expected), "{}: {}", ended.status, ended.stderr);
}

/// Longest wait until a child is restored up to its files, on a busy machine.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// Finds the process that is in open(2) and has this id in a nested pid namespace.
fn opens_as(inner_id: &str) -> Option<i32> {
    const OPEN: &str = "2";
    let ids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.into_iter().find(|id| {
        let (status, call) = (format!("/proc/{id}/status"), format!("/proc/{id}/syscall"));
        let status = fs::read_to_string(status).unwrap_or_default();
        let known = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let known: Vec<&str> = known.split_whitespace().collect();
        let is_inside = known.len() > 1 && known.last() == Some(&inner_id);
        is_inside && fs::read_to_string(call).is_ok_and(|call| call.split(' ').next() == Some(OPEN))
    })
}
