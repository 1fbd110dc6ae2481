//! Runs in unusual environments: without control groups, with a linked temporary directory, after other runs and among
//! directories of other users.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use farfork_sys::mount::{self, table};
use farfork_sys::process_identity::ProcessIdentity;
use rustix::mount::{MountFlags, mount, mount_remount};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::{InnerRun, last_line, note_in, require, terminate};
use crate::harness::scratch::TestDirectory;
use crate::harness::wait::{self, CommandOutput};
use crate::harness::{run_in_own_mounts, scratch};
use crate::runner;

/// The id of a user other than root.
const OTHER_USER: u32 = 65534;

/// Starts a run with a directory and a link that other mount namespaces do not see.
const CONTAINER_SCRIPT: &str =
    "mount -t tmpfs farfork-test /run && mkdir /run/tests && TMPDIR=/run/tests exec \"$0\" \"$@\"";

/// Longest wait until a test has started.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Longest wait until a run has ended after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(60);

/// More than the time for which the runner keeps logs.
const OLD: Duration = Duration::from_secs(25 * 3600);

/// A process that has ended, and is a zombie until this value is dropped. No other process gets its pid.
struct EndedProcess {
    process: Child,
    identity: ProcessIdentity,
}

impl EndedProcess {
    fn start() -> Self {
        let process = Command::new("true").spawn().expect("true(1) is installed");
        let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&process)), only_look).expect("our own child");
        let identity = ProcessIdentity::of(process.id().cast_signed()).expect("it was not reaped");
        Self { process, identity }
    }

    /// Makes the directory of a run whose supervisor has ended. Each `number` is another run.
    fn make_directory(&self, parent: &Path, number: u64) -> PathBuf {
        let supervisor = ProcessIdentity { start_ticks: self.identity.start_ticks + number, ..self.identity };
        let directory = parent.join(runner::name_of(&supervisor));
        DirBuilder::new().mode(0o755).create(&directory).expect("the directory can be written");
        directory
    }
}

impl Drop for EndedProcess {
    fn drop(&mut self) {
        let _ = self.process.wait();
    }
}

/// Without control groups, or if they are read-only, the tests are not run: nothing would contain them.
pub(super) fn no_control_groups() {
    let make_read_only = |point: &Path| mount_remount(point, MountFlags::BIND | MountFlags::RDONLY, c"");
    let (ended, _directory) = run_without_groups(|point| mount::detach(point).expect("root may detach"));
    require(&ended, ended.stderr.contains("no control group hierarchy is mounted"), "the cause");
    let (ended, _directory) = run_without_groups(|point| make_read_only(point).expect("root may remount"));
    require(&ended, ended.stderr.contains("Read-only file system"), "the cause");
}

/// Runs a test in a mount namespace in which `change` was called with the mount point of each hierarchy.
fn run_without_groups(change: impl Fn(&Path) + Sync) -> (CommandOutput, TestDirectory) {
    let (ended, directory) = run_in_own_mounts(|| {
        let mounts = table::read_thread_mounts().expect("the kernel lists the mounts");
        let hierarchies = mounts.iter().filter(|mount| ["cgroup", "cgroup2"].contains(&mount.filesystem.as_str()));
        hierarchies.for_each(|hierarchy| change(&hierarchy.point));
        InnerRun::start(&["kinds::passes"])
    })
    .end_refused();
    require(&ended, ended.stderr.contains("mount cgroup2 at /sys/fs/cgroup"), "the next step");
    require(&ended, !ended.stdout.contains("test kinds::passes"), "no test runs");
    (ended, directory)
}

/// The kernel lists the mounts of a test under the path without links.
pub(super) fn linked_temporary_directory() {
    let directory = scratch::directory();
    symlink(".", directory.path().join("link")).expect("the directory can be written");
    let mut command = InnerRun::command(&directory, &["mounting::"]);
    command.current_dir(directory.path()).env("TMPDIR", "link");
    let inner = InnerRun::spawn(command, directory);
    inner.wait_until_staying();
    let mounts_in = |directory: &Path| {
        let mounts = table::read_thread_mounts().expect("the kernel lists the mounts");
        mounts.into_iter().filter(|mount| mount.point.starts_with(directory)).count()
    };
    assert_eq!(mounts_in(inner.directory.path()), 1);
    let directory = terminate(inner);
    assert_eq!(mounts_in(directory.path()), 0);
}

/// Another user may give a directory the name of a run, and name any process or path in it. Only a directory that no other
/// user can have changed is removed.
pub(super) fn directories_of_other_users() {
    let ended_process = EndedProcess::start();
    let directory = scratch::directory();
    let [left, writable, foreign] = [0, 1, 2].map(|number| ended_process.make_directory(directory.path(), number));
    fs::set_permissions(&writable, Permissions::from_mode(0o777)).expect("our own directory");
    chown(&foreign, Some(OTHER_USER), None).expect("root may change the owner");
    let mut command = InnerRun::command(&directory, &["kinds::passes"]);
    command.env("TMPDIR", directory.path());
    let (ended, _directory) = InnerRun::spawn(command, directory).end();
    require(&ended, last_line(&ended) == "1 passed, 0 failed", "the last line");
    assert_eq!([&left, &writable, &foreign].map(|path| path.exists()), [false, true, true]);
}

