//! When children are forked one by one, a prestarted child exists before the next request. It serves any next fork and
//! equals any other child. An unused one leaves nothing. No child is prestarted if another process could notice it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use farfork_sys::pidfd;
use serde_json::Value;

use crate::harness::{Cluster, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("prestarted_children_serve_the_next_forks", next_forks),
    Test::alone("unused_prestarted_children_leave_nothing", unused_standby),
    Test::alone("not_while_the_parent_has_a_file_open_for_writing", open_for_writing),
    Test::alone("a_prestarted_child_sees_the_nodes_current_files", current_files),
];

/// Longest wait until a prestarted child exists, or has ended.
const SOON: Duration = Duration::from_secs(100);
const SIGKILL: i32 = 9;
/// Longest wait for the next prestarted child after a fork. An idle machine needs some milliseconds.
const STANDBY_WAIT: Duration = Duration::from_secs(2);
/// Minimum number of children that must have been prestarted.
const ENOUGH: u64 = 4;
/// Number of forks of a parent that must not get prestarted children. After so many forks, another parent with a zygote
/// has one.
const FORKS: u64 = 8;

/// Returns the processes in containers that run a parent's program.
pub(crate) fn in_containers(cluster: &Cluster, parent: &Parent) -> Vec<i32> {
    let line = fs::read(format!("/proc/{}/cmdline", parent.pid())).expect("it runs");
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let groups = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let all = cluster.processes(words.join(" ").trim_end());
    all.into_iter().filter(|pid| groups(*pid).contains("/pool-")).collect()
}

/// Forks children one by one until a prestarted child exists. Returns its process id. Each child must answer correctly.
/// After each fork, waits for the prestarted child, because the next fork would use it.
fn fork_until_standby(cluster: &Cluster, parent: &Parent, seed: &Seed) -> i32 {
    let mut number = 1000;
    wait::wait_until("a prestarted child", SOON, || {
        number += 1;
        seed.fork_and_check(parent, number, &[]);
        wait::poll_within(STANDBY_WAIT, || in_containers(cluster, parent).pop())
    })
}

/// Kills a prestarted child. If the child has ended before that, another one is made.
fn kill_standby(cluster: &Cluster, parent: &Parent, seed: &Seed) -> i32 {
    wait::wait_until("a prestarted child is killed", SOON, || {
        let pid = fork_until_standby(cluster, parent, seed);
        let process = pidfd::open(pid).ok()?;
        // Check after pidfd_open(2) that the process id was not reused.
        let stands_by = in_containers(cluster, parent).contains(&pid);
        (stands_by && pidfd::send_signal(&process, SIGKILL).is_ok()).then_some(pid)
    })
}

fn require_gone(pid: i32, why: &str) {
    let directory = format!("/proc/{pid}");
    wait::wait_until(why, SOON, || (!Path::new(&directory).exists()).then_some(()));
}

