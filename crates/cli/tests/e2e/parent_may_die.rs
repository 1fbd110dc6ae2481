//! The parent is killed before, during or after a prepare, by a signal to itself, its process group or its session. A
//! finished seed outlives its parent. A prepare that is too late fails with the reason.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("before_prepare", before),
    Test::shared("during_prepare", during),
    Test::shared("after_prepare", after),
    Test::shared("with_its_process_group", with_group),
    Test::shared("with_its_session", with_session),
];

/// Number of different times within a prepare at which the parent is killed. The prepare of a small parent takes one or
/// two milliseconds.
const MOMENTS: u64 = 24;

/// Longest wait for the result of a prepare whose parent is killed, on a busy machine.
const PREPARE_LIMIT: Duration = Duration::from_secs(60);

fn before(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    parent.kill();
    let pid = parent.pid_text();
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&pid]);
    cluster.first().run_failing(&["check", &pid]).require_mentions(&[&pid]);
}

/// Kills the parent during a prepare. The result is either a working seed or an error that names the parent.
fn during(cluster: &Cluster) {
    for moment in 0..MOMENTS {
        let mut parent = Parent::start(Program::Waits, &["4"]);
        let pid = parent.pid_text();
        let prepare = cluster.first().spawn(&["prepare", &pid, "--json"]);
        thread::sleep(Duration::from_micros(moment * 500));
        parent.kill();
        let ended = wait::wait_with_output(prepare, "prepare of a dying parent", PREPARE_LIMIT);
        if ended.status.success() {
            let seed = Seed::from_json(cluster.first(), &ended.stdout);
            seed.fork_and_check(&parent, moment, &["--to", cluster.name(1)]);
        } else {
            assert!(ended.stderr.contains(&pid), "the message does not name the parent: {}", ended.stderr);
        }
    }
}

fn after(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Threads, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    parent.kill();
    check_outlives(cluster, &parent, &seed);
}

/// Kills the process group, as kill(0, SIGKILL) in the parent or `kill %1` in a shell does.
fn with_group(cluster: &Cluster) {
    let mut parent = Parent::start_in_own_session(Program::Waits, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let status = Command::new("kill").args(["-KILL", "--", &format!("-{}", parent.pid())]).status();
    assert!(status.expect("kill(1) can be started").success());
    parent.wait_end();
    check_outlives(cluster, &parent, &seed);
}

/// Kills all processes of the session, as the end of a terminal or of a login session does.
fn with_session(cluster: &Cluster) {
    let mut parent = Parent::start_in_own_session(Program::Waits, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let members = members_of_session(parent.pid());
    assert!(members.contains(&parent.pid_text()), "{members:?}");
    let status = Command::new("kill").arg("-KILL").args(&members).status();
    assert!(status.expect("kill(1) can be started").success());
    parent.wait_end();
    check_outlives(cluster, &parent, &seed);
}

fn check_outlives(cluster: &Cluster, parent: &Parent, seed: &Seed) {
    thread::sleep(Duration::from_millis(100));
    seed.fork_and_check(parent, 5, &["--to", cluster.name(1)]);
    seed.fork_and_check(parent, 6, &[]);
}

/// Returns the processes of a session (proc_pid_stat(5), field 6).
fn members_of_session(session: i32) -> Vec<String> {
    let processes =
        fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_member = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        fields.split_whitespace().nth(3) == Some(&session.to_string())
    };
    processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(is_member).collect()
}
