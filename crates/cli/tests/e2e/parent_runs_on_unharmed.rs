//! In the parent, no wait fails with EINTR, and nothing of farfork remains in its state. Only the long tests check
//! times: no gap in the output exceeds the reported pause, and no wait exceeds its limit.

use std::collections::BTreeMap;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use farfork_sys::pidfd;
use farfork_sys::process::ProcStatus;

use crate::harness::programs::sources;
use crate::harness::{Cluster, Parent, Program, Seed, proc_snapshot, scratch};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_c_program_ticks_on", |cluster| ticks_on(cluster, Program::Waits)),
    Test::shared("a_cpp_program_ticks_on", |cluster| ticks_on(cluster, Program::Threads)),
    Test::shared("a_go_program_ticks_on", |cluster| ticks_on(cluster, Program::Goroutines)),
    Test::shared("python_ticks_on", |cluster| ticks_on(cluster, Program::Arrays)),
    Test::shared("no_output_gap_exceeds_the_pause", |cluster| {
        PROGRAMS.into_iter().for_each(|program| check_gap(cluster, program))
    })
    .long(),
    Test::shared("a_refused_prepare_stops_it_only_briefly", refusals_are_short).long(),
    Test::shared("it_sees_no_unknown_child", no_unknown_child),
    Test::shared("its_proc_files_are_unchanged", unchanged_proc_files),
    Test::shared("it_runs_on_while_children_fetch_pages", children_fetch_pages),
    Test::shared("waits_are_not_interrupted_by_prepares", |cluster| check_waits(cluster, PREPARES_BESIDE_WAITS, &[])),
    Test::shared("waits_end_in_time_during_many_prepares", |cluster| {
        check_waits(cluster, MANY_PREPARES, &[WAIT_SLACK_MS])
    })
    .long(),
    Test::shared("waits_of_a_child_are_not_interrupted", |cluster| waits_of_a_child(cluster, &[])),
    Test::shared("waits_of_a_child_keep_their_remaining_time", |cluster| waits_of_a_child(cluster, &[WAIT_SLACK_MS]))
        .long(),
    Test::shared("waits_of_a_grandchild_keep_their_remaining_time", waits_of_a_grandchild).long(),
    Test::alone("waits_are_not_interrupted_by_a_killed_daemon", || check_waits_with_killed_daemon(&[])),
    Test::alone("waits_end_in_time_after_a_killed_daemon", || check_waits_with_killed_daemon(&[WAIT_SLACK_MS])).long(),
    Test::shared("check_names_waits_that_are_not_kept_exactly", inexact_waits),
];

const PROGRAMS: [Program; 4] = [Program::Waits, Program::Threads, Program::Goroutines, Program::Arrays];

/// Memory of each program, in MiB.
const PROGRAM_MIB: &str = "32";

/// Number of ticks that show how regular the parent is without farfork.
const BASELINE_TICKS: usize = 150;

/// How late the scheduler may wake a thread that sleeps 2 ms, on a machine with two cores where prepare runs too.
const SCHEDULER_SLACK: Duration = Duration::from_millis(20);

/// Longest time in milliseconds by which a wait may exceed its limit, in addition to the machine's own delays.
const WAIT_SLACK_MS: &str = "10";

/// Number of prepares in a row. Each wait is interrupted by several of them.
const PREPARES_BESIDE_WAITS: usize = 20;
const MANY_PREPARES: usize = 300;

/// Number of daemons that are killed during a prepare, each at another time of the pause.
const KILLED_PREPARES: u32 = 12;
const KILL_STEP: Duration = Duration::from_micros(60);
/// Longest wait until a thread is stopped.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const SIGKILL: i32 = 9;

/// Maximum number of prepares, of which the best counts: a busy machine can only make the gap between two ticks longer.
const PREPARES_MAX: usize = 8;

/// Number of prepares of a parent, if only its ticks are checked.
const PREPARES_BESIDE_TICKS: usize = 3;

/// Longest time for which a process is stopped by a prepare that is refused.
const REFUSAL_STOP_MAX: Duration = Duration::from_millis(100);
const REFUSAL_TICKS: usize = 40;

/// After each prepare, the parent ticks as before. It reports no error.
fn ticks_on(cluster: &Cluster, program: Program) {
    let mut parent = Parent::start(program, &[PROGRAM_MIB]);
    for _ in 0..PREPARES_BESIDE_TICKS {
        let seed = Seed::prepare(cluster.first(), &parent);
        assert!(!seed.pause().is_zero(), "prepare reports no pause");
        parent.wait_for_ticks(BASELINE_TICKS);
    }
    parent.require_unharmed();
}