/// In a user namespace, the mounts of the namespace above cannot be detached. Their files are not deleted.
pub(super) fn locked_mount() {
    let ended_process = EndedProcess::start();
    let directory = scratch::directory();
    let left = ended_process.make_directory(directory.path(), 0);
    let point = left.join("mount");
    fs::create_dir(&point).expect("the directory can be written");
    let ((ended, _directory), is_kept) = run_in_own_mounts(|| {
        mount("farfork-test", &point, "tmpfs", MountFlags::empty(), None).expect("root may mount");
        fs::write(point.join("file"), "").expect("an empty file needs no space");
        let launcher = ["unshare", "--user", "--map-root-user", "--mount"];
        let mut command = InnerRun::command_in(&launcher, &directory, &["kinds::passes"]);
        command.env("TMPDIR", directory.path());
        let ended = InnerRun::spawn(command, directory).end();
        (ended, point.join("file").exists())
    });
    assert!(is_kept, "a file of a mounted file system was deleted: {}", ended.stdout);
    let problem = format!("cannot remove of an earlier run: mount {}: ", point.display());
    require(&ended, ended.stdout.contains(&problem), "the problem is reported");
    require(&ended, last_line(&ended) == "1 passed, 0 failed", "the last line");
}

/// A run in a container has another process number, and its directory and link are not visible here.
pub(super) fn contained_run() {
    let directory = scratch::directory();
    let container = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"];
    let launcher = [&container[..], &["sh", "-c", CONTAINER_SCRIPT]].concat();
    let InnerRun { process, directory, .. } =
        InnerRun::spawn(InnerRun::command_in(&launcher, &directory, &["mounting::"]), directory);
    wait::wait_until("the test runs", START_LIMIT, || note_in(directory.path(), "parent"));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.id())).expect("it runs");
    let supervisor: i32 = children.trim().parse().expect("one child");
    let identity = ProcessIdentity::of(supervisor).expect("it runs");
    let name = runner::name_of(&ProcessIdentity { pid: 1, ..identity });
    let (other, _directory) = InnerRun::start(&["kinds::passes"]).end();
    require(&other, !other.stdout.contains(&name), "the other run leaves it alone");
    kill_process(Pid::from_raw(supervisor).expect("a process"), Signal::TERM).expect("it runs");
    let ended = wait::wait_with_output(process, "a run in a container", END_LIMIT);
    require(&ended, ended.status.code() == Some(128 + Signal::TERM.as_raw()), "the exit status");
    require(&ended, !ended.stdout.contains("FAILED"), "the test was not disturbed");
}

/// The state of a cluster is incomplete after a crash of the machine. Then the cluster has only files.
pub(super) fn unreadable_cluster() {
    let ended_process = EndedProcess::start();
    let directory = scratch::directory();
    let [crashed, recent] = [0, 1].map(|number| ended_process.make_directory(directory.path(), number));
    for run in [&crashed, &recent] {
        fs::create_dir(run.join("w1")).expect("our own directory");
        File::create(run.join("w1/cluster.json")).expect("our own directory");
    }
    let state = File::options().write(true).open(crashed.join("w1/cluster.json")).expect("it exists");
    state.set_modified(SystemTime::UNIX_EPOCH + OLD).expect("our own file");
    let mut command = InnerRun::command(&directory, &["kinds::passes"]);
    command.env("TMPDIR", directory.path());
    let (ended, _directory) = InnerRun::spawn(command, directory).end();
    require(&ended, last_line(&ended) == "1 passed, 0 failed", "the last line");
    assert_eq!([&crashed, &recent].map(|path| path.exists()), [false, true], "{}", ended.stdout);
    let problem = format!("cannot remove of an earlier run: cluster {}", recent.display());
    require(&ended, ended.stdout.contains(&problem), "the problem is reported");
}

/// The usual log directory of a run with a failure is kept for a day. A directory that the user has chosen is always kept.
pub(super) fn kept_logs() {
    let run = |filter: &str| {
        let directory = scratch::directory();
        let mut command = InnerRun::command(&directory, &[filter]);
        command.env_remove("FARFORK_TEST_LOGS");
        InnerRun::spawn(command, directory).end()
    };
    let (_, directory) = run("kinds::fails");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    let log = failures.rsplit_once("(log: ").and_then(|(_, rest)| rest.trim_end().strip_suffix(')'));
    let log = PathBuf::from(log.expect("the log is named"));
    assert!(log.exists(), "{} is missing", log.display());
    run("kinds::passes");
    assert!(log.exists(), "the next run has removed {}", log.display());
    let logs = log.parent().expect("logs are in a directory");
    let opened = File::open(logs).expect("it exists");
    opened.set_modified(SystemTime::now() - OLD).expect("our own directory");
    run("kinds::passes");
    assert!(!logs.exists(), "{} is kept forever", logs.display());

    let (_, directory) = InnerRun::start(&["kinds::passes"]).end();
    assert!(directory.path().join("logs").exists(), "another run may use the directory of FARFORK_TEST_LOGS");
}
