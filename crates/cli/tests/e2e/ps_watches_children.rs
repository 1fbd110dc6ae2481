//! `farfork ps --watch` prints the list as it changes, and ends when its output has no reader. `ps` and `seeds` show
//! programs without their directories.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("new_children_appear_in_the_list", new_children),
    Test::shared("lists_name_programs_without_directories", short_commands),
];

/// Number of lists within which a running child must appear. One list is printed each second.
const LISTS_MAX: usize = 10;

/// Longest wait until a watcher without a reader ends. It notices only when it writes the next list.
const END_LIMIT: Duration = Duration::from_secs(60);

fn new_children(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut watcher = cluster.first().spawn(&["ps", "--watch", "--running"]);
    let mut lines = BufReader::new(watcher.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    let first = lines.next().expect("a first list");
    assert!(first.contains(" running, "), "the list does not begin with the summary: {first}");

    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let (mut lists, mut has_shown) = (0, false);
    while lists < LISTS_MAX && !has_shown {
        let line = lines.next().expect("further lists");
        lists += usize::from(line.contains(" running, "));
        has_shown = line.starts_with(&child.id);
    }
    assert!(has_shown, "{} was not seen in {LISTS_MAX} lists", child.id);

    drop(lines);
    let status = wait::wait_exit(&mut watcher, "`ps --watch` without a reader", END_LIMIT);
    assert!(status.success(), "{status}");
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
}

/// The column `COMMAND` is narrow. `--json` shows the whole command line.
fn short_commands(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    for (list, objects, key, id) in [("ps", "children", "child", &*child.id), ("seeds", "seeds", "seed", seed.id())] {
        let document = cluster.first().json(&[list]);
        let listed = document[objects].as_array().expect("a list").iter().find(|object| object[key] == id);
        let command = listed.expect("it is listed")["command"].as_str().expect("a command line");
        let (directory, short) = command.rsplit_once('/').expect("the program has an absolute path");
        assert!(directory.starts_with('/'), "{command}");
        let said = cluster.first().run(&[list]).stdout;
        let line = said.lines().find(|line| line.starts_with(id)).expect("it is listed");
        assert!(line.trim_end().ends_with(&format!("  {short}")), "{line}");
    }
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
}
