//! Runs whose control groups, or those of their tests, are unusual: below other groups, limited, frozen, or with more
//! processes than the runner has descriptors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::{self, CgroupVersion, DAEMON_LEAF, Hierarchy};
use farfork_sys::mount;
use rustix::mount::mount_bind;

use super::{
    InnerRun, janitor_of, kill_with_janitor, last_line, note_in, require, require_no_traces,
    require_removal_after_kill, terminate,
};
use crate::harness::scratch::TestDirectory;
use crate::harness::{run_in_own_mounts, scratch};
use crate::runner;

/// Longest wait until the killed processes have left a control group.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A shell script that moves itself into groups and executes its arguments.
const JOIN_SCRIPT: &str = "for group in $GROUPS_TO_JOIN; do echo $$ > $group/cgroup.procs; done; exec \"$0\" \"$@\"";

/// Number of processes of the group that limits a run. It is far below the run's own limit.
const ENCLOSING_PIDS: usize = 100;

/// Number of descriptors that a runner and its workers need. It is far below the number of processes of the fork bomb.
const FEW_DESCRIPTORS: usize = 64;

/// Groups outside of the group of this process's run, such as the groups of another login session. There is one in each
/// version 1 hierarchy: this process is in a leaf group, and a version 2 group with processes has no groups with
/// controllers below it.
struct OtherGroups(Vec<PathBuf>);

impl OtherGroups {
    fn create() -> Self {
        let hierarchies = hierarchy::mounted_hierarchies().expect("the kernel lists the hierarchies");
        let version_1 = hierarchies.iter().filter(|hierarchy| hierarchy.own.ends_with(DAEMON_LEAF));
        let groups: Vec<_> = version_1.map(|hierarchy| hierarchy.own.with_file_name("other-session")).collect();
        groups.iter().for_each(|group| cgroup::create(group).expect("root may make groups"));
        Self(groups)
    }

    /// Returns the command of a run in these groups.
    fn command(&self, directory: &TestDirectory, filter: &str) -> Command {
        let mut command = InnerRun::command_in(&["sh", "-c", JOIN_SCRIPT], directory, &[filter]);
        let paths: Vec<_> = self.0.iter().map(|group| group.to_string_lossy()).collect();
        command.env("GROUPS_TO_JOIN", paths.join(" "));
        command
    }

    fn start(&self, filter: &str) -> InnerRun {
        let directory = scratch::directory();
        InnerRun::spawn(self.command(&directory, filter), directory)
    }

    fn limit_pids(&self, pids: usize) {
        for group in self.0.iter().filter(|group| group.join("pids.max").exists()) {
            cgroup::write(group, "pids.max", &pids.to_string()).expect("root may set limits");
        }
    }

    /// Returns the number of groups below these groups.
    fn groups_below(&self) -> usize {
        self.0.iter().map(|group| cgroup::subtree(group).expect("it exists").len() - 1).sum()
    }

    fn remove(self) {
        self.0.iter().for_each(|group| cgroup::remove(group, END_LIMIT).expect("it is empty"));
    }
}

/// The groups of a run are below the group in which it was started, such as the group of another login session.
pub(super) fn other_control_group() {
    let others = OtherGroups::create();
    let inner = others.start("staying::");
    inner.wait_until_staying();
    let killed = kill_with_janitor(inner);
    assert!(others.groups_below() > 0, "the run was not in the groups {:?}", others.0);
    let (ended, _directory) = InnerRun::start(&["kinds::passes"]).end();
    require(&ended, ended.stdout.contains("removing what an earlier run left"), "the next run removes the groups");
    assert_eq!(others.groups_below(), 0, "{}", ended.stdout);
    require_no_traces(&killed.supervisor, killed.directory.path());
    others.remove();
}

