//! `farfork exec` runs a program in the container of a child: with its files, processes and limits, and with no right that the
//! child lacks.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::harness::wait::CommandOutput;
use crate::harness::{Cluster, Farfork, Parent, Program, Seed, StartedChild, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("with_its_namespaces_and_control_groups", same_places),
    Test::shared("with_streams_status_and_signals", streams),
    Test::shared("without_a_right_that_an_untrusted_child_lacks", untrusted),
    Test::shared("with_a_binary_that_they_cannot_write", binary_is_read_only),
    Test::shared("until_the_command_is_killed", killed),
    Test::shared("or_are_refused_with_the_next_step", refused),
];

/// Longest wait for the start or the end of a program.
const LIMIT: Duration = Duration::from_secs(60);

/// Input and output of a program: many messages of a stream.
const STREAM_BYTES: usize = 3 << 20;

/// A child on another node than the one that gets the requests.
struct ExecTarget<'a> {
    farfork: &'a Farfork,
    child: StartedChild,
    _seed: Seed,
    _parent: Parent,
}

impl<'a> ExecTarget<'a> {
    fn start(cluster: &'a Cluster, options: &[&str]) -> Self {
        let parent = Parent::start(Program::Threads, &[]);
        let seed = Seed::prepare(cluster.first(), &parent);
        let child = seed.fork_idle(1, &[&["--to", cluster.name(1)], options].concat()).remove(0);
        Self { farfork: cluster.first(), child, _seed: seed, _parent: parent }
    }

    fn exec(&self, options: &[&str], program: &[&str]) -> CommandOutput {
        self.farfork.run(&[&["exec"], options, &[&self.child.id, "--"], program].concat())
    }

    fn shell(&self, text: &str) -> CommandOutput {
        self.exec(&[], &["sh", "-c", text])
    }

    /// The output of a shell command that succeeds.
    #[track_caller]
    fn output(&self, text: &str) -> String {
        let ended = self.shell(text);
        ended.require_success();
        ended.stdout
    }
}

impl Drop for ExecTarget<'_> {
    fn drop(&mut self) {
        self.farfork.run(&["kill", "--signal", "KILL", &self.child.id]);
    }
}

fn same_places(cluster: &Cluster) {
    let subject = ExecTarget::start(cluster, &[]);
    for kind in ["mnt", "pid", "net", "ipc", "uts", "user", "cgroup", "time"] {
        let link = fs::read_link(format!("/proc/{}/ns/{kind}", subject.child.pid)).expect("the child lives");
        let found = subject.output(&format!("readlink /proc/self/ns/{kind}"));
        assert_eq!(found.trim(), link.to_string_lossy(), "{kind}");
    }
    assert_eq!(subject.output("cat /proc/self/cgroup"), subject.output("cat /proc/1/cgroup"), "init is in its groups");
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", subject.child.pid)).expect("the child lives");
    assert_eq!(subject.output("cat /proc/self/oom_score_adj"), score);
    // The second program reads the file that the first one wrote. The node does not have the file.
    subject.output("echo kept > /tmp/written-by-exec");
    assert_eq!(subject.output("cat /tmp/written-by-exec"), "kept\n");
    assert!(!fs::exists("/tmp/written-by-exec").expect("a readable directory"), "it is a file of the child");
    let options = ["--env", "GREETING=two words", "--directory", "/usr"];
    let ended = subject.exec(&options, &["sh", "-c", "echo $GREETING; pwd; echo $HOME"]);
    let home = std::env::var("HOME").unwrap_or_default();
    assert_eq!(ended.stdout, format!("two words\n/usr\n{home}\n"), "{}", ended.stderr);
}

fn streams(cluster: &Cluster) {
    let subject = ExecTarget::start(cluster, &[]);
    let ended = subject.shell("echo out; echo err >&2; cat; exit 7");
    assert_eq!((ended.status.code(), &*ended.stdout, &*ended.stderr), (Some(7), "out\n", "err\n"), "no input");
    let mut command = subject.farfork.command(&["exec", "--stdin", &subject.child.id, "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the binary under test can be started");
    let text: String = (0..STREAM_BYTES).map(|index| char::from(b'a' + (index / 7 % 26) as u8)).collect();
    let (mut input, sent) = (child.stdin.take().expect("a pipe"), text.clone());
    let writer = thread::spawn(move || input.write_all(sent.as_bytes()).expect("the program reads its input"));
    let ended = wait::wait_with_output(child, "farfork exec", LIMIT);
    writer.join().expect("it does not panic");
    assert!(ended.stdout == text, "{} bytes of {STREAM_BYTES}, {}", ended.stdout.len(), ended.stderr);
    let status = |program: &[&str]| subject.exec(&[], program).status.code();
    assert_eq!(status(&["sh", "-c", "kill -KILL $$"]), Some(128 + 9));
    assert_eq!((status(&["no-such-program"]), status(&["/usr"])), (Some(127), Some(126)));
    let text = "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done";
    let child = subject.farfork.spawn(&["exec", &subject.child.id, "--", "sh", "-c", text]);
    wait_for_program(&subject, "echo interrupted");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("our own child");
    let ended = wait::wait_with_output(child, "farfork exec", LIMIT);
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(3), "ready\ninterrupted\n"), "{}", ended.stderr);
}

