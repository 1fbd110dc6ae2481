//! Tests of the runner itself that make its work difficult: they write without end, freeze themselves, or make objects
//! outside of their groups and directories. `runs_are_contained` starts them in runs of their own.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::thread;

use farfork_sys::cgroup;
use farfork_sys::cgroup::freezer;
use farfork_sys::cgroup::hierarchy::{self, DAEMON_LEAF};

use super::group_set::FreezerGroup;
use super::self_test::{FOREVER, SHORT_LIMIT, directory, note, panic_with_a_wrong_byte, start_sleep};
use crate::harness::{Cluster, Disk, UnresponsiveMount, fail_or_time_out};
use crate::test::Test;

/// The name of the test that starts a further run, which runs a test with a mount.
const FURTHER_RUN: &str = "mounting::";

/// The output of a command whose child found a wrong byte before the command timed out.
const WRONG_AND_LATE: &str = "wrong: program.c:1: byte == 0\nthe child was not ended: operation timed out";

/// As the message of a comparison of memory. It is far less than the maximum output of a test.
const MESSAGE_BYTES: usize = 2 << 20;

pub(super) const TESTS: &[Test] = &[
    Test::alone("writes_a_page", || eprintln!("{}", "-".repeat(4096))),
    Test::alone("fails_with_a_long_message", || panic!("{}", "x".repeat(MESSAGE_BYTES))),
    Test::alone("finds_a_wrong_byte_and_times_out", || fail_or_time_out(WRONG_AND_LATE.to_owned())),
    Test::alone("truncates_its_output", truncate_output),
    Test::alone("writes_without_end", write_without_end).within(|| SHORT_LIMIT),
    Test::alone("freezes_its_group", freeze_own_group).within(|| SHORT_LIMIT),
    Test::alone("waits_for_its_own_file_system", wait_for_own_file_system).within(|| SHORT_LIMIT),
    Test::alone("hides_a_mount", hide_mount),
    Test::alone("makes_ipc_objects", make_ipc_objects),
    Test::alone("has_a_process_in_another_group", join_other_group),
    Test::alone("cannot_remove_its_cluster", leave_cluster),
    Test::alone("starts_a_further_run", start_further_run),
    Test::alone("removes_the_logs", remove_logs),
    Test::alone("fails_in_a_thread", || drop(thread::spawn(panic_with_a_wrong_byte).join())),
];

/// Two processes write faster than the runner can forward.
fn write_without_end() {
    let mut writers = Vec::new();
    for _ in 0..2 {
        writers.push(Command::new("yes").stdout(io::stderr()).spawn().expect("yes(1) is installed"));
    }
    thread::sleep(FOREVER);
}

/// Shells open `/dev/stderr` again, which is a file.
fn truncate_output() {
    let status = Command::new("sh").args(["-c", "echo first > /dev/stderr; echo second >&2"]).status();
    assert!(status.expect("sh(1) is installed").success());
    panic_with_a_wrong_byte();
}

/// Freezes the group above the one of this process. SIGKILL does not end a process that a version 1 freezer has frozen.
fn freeze_own_group() {
    for hierarchy in hierarchy::mounted_hierarchies().expect("the kernel lists the hierarchies") {
        if hierarchy.own.ends_with(DAEMON_LEAF) {
            let above = hierarchy.own.parent().expect("the leaf has a parent");
            // Fails in a hierarchy without a freezer.
            let _ = freezer::freeze(above, hierarchy.version, FOREVER);
        }
    }
    thread::sleep(FOREVER);
}

/// This process is the server of the file system, and cannot be killed while it waits for its own answer.
fn wait_for_own_file_system() {
    let mounted = UnresponsiveMount::new("fuse");
    mounted.take_requests();
    let _ = rustix::fs::statfs(mounted.path());
}

/// A mount is moved over a later one, so the mount table does not list them in the order in which they must be detached.
fn hide_mount() {
    let (first, second) = (Disk::of_mib(1), Disk::of_mib(1));
    rustix::mount::mount_move(first.path(), second.path().parent().expect("the temporary directory"))
        .expect("root may");
    note_sleep();
    thread::sleep(FOREVER);
}

/// System V objects are not below a directory, and no process needs to exist for them.
fn make_ipc_objects() {
    let mut command = Command::new("ipcmk");
    command.args(["--semaphore", "1", "--queue", "--shmem", "4096"]).stdout(Stdio::null());
    assert!(command.status().expect("ipcmk(1) is installed").success());
    note_sleep();
    thread::sleep(FOREVER);
}

/// As a test that freezes a single process, before it has frozen the process.
fn join_other_group() {
    let sleep = start_sleep().expect("sleep(1) is installed").id();
    let group = FreezerGroup::of_worker().expect("a freezer is mounted").directory;
    cgroup::create(&group).expect("root may make groups");
    cgroup::move_process(&group, sleep.cast_signed()).expect("root may move processes");
    note("group", &group.to_string_lossy());
    note("parent", &sleep.to_string());
    thread::sleep(FOREVER);
}

/// As a test that a signal ends while it removes its cluster: no further process can be started.
fn leave_cluster() {
    let cluster = Cluster::start(1);
    note("cluster", cluster.group());
    for hierarchy in hierarchy::mounted_hierarchies().expect("the kernel lists the hierarchies") {
        if hierarchy.own.ends_with(DAEMON_LEAF) && hierarchy.own.join("pids.max").exists() {
            cgroup::write(&hierarchy.own, "pids.max", "0").expect("root may set limits");
        }
    }
}

/// The directory of the further run is not below the directory of this run.
fn start_further_run() {
    let mut command = Command::new(std::env::current_exe().expect("a running program"));
    command.arg(FURTHER_RUN).env("TMPDIR", directory());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    note("further", &command.spawn().expect("this binary can be started").id().to_string());
    thread::sleep(FOREVER);
}

/// As `cargo clean` does during a run.
fn remove_logs() {
    fs::remove_dir_all(directory().join("logs")).expect("the runner has made it");
    panic_with_a_wrong_byte();
}

fn note_sleep() {
    note("parent", &start_sleep().expect("sleep(1) is installed").id().to_string());
}
