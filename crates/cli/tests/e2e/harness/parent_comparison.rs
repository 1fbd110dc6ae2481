//! Compares a child with its parent by `farfork inspect CHILD --against PID`. A difference that the differ's table does
//! not tolerate fails the test.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::farfork::{Farfork, fail_or_time_out};
use super::seed::{Seed, StartedChild};
use super::wait;

/// Time for which a comparison is repeated. A difference that is still there at the end counts.
const COMPARISON_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of seeds of a program. If children of all of them differ, the test fails.
const SEEDS_MAX: usize = 3;

/// Longest wait until a process has stopped, on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Requires that a running child equals its parent.
pub(crate) fn require_same_as_parent(farfork: &Farfork, child: &StartedChild, parent: i32) {
    let said = comparison(farfork, &child.id, parent);
    assert!(said["differences_count"] == 0, "{}", differences_text(&said, parent));
}

/// Compares until there is no difference, or the time limit expires. Returns the output of `inspect --against`.
fn comparison(farfork: &Farfork, child: &str, parent: i32) -> Value {
    let (pid, mut said) = (parent.to_string(), Value::Null);
    // When the fork is answered, a process of a tree may still execute the last steps of its restore.
    wait::poll_within(COMPARISON_LIMIT, || {
        said = farfork.json_ignoring_status(&["inspect", child, "--against", &pid]);
        (said["differences_count"] == 0).then_some(())
    });
    said
}

fn differences_text(said: &Value, parent: i32) -> String {
    let differences =
        said["differences"].as_array().unwrap_or_else(|| fail_or_time_out(format!("no comparison: {said}")));
    let text = |difference: &Value| {
        format!("  {}: parent {}, child {}\n", difference["field"], difference["parent"], difference["child"])
    };
    let (child, count, fields) = (&said["child"], &said["differences_count"], &said["fields"]);
    let list: String = differences.iter().map(text).collect();
    format!("{child} differs from its parent {parent} in {count} of {fields} fields:\n{list}")
}

/// Describes how a child differs from its parent.
pub(crate) fn compare_with_parent(farfork: &Farfork, child: &str, parent: i32) -> Result<(), String> {
    let said = comparison(farfork, child, parent);
    if said["differences_count"] == 0 { Ok(()) } else { Err(differences_text(&said, parent)) }
}

/// Requires that a new child equals its parent. Then ends the child.
pub(crate) fn require_forked_child_same(farfork: &Farfork, seed: &Seed, node: &str, parent: i32) {
    let said = forked_comparison(farfork, seed, &["--to", node], parent);
    assert!(said["differences_count"] == 0, "{}", differences_text(&said, parent));
}

/// Prepares an idle program, and requires that a new child equals it. A difference may be due to a program that was not
/// idle at prepare. Then the program is prepared again.
pub(crate) fn require_fresh_child_same(farfork: &Farfork, node: &str, parent: i32) {
    let mut said = Value::Null;
    for _ in 0..SEEDS_MAX {
        let seed = Seed::prepare_process(farfork, &parent.to_string(), &[]);
        said = forked_comparison(farfork, &seed, &["--to", node], parent);
        if said["differences_count"] == 0 {
            return;
        }
    }
    panic!("{}", differences_text(&said, parent));
}

fn forked_comparison(farfork: &Farfork, seed: &Seed, options: &[&str], parent: i32) -> Value {
    let child = seed.fork_idle(1, options).remove(0);
    let said = comparison(farfork, &child.id, parent);
    farfork.json(&["kill", "--signal", "KILL", &child.id]);
    said
}

/// Requires that a child equals an active parent. SIGSTOP stops the parent and its descendants during prepare
/// and comparison. The child is paused before its first instruction.
pub(crate) fn require_stopped_child_same(farfork: &Farfork, node: &str, parent: i32) {
    let stopped = stop_tree(parent);
    let seed = Seed::prepare_process(farfork, &parent.to_string(), &[]);
    let said = forked_comparison(farfork, &seed, &["--to", node, "--paused"], parent);
    assert!(said["differences_count"] == 0, "{}", differences_text(&said, parent));
    drop(seed);
    for pid in stopped.into_iter().rev() {
        // kill(2) fails if the parent of the process has reaped it.
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// Stops a process tree from the root down: a stopped process forks no further processes. Returns all stopped
/// processes.
fn stop_tree(root: i32) -> Vec<Pid> {
    let mut stopped = Vec::new();
    let mut next = vec![root];
    while let Some(id) = next.pop() {
        let pid = Pid::from_raw(id).expect("a process id");
        kill_process(pid, Signal::STOP).expect("a process of the tests");
        let is_stopped = || {
            let stat = farfork_sys::process::ProcStat::read(id).ok()?;
            matches!(stat.state, 'T' | 'Z').then_some(())
        };
        wait::wait_until("a process stops", STOP_LIMIT, is_stopped);
        for tid in farfork_sys::process::thread_ids(id).unwrap_or_default() {
            let children = fs::read_to_string(format!("/proc/{id}/task/{tid}/children")).unwrap_or_default();
            next.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
        stopped.push(pid);
    }
    stopped
}