/// Waits until a process of the child's container has this text in its arguments.
fn wait_for_program(subject: &ExecTarget<'_>, text: &str) {
    wait::wait_until(&format!("the program with `{text}` runs"), LIMIT, || has_program(subject, text).then_some(()));
}

/// The shell that searches has the text in two parts, and does not find itself.
fn has_program(subject: &ExecTarget<'_>, text: &str) -> bool {
    let (first, rest) = text.split_at(1);
    !subject.shell(&format!("grep -alF {first}'{rest}' /proc/[0-9]*/cmdline")).stdout.trim().is_empty()
}

fn untrusted(cluster: &Cluster) {
    for options in [&["--untrusted"][..], &["--untrusted", "--user-namespace"]] {
        let subject = ExecTarget::start(cluster, options);
        let rights = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/";
        let (own, of_child) = (
            subject.output(&format!("{rights}self/status")),
            subject.output(&format!("{rights}{}/status", inner_pid(&subject.child))),
        );
        assert_eq!(own, of_child, "{options:?}");
        assert!(own.contains("CapBnd:\t0000000000000000\n") && own.contains("NoNewPrivs:\t1\n"), "{own}");
        for escape in ["mount -t tmpfs none /mnt", "unshare --user true", "hostname other", "chroot / true"] {
            assert!(!subject.shell(escape).status.success(), "{options:?}: {escape}");
        }
    }
}

/// A program of the child may execute the runner's binary, and other processes find it by its link in `/proc`. Nothing can
/// change the file.
fn binary_is_read_only(cluster: &Cluster) {
    let target = ExecTarget::start(cluster, &[]);
    let mut command =
        target.farfork.command(&["exec", "--stdin", &target.child.id, "--", "/proc/self/exe", "call-timer"]);
    let mut runner = command.stdin(Stdio::piped()).spawn().expect("the binary under test can be started");
    wait_for_program(&target, "call-timer");
    let attacked =
        target.shell("for p in $(grep -laF c'all-timer' /proc/[0-9]*/cmdline); do touch -c ${p%/cmdline}/exe; done");
    drop(runner.stdin.take());
    runner.wait().expect("our own child");
    assert!(attacked.stderr.contains("Read-only file system"), "{}{}", attacked.stdout, attacked.stderr);
}

/// The pid of the child in its own pid namespace.
fn inner_pid(child: &StartedChild) -> u32 {
    let status = farfork_sys::process::ProcStatus::read(child.pid).expect("the child lives");
    *status.namespace_ids.last().expect("each process has a pid")
}

fn killed(cluster: &Cluster) {
    let subject = ExecTarget::start(cluster, &[]);
    let mut child = subject.farfork.spawn(&["exec", &subject.child.id, "--", "sleep", "987654"]);
    wait_for_program(&subject, "987654");
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    wait::wait_until("the program ends", LIMIT, || (!has_program(&subject, "987654")).then_some(()));
}

fn refused(cluster: &Cluster) {
    let subject = ExecTarget::start(cluster, &[]);
    let exec = ["exec", &*subject.child.id, "--", "true"];
    subject.farfork.run(&["pause", &subject.child.id]).require_success();
    subject.farfork.run_failing(&exec).require_mentions(&[&subject.child.id, "paused", "farfork unpause"]);
    subject.farfork.run(&["unpause", &subject.child.id]).require_success();
    subject.farfork.run(&exec).require_success();
    subject.farfork.run(&["kill", "--wait", "--signal", "KILL", &subject.child.id]).require_success();
    subject.farfork.run_failing(&exec).require_mentions(&[&subject.child.id, "it has ended"]);
    subject
        .farfork
        .run_failing(&["exec", "n1.c0000000000000000", "--", "true"])
        .require_mentions(&["n1.c0000000000000000"]);
}