fn check_gap(cluster: &Cluster, program: Program) {
    let mut parent = Parent::start(program, &[PROGRAM_MIB]);
    parent.wait_for_ticks(BASELINE_TICKS);
    let baseline = parent.longest_gap_since(0);
    let mut gap_above_pause = || {
        let mark = parent.ticks_count();
        let seed = Seed::prepare(cluster.first(), &parent);
        parent.wait_for_ticks(BASELINE_TICKS);
        parent.longest_gap_since(mark).saturating_sub(seed.pause())
    };
    let mut gaps = Vec::new();
    let is_short = (0..PREPARES_MAX).any(|_| {
        gaps.push(gap_above_pause());
        gaps.last() <= Some(&(baseline + SCHEDULER_SLACK))
    });
    assert!(is_short, "gaps in addition to the pauses: {gaps:?}; longest gap before: {baseline:?}");
    parent.require_unharmed();
}

/// Checks each program that prepare refuses (`process_state_is_restored`). The shortest of several stops counts.
fn refusals_are_short(cluster: &Cluster) {
    let directory = sources().join("../../../../tests/resources");
    let names = fs::read_dir(directory).expect("the sources can be read").flatten().map(|entry| entry.path());
    let names = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let mut names: Vec<String> = names.filter(|name| name.starts_with("refused_")).collect();
    names.sort();
    assert!(!names.is_empty());
    for name in names {
        let files = scratch::directory();
        let (own, told) = (files.path().join("own"), files.path().join("told"));
        fs::create_dir(&own).expect("a scratch directory can be written");
        let arguments = [own.to_string_lossy(), told.to_string_lossy()];
        let program = Program::ProcessState(name.clone().leak());
        let mut parent = Parent::start(program, &arguments.each_ref().map(|argument| &**argument));
        parent.wait_for_ticks(REFUSAL_TICKS);
        let baseline = parent.longest_gap_since(0);
        let mut gap_of_a_stop = || {
            let mark = parent.ticks_count();
            cluster.first().run_failing(&["prepare", &parent.pid_text()]);
            parent.wait_for_ticks(REFUSAL_TICKS);
            parent.longest_gap_since(mark)
        };
        let mut gaps = (0..PREPARES_MAX).map(|_| gap_of_a_stop());
        let is_short = gaps.any(|gap| gap <= REFUSAL_STOP_MAX + baseline);
        assert!(
            is_short,
            "{name}: {PREPARES_MAX} stops of more than {REFUSAL_STOP_MAX:?}; longest gap before: {baseline:?}"
        );
    }
}

/// For the kernel, the template is a child of the parent. wait(2) in the parent must not return the template while the
/// seed exists. After the seed is dropped, no child must remain.
fn no_unknown_child(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["16"]);
    for _ in 0..5 {
        drop(Seed::prepare(cluster.first(), &parent));
    }
    parent.wait_for_ticks(5);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.pid())).expect("the parent lives");
    let living = children.split_whitespace().filter(|pid| !is_zombie(pid)).count();
    assert_eq!(living, 0, "children of the parent: {children}");
}

/// Compares the state in `/proc` that a prepare could change.
fn unchanged_proc_files(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["16"]);
    let before = proc_snapshot::read_proc_snapshot(parent.pid());
    let seed = Seed::prepare(cluster.first(), &parent);
    parent.wait_for_ticks(5);
    assert_eq!(before, proc_snapshot::read_proc_snapshot(parent.pid()));
    drop(seed);
    parent.wait_for_ticks(5);
    assert_eq!(before, proc_snapshot::read_proc_snapshot(parent.pid()));
}

/// Forks three children on three nodes, one after the other, while the parent runs.
fn children_fetch_pages(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Goroutines, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 31, &["--to", cluster.name(1)]);
    seed.fork_and_check(&parent, 32, &["--to", cluster.name(2)]);
    seed.fork_and_check(&parent, 33, &[]);
    parent.require_unharmed();
}

/// The parent has a thread in each kind of wait. However often a prepare interrupts the waits, none fails with EINTR,
/// none is shorter than its time limit, and each ends. With a slack, none exceeds its limit by more than the slack.
fn check_waits(cluster: &Cluster, prepares: usize, slack: &[&str]) {
    let mut parent = Parent::start(Program::Situation("time_limits"), &[&["400"], slack].concat());
    for _ in 0..prepares {
        parent.wait_for_ticks(1);
        drop(Seed::prepare(cluster.first(), &parent));
    }
    parent.wait_for_ticks(BASELINE_TICKS);
    parent.require_unharmed();
}

