//! Runs that end while their output is not read, or while their tests hold objects that outlive processes. Nothing is left.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use farfork_sys::mount::table;
use rustix::process::{Pid, Signal, kill_process};

use super::{InnerRun, full_pipe, last_line, note_in, require, require_removal, self_test, terminate};
use crate::harness::{run_in_own_mounts, scratch, wait};

/// Longest wait for a step of a run.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Age of the network of a cluster that no longer starts.
const OLD: Duration = Duration::from_secs(3600);

/// Time after which a run would have ended because of a signal.
const SIGNAL_TIME: Duration = Duration::from_secs(2);

/// The files in which the kernel lists the System V objects of the IPC namespace.
const IPC_TABLES: [&str; 3] = ["/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"];

/// SIGTERM while the last lines are written: to a pipe without a reader here, and to a pager otherwise.
pub(super) fn unread_report() {
    let inner = InnerRun::start_with(&["kinds::fails"], |notes| {
        let pipe = notes.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo(1) is installed").success());
        [("FARFORK_COUNTS", pipe.into())]
    });
    // The failures are written before the counts.
    wait::wait_until("the report is written", STEP_LIMIT, || {
        note_in(inner.directory.path(), "failures").filter(|failures| failures.ends_with('\n'))
    });
    terminate(inner);
}

/// A pager does not read the output until the time limit of the run is over. The runner cannot report that, but ends.
pub(super) fn unread_output() {
    let (reader, writer) = full_pipe();
    let directory = scratch::directory();
    let mut command = InnerRun::command(&directory, &["staying::"]);
    command.stdout(writer).env(self_test::RUN_LIMIT_VARIABLE, "2");
    let mut inner = InnerRun::spawn(command, directory);
    let status = wait::wait_exit(&mut inner.process, "a run whose output is not read", STEP_LIMIT);
    assert!(!status.success(), "{status}");
    require_removal(&inner.supervisor);
    drop(reader);
}

/// `nohup make test &`: the terminal is closed later.
pub(super) fn ignored_hangup() {
    let directory = scratch::directory();
    let command = InnerRun::command_in(&["nohup"], &directory, &["mounting::"]);
    let mut inner = InnerRun::spawn(command, directory);
    inner.wait_until_staying();
    kill_process(Pid::from_child(&inner.process), Signal::HUP).expect("our own child");
    thread::sleep(SIGNAL_TIME);
    assert!(inner.process.try_wait().expect("our own child").is_none(), "the run has ended");
    terminate(inner);
}

pub(super) fn ipc_objects() {
    let objects = || IPC_TABLES.map(|table| fs::read_to_string(table).expect("the kernel has System V objects"));
    let count = || objects().iter().map(|table| table.lines().count()).collect::<Vec<_>>();
    let before = count();
    let inner = InnerRun::start(&["hostile::makes_ipc_objects"]);
    inner.wait_until_staying();
    terminate(inner);
    assert_eq!(count(), before, "{:#?}", objects());
}

/// A test has started a run with another temporary directory, in which that run has a mount.
pub(super) fn further_run() {
    let inner = InnerRun::start(&["hostile::starts_a_further_run"]);
    inner.wait_until_staying();
    let directory = terminate(inner);
    let names = fs::read_dir(directory.path()).expect("our own directory").map(|entry| entry.map(|it| it.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>().expect("our own directory");
    let left: Vec<_> = names.iter().filter(|name| name.to_string_lossy().starts_with("farfork-tests-")).collect();
    assert!(left.is_empty(), "left of the further run: {left:?}");
}

/// A test could not remove its cluster. The runner finds it, and removes the rest.
pub(super) fn unremoved_cluster() {
    let (ended, _directory) = InnerRun::start(&["hostile::cannot_remove_its_cluster"]).end();
    require(&ended, last_line(&ended) == "1 passed, 0 failed", "the last line");
    require(&ended, ended.stderr.contains("is not removed completely"), "the test could not remove it");
}

/// The state file of a cluster was lost. A later run finds its networks by their names, unless the cluster may be starting.
pub(super) fn lost_cluster() {
    let mut ended_process = Command::new("true").spawn().expect("true(1) is installed");
    let pid = ended_process.id();
    ended_process.wait().expect("our own child");
    fs::create_dir_all("/run/netns").expect("root may write");
    let [old, recent] = [0, 1].map(|number| PathBuf::from(format!("/run/netns/ff-e2e-{pid}-{number}-n1")));
    for network in [&old, &recent] {
        File::create(network).expect("root may write");
    }
    let file = File::options().write(true).open(&old).expect("it exists");
    file.set_modified(SystemTime::now() - OLD).expect("our own file");
    let (ended, _directory) = InnerRun::start(&["kinds::passes"]).end();
    let left = [&old, &recent].map(|network| network.exists());
    fs::remove_file(&recent).expect("the run has left it");
    // Fails if other namespaces have names there.
    let _ = fs::remove_dir("/run/netns");
    assert_eq!(left, [false, true], "{}", ended.stdout);
}

/// A process waits for a file system that it serves itself, so SIGKILL does not end it.
pub(super) fn own_file_system() {
    let (ended, _directory) = run_in_own_mounts(|| InnerRun::start(&["hostile::waits_for_its_own_file_system"])).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    require(&ended, !ended.stdout.contains("not removed"), "everything is removed");
}

pub(super) fn hidden_mount() {
    run_in_own_mounts(|| {
        let inner = InnerRun::start(&["hostile::hides_a_mount"]);
        inner.wait_until_staying();
        let directory = terminate(inner);
        let mounts = table::read_thread_mounts().expect("the kernel lists the mounts");
        let left: Vec<_> = mounts.iter().filter(|mount| mount.source == "farfork-test").collect();
        assert!(left.is_empty(), "{left:?}");
        drop(directory);
    });
}
