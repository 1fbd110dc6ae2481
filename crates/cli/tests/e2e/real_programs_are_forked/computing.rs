//! Programs that compute: each prints `half` in the middle and a result at its end. Children, parent and a process that
//! was never forked must print the same result. A program repeats its computation until it is signalled, so that it
//! still runs when a slow machine prepares it.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::seed::{kernel_waits_text, signal_children_to_finish};
use crate::harness::{
    Cluster, LineProgram, Program, Seed, StartedChild, WAIT_TIMEOUT, require_stopped_child_same, scratch,
};

/// Longest time from one line of a program to the next, on a busy machine.
const LINE_LIMIT: Duration = Duration::from_secs(60);

/// The signal after which a program stops repeating its computation.
const ENOUGH: Signal = Signal::USR2;

pub(super) fn numpy(cluster: &Cluster) {
    check_half_way(cluster, || without_threads_of_blas("matrices.py"));
}

pub(super) fn pool(cluster: &Cluster) {
    check_half_way(cluster, || without_threads_of_blas("pool.py"));
}

/// Runs a script without threads of BLAS. These threads would spin while they wait for each other, and compete with the
/// script's own threads.
fn without_threads_of_blas(script: &'static str) -> Command {
    let mut command = Program::Real(script).command();
    command.env("OPENBLAS_NUM_THREADS", "1");
    command
}

pub(super) fn node(cluster: &Cluster) {
    check_half_way(cluster, || Program::Real("timers.js").command());
}

/// Forks a child of a child. The second seed has pages that the first child had fetched, and pages that it had never
/// touched.
pub(super) fn node_forked_again(cluster: &Cluster) {
    let parent = start(&mut Program::Real("timers.js").command());
    let seed = Seed::prepare_process(cluster.first(), &parent.pid_text(), &[]);
    let mut children = seed.fork_idle(1, &["--to", cluster.name(1), "--strategy", "cow"]);
    let second = Seed::prepare_process(cluster.node(1), &children[0].pid.to_string(), &[]);
    children.extend(second.fork_idle(2, &["--to", &cluster.names(&[1, 2])]));
    signal_children_to_finish(cluster.first(), &children);
    parent.signal(ENOUGH);
    let expected = result(&parent);
    require_results(cluster, &children, &expected);
}

pub(super) fn pipeline(cluster: &Cluster) {
    check_half_way(cluster, || Program::Real("pipeline.sh").command());
}

pub(super) fn output_through_process(cluster: &Cluster) {
    check_half_way(cluster, || Program::Real("tee.sh").command());
}

pub(super) fn open_mp(cluster: &Cluster) {
    check_half_way(cluster, || Program::Real("parallel.cpp").command());
}

/// Compares all state that the kernel shows of parent and child, for single processes that are stopped half way.
/// Process trees are omitted: the restorer of a paused child still shares open files with other processes.
pub(super) fn equal_parent(cluster: &Cluster) {
    let commands = ["timers.js", "parallel.cpp"].map(|script| Program::Real(script).command());
    for mut command in commands.into_iter().chain([without_threads_of_blas("matrices.py")]) {
        let parent = start(&mut command);
        require_stopped_child_same(cluster.first(), cluster.name(1), parent.pid());
    }
}

/// Prepares the program half way, while it runs.
fn check_half_way(cluster: &Cluster, command: impl Fn() -> Command) {
    let parent = start(&mut command());
    let seed = Seed::prepare_process(cluster.first(), &parent.pid_text(), &[]);
    let children = seed.fork_idle(2, &["--to", &cluster.names(&[1, 2])]);
    signal_children_to_finish(cluster.first(), &children);
    parent.signal(ENOUGH);
    let never_forked = start(&mut command());
    never_forked.signal(ENOUGH);
    let expected = result(&never_forked);
    require_results(cluster, &children, &expected);
    drop(seed);
    assert_eq!(result(&parent), expected, "the parent");
}

/// The parent waits for input. A child finds the end of its standard input instead, and continues.
pub(super) fn shell_in_a_terminal(cluster: &Cluster) {
    let program = || start(&mut Program::Real("shell_in_a_terminal.py").command());
    let (mut parent, mut never_forked) = (program(), program());
    never_forked.write_input("on\n").expect("it reads");
    let expected = result(&never_forked);
    let seed = Seed::prepare_process(cluster.first(), &parent.pid_text(), &[]);
    let children = seed.fork_idle(2, &["--to", &cluster.names(&[1, 2])]);
    require_results(cluster, &children, &expected);
    parent.write_input("on\n").expect("it reads");
    assert_eq!(result(&parent), expected, "the parent");
}

/// Child and parent use the same database file. Each child has its own copy from its first write on. The parent
/// continues after the children.
pub(super) fn sqlite(cluster: &Cluster) {
    let directories = [scratch::directory(), scratch::directory()];
    let program = |at: usize| {
        let mut command = Program::Real("transaction.py").command();
        command.arg(directories[at].path());
        command
    };
    let (mut parent, mut never_forked) = (start(&mut program(0)), start(&mut program(1)));
    never_forked.write_input("on\n").expect("it reads");
    let expected = result(&never_forked);
    let seed = Seed::prepare_process(cluster.first(), &parent.pid_text(), &[]);
    let children = seed.fork_idle(2, &["--to", &cluster.names(&[1, 2])]);
    require_results(cluster, &children, &expected);
    parent.write_input("on\n").expect("it reads");
    assert_eq!(result(&parent), expected, "the parent");
}

fn start(command: &mut Command) -> LineProgram {
    let talker = LineProgram::start(command).unwrap_or_else(|error| panic!("{error}"));
    talker.read_until("half", LINE_LIMIT).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    talker
}

fn result(talker: &LineProgram) -> String {
    let said = talker.read_until(".", LINE_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let [result] = &said[..] else { panic!("not exactly one result: {said:?}") };
    assert!(result.starts_with("result "), "{result}");
    result.clone()
}

fn require_results(cluster: &Cluster, children: &[StartedChild], expected: &str) {
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    let said =
        cluster.first().json_ignoring_status(&[&["wait", "--results", "--timeout", WAIT_TIMEOUT], &ids[..]].concat());
    let ended = said["children"].as_array().unwrap_or_else(|| panic!("{said}\n{}", kernel_waits_text(children)));
    assert_eq!(ended.len(), children.len(), "{said}");
    for end in ended {
        let mut lines = end["stdout"].as_str().unwrap_or_default().lines();
        let is_right = end["exit_code"] == 0 && lines.any(|line| line == expected);
        assert!(is_right, "not `{expected}`: {end}\n{}", cluster.first().run(&["logs", "--stderr", ids[0]]).stderr);
    }
}