fn next_forks() {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Waits, &["8"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut number = 0;
    wait::wait_until("prestarted children", SOON, || {
        number += 1;
        // Children with other limits or networks need another kind of prestarted child.
        let options: &[&str] = match number % 5 {
            0 => &["--memory", "256MiB"],
            1 => &["--net", "shared"],
            _ => &[],
        };
        seed.fork_and_check(&parent, number, options);
        (cluster.zygote_count(0, "stood_by") >= ENOUGH).then_some(())
    });
    // Prestarted children also serve forks without a payload, and forks of several children.
    let idle = seed.fork_idle(1, &[]);
    let (numbers, payloads) = (500..503, |number: u64| number.to_string());
    let children = seed.fork_detached(&numbers.clone().map(payloads).collect::<Vec<_>>(), &[]);
    seed.check_answers(&parent, &children, &numbers.collect::<Vec<_>>());
    let mut ids: Vec<&str> = idle.iter().chain(&children).map(|child| child.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "children have the same id");
    assert!(cluster.zygote_count(0, "stood_by") <= cluster.zygote_count(0, "children"));
    cluster.first().run(&["kill", &idle[0].id, "--signal", "KILL"]);
    parent.require_unharmed();
    drop((seed, parent));
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

fn unused_standby() {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Waits, &["8"]);
    let seed = Seed::prepare(cluster.first(), &parent);

    let killed = kill_standby(&cluster, &parent, &seed);
    require_gone(killed, "the killed prestarted child has ended");
    seed.fork_and_check(&parent, 1, &[]);

    require_gone(fork_until_standby(&cluster, &parent, &seed), "a prestarted child that is not requested ends");
    seed.fork_and_check(&parent, 2, &[]);

    let unpaged = fork_until_standby(&cluster, &parent, &seed);
    cluster.kill_pager(0);
    seed.fork_and_check(&parent, 3, &[]);
    require_gone(unpaged, "the prestarted child was used, or has ended by itself");

    let orphan = fork_until_standby(&cluster, &parent, &seed);
    cluster.kill_daemon(0);
    require_gone(orphan, "a prestarted child ends with its daemon");
    cluster.restart_daemon(0);
    drop(seed);

    let other = Seed::prepare(cluster.first(), &parent);
    let last = fork_until_standby(&cluster, &parent, &other);
    cluster.first().json(&["drop", other.id()]);
    require_gone(last, "a prestarted child ends with its seed");
    let listed = cluster.first().json(&["ps"]);
    let lives = |child: &&Value| child["state"] == "running";
    assert_eq!(listed["children"].as_array().expect("a list").iter().filter(lives).count(), 0, "{listed}");
    parent.require_unharmed();
    drop((other, parent));
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

/// If the parent's directory is replaced before a fork, the child uses the new one.
fn current_files() {
    let cluster = Cluster::start(1);
    let place = scratch::directory();
    let [current, former] = ["current", "former"].map(|name| place.path().join(name));
    let make = |word: &str| {
        fs::create_dir(&current).expect("the temporary directory can be written");
        fs::write(current.join("word"), word).expect("the temporary directory can be written");
    };
    make("before");
    let parent = Parent::start_command(Program::Situation("paging").command().arg("8").current_dir(&current));
    let seed = Seed::prepare(cluster.first(), &parent);
    let page = |number: u64, how: &str| seed.fork_detached(&[format!("{number} 1 {how}")], &[]);
    let mut number = 0;
    wait::wait_until("a prestarted child was used, and the next one exists", SOON, || {
        number += 1;
        seed.check_answers(&parent, &page(number, ""), &[number]);
        let has_stood_by = cluster.zygote_count(0, "stood_by") > 0;
        let stands_by = wait::poll_within(STANDBY_WAIT, || in_containers(&cluster, &parent).pop()).is_some();
        (has_stood_by && stands_by).then_some(())
    });
    fs::rename(&current, &former).expect("the temporary directory can be written");
    make("after");
    let children = page(number + 1, "held");
    let word = fs::read_to_string(format!("/proc/{}/cwd/word", children[0].pid)).expect("it runs");
    assert_eq!(word, "after");
    seed.release_children(&children);
    seed.check_answers(&parent, &children, &[number + 1]);
}

/// One parent has a file open for writing: an overlay copies such a file when a child opens it, so no child is prestarted.
/// Children of a parent that has the file open only for reading are.
fn open_for_writing() {
    let cluster = Cluster::start(1);
    let file = scratch::file("contents");
    let opened = |redirection: &str, mib: u64| {
        let program = Program::Waits.command();
        let command = format!("exec 9{redirection}'{}'; exec \"$0\" {mib}", file.path().display());
        Parent::start_command(Command::new("bash").args(["-c", &command]).arg(program.get_program()))
    };
    let (writes, reads) = (opened(">>", 8), opened("<", 9));
    let [writers, readers] = [&writes, &reads].map(|parent| Seed::prepare(cluster.first(), parent));
    fork_until_standby(&cluster, &reads, &readers);
    for number in 0..FORKS {
        writers.fork_and_check(&writes, number, &[]);
    }
    wait::wait_until("a zygote of the parent that writes", SOON, || {
        let before = cluster.zygote_count(0, "children");
        writers.fork_and_check(&writes, FORKS, &[]);
        (cluster.zygote_count(0, "children") > before).then_some(())
    });
    let stood_by = cluster.zygote_count(0, "stood_by");
    for number in 0..FORKS {
        writers.fork_and_check(&writes, number, &[]);
        assert_eq!(in_containers(&cluster, &writes), Vec::<i32>::new(), "a child is prestarted");
    }
    assert_eq!(cluster.zygote_count(0, "stood_by"), stood_by);
}
