//! `farfork ps --watch`: prints the list as it changes, and ends when its output has no reader.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[Test::shared("new_children_appear_in_the_list", new_children)];

/// Lists in which a child that runs must have shown: one comes each second.
const LISTS_MAX: usize = 10;

/// For a watcher to see that nobody reads: it notices when it writes the next list.
const END_LIMIT: Duration = Duration::from_secs(60);

fn new_children(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut watcher = cluster.first().spawn(&["ps", "--watch", "--running"]);
    let mut lines = BufReader::new(watcher.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    let first = lines.next().expect("a first list");
    assert!(first.contains(" running, "), "a list begins with what there is: {first}");

    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let (mut lists, mut has_shown) = (0, false);
    while lists < LISTS_MAX && !has_shown {
        let line = lines.next().expect("the lists go on");
        lists += usize::from(line.contains(" running, "));
        has_shown = line.starts_with(&child.id);
    }
    assert!(has_shown, "{} was not seen in {LISTS_MAX} lists", child.id);

    drop(lines);
    let status = wait::wait_exit(&mut watcher, "`ps --watch` whose lists nobody reads", END_LIMIT);
    assert!(status.success(), "{status}");
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
}