/// The waits of a child end with the right results. With a slack, a wait that the fork interrupted lasts only for its
/// remaining time.
fn waits_of_a_child(cluster: &Cluster, slack: &[&str]) {
    let mut parent = Parent::start(Program::Situation("time_limits"), &[&["1500"], slack].concat());
    parent.wait_for_ticks(BASELINE_TICKS);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 41, &["--to", cluster.name(1)]);
    seed.fork_and_check(&parent, 42, &[]);
    parent.require_unharmed();
}

/// A wait of the parent continues in a child, and is interrupted there again. In the child's own children, it lasts for the
/// time that the parent's wait had left, less the time that passed in the child.
fn waits_of_a_grandchild(cluster: &Cluster) {
    // Without the record of the deadlines, waits of the grandchild exceed their time by more than three seconds. The slack of a
    // child is one second.
    let mut parent = Parent::start(Program::Situation("time_limits"), &["8000", "100"]);
    parent.wait_for_ticks(10 * BASELINE_TICKS);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_idle(1, &[]);
    let seed_of_child = Seed::prepare_process(cluster.first(), &children[0].pid.to_string(), &[]);
    seed_of_child.fork_and_check(&parent, 43, &["--to", cluster.name(1)]);
    cluster.first().run(&["kill", "--signal", "KILL", &children[0].id]).require_success();
    parent.require_unharmed();
}

/// Kills the daemon when the parent is first seen to be traced, or a little later.
fn check_waits_with_killed_daemon(slack: &[&str]) {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Situation("time_limits"), &[&["400"], slack].concat());
    parent.wait_for_ticks(BASELINE_TICKS);
    for round in 0..KILLED_PREPARES {
        let daemon = pidfd::open(cluster.daemon_pid(0)).expect("the daemon lives");
        let mut prepare = seen_prepare(&cluster, &mut parent);
        let seen = Instant::now();
        while seen.elapsed() < KILL_STEP * round {}
        pidfd::send_signal(&daemon, SIGKILL).expect("the daemon lives");
        cluster.wait_for_end(0);
        // The command may already have its answer.
        prepare.wait().expect("the command ends after its daemon");
        cluster.restart_daemon(0);
        parent.wait_for_ticks(1);
    }
    parent.wait_for_ticks(BASELINE_TICKS);
    parent.require_unharmed();
    drop(parent);
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

/// Starts a prepare, and returns when the parent is seen to be traced. On a busy machine, a prepare may end unseen.
/// Then another prepare is started. Seeds of earlier prepares end with the daemon.
fn seen_prepare(cluster: &Cluster, parent: &mut Parent) -> Child {
    let begun = Instant::now();
    loop {
        parent.require_alive();
        let mut prepare = cluster.first().spawn(&["prepare", &parent.pid_text()]);
        while prepare.try_wait().expect("our own child").is_none() {
            if is_traced(parent.pid()) {
                return prepare;
            }
            assert!(begun.elapsed() < STOP_LIMIT, "no prepare was seen to stop the parent");
        }
    }
}

fn is_traced(pid: i32) -> bool {
    ProcStatus::read(pid).is_ok_and(|status| status.tracer != 0)
}

/// Before a prepare, `check` names each inexact wait by thread, call and reason. It has no note on a wait that is
/// preserved.
fn inexact_waits(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Situation("inexact_waits"), &[]);
    let checked = cluster.first().run(&["check", &parent.pid_text()]).stdout;
    let tasks = fs::read_dir(format!("/proc/{}/task", parent.pid())).expect("it runs");
    let threads: BTreeMap<String, String> = tasks
        .map(|task| task.expect("a thread").path())
        .map(|task| {
            let name = fs::read_to_string(task.join("comm")).expect("a thread has a name").trim_end().to_owned();
            (name, task.file_name().expect("an id").to_string_lossy().into_owned())
        })
        .collect();
    let note = |name: &str, words: &str| format!("thread {} waits in {words}", threads[name]);
    for (name, call, reason) in [
        ("terminal", "read(2) on fd 4, a terminal with a time limit (VTIME)", "starts again"),
        ("recvmmsg", "recvmmsg(2) on fd ", "starts again"),
        ("waitall", "recvfrom(2) on fd ", "SO_RCVTIMEO): if it has transferred a part"),
        ("sending", "write(2) on fd ", "SO_SNDTIMEO): if it has transferred a part"),
    ] {
        let line = checked.lines().find(|line| line.contains(&note(name, call)));
        assert!(line.is_some_and(|line| line.contains(reason)), "{name}: {checked}");
    }
    assert!(!checked.contains(&note("kept", "")), "{checked}");
    parent.require_unharmed();
}

fn is_zombie(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains(") Z ")
}