/// A mount keeps a group below those of a killed run. The directory and the processes of the run are removed. When the mount is
/// gone, the next run removes the groups, too.
pub(super) fn busy_group() {
    let others = OtherGroups::create();
    let inner = others.start("mounting::");
    inner.wait_until_staying();
    let killed = kill_with_janitor(inner);
    let busy = others.0[0].join(runner::name_of(&killed.supervisor)).join("busy");
    let empty = scratch::directory();
    run_in_own_mounts(|| {
        cgroup::create(&busy).expect("root may make groups");
        mount_bind(empty.path(), &busy).expect("root may mount");
        let (ended, _directory) = InnerRun::start(&["kinds::passes"]).end();
        let problem = format!("cannot remove of an earlier run: control group {}", busy.display());
        require(&ended, ended.stdout.contains(&problem), "the problem is reported");
    });
    assert!(busy.exists(), "the mount has not kept the group");
    let (ended, _directory) = InnerRun::start(&["kinds::passes"]).end();
    assert_eq!(others.groups_below(), 0, "{}", ended.stdout);
    require_no_traces(&killed.supervisor, killed.directory.path());
    others.remove();
}

/// The groups of the run are not below the group that its janitor is in.
pub(super) fn moved_janitor() {
    let others = OtherGroups::create();
    let inner = InnerRun::start(&["staying::"]);
    inner.wait_until_staying();
    let janitor = janitor_of(&inner).as_raw_nonzero().get();
    others.0.iter().for_each(|group| cgroup::move_process(group, janitor).expect("root may move processes"));
    require_removal_after_kill(inner);
    others.remove();
}

/// A container with a limit contains the runner. The tests get only a part of the limit, so that the runner can work.
pub(super) fn limited_group() {
    let others = OtherGroups::create();
    others.limit_pids(ENCLOSING_PIDS);
    let (ended, directory) = others.start("multiplying::").end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    let count = note_in(directory.path(), "children").expect("the test notes its number of children");
    let count: usize = count.parse().expect("a number");
    assert!((1..=ENCLOSING_PIDS / 4 * 3).contains(&count), "{count} processes");
    others.remove();
}

/// The group of the runner can have no further process, so the janitor cannot be started. Nothing of the run is left.
pub(super) fn full_group() {
    let others = OtherGroups::create();
    others.limit_pids(1);
    let (ended, _directory) = others.start("kinds::passes").end_refused();
    require(&ended, ended.stderr.contains("janitor"), "the message names the janitor");
    others.remove();
}

pub(super) fn frozen_group() {
    let (ended, _directory) = InnerRun::start(&["hostile::freezes_its_group"]).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    require(&ended, !ended.stdout.contains("not removed"), "the group is removed");
}

/// A test that freezes a single process moves it into a group of its own.
pub(super) fn process_in_another_group() {
    let inner = InnerRun::start(&["hostile::has_a_process_in_another_group"]);
    inner.wait_until_staying();
    let directory = terminate(inner);
    let group = note_in(directory.path(), "group").expect("the test notes the group");
    assert!(!Path::new(&group).exists(), "{group} is left");
}

/// A fork bomb has more processes than the runner may have descriptors. `cgroup.kill` of version 2 needs none.
pub(super) fn few_descriptors() {
    let limit = format!("ulimit -n {FEW_DESCRIPTORS}; exec \"$0\" \"$@\"");
    let (ended, directory) = run_in_own_mounts(|| {
        let hierarchies = hierarchy::mounted_hierarchies().expect("the kernel lists the hierarchies");
        let is_version_2 = |hierarchy: &&Hierarchy| hierarchy.version == CgroupVersion::V2;
        // Without version 1, the run needs version 2.
        if hierarchies.iter().any(|hierarchy| hierarchy.version == CgroupVersion::V1) {
            let detach = |hierarchy: &Hierarchy| mount::detach(&hierarchy.top).expect("root may detach");
            hierarchies.iter().filter(is_version_2).for_each(detach);
        }
        let directory = scratch::directory();
        let command = InnerRun::command_in(&["sh", "-c", &limit], &directory, &["multiplying::"]);
        InnerRun::spawn(command, directory).end()
    });
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    require(&ended, !ended.stdout.contains("not removed"), "all processes are killed");
    let count = note_in(directory.path(), "children").expect("the test notes its number of children");
    assert!(count.parse::<usize>().is_ok_and(|count| count > FEW_DESCRIPTORS), "only {count} processes");
}
