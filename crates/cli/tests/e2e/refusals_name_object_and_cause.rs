//! An impossible request fails at once. The message names the object and the cause, and the parent is unharmed.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_sys::cgroup::{self, freezer};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Cluster, FailedCommand, Parent, Program, Seed, programs, scratch, wait};
use crate::runner::FreezerGroup;
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("an_unknown_node", unknown_node),
    Test::shared("an_unknown_seed_or_child", unknown_ids),
    Test::shared("a_missing_path_of_a_bind_mount", missing_bind),
    Test::shared("a_process_that_does_not_exist", no_process),
    Test::shared("a_kernel_thread", kernel_thread),
    Test::shared("an_unsupported_socket", |cluster| refused(cluster, "socket", &["fd 3", "socket"])),
    Test::shared("sealed_memory", |cluster| refused(cluster, "sealed", &["sealed"])),
    Test::shared("a_traced_process", |cluster| refused(cluster, "traced", &["traces it"])),
    Test::shared("a_process_in_vfork", |cluster| refused(cluster, "vfork", &["vfork"])),
    Test::shared("a_process_whose_main_thread_has_ended", |cluster| refused(cluster, "leaderless", &["main thread"])),
    Test::shared("a_frozen_process", frozen),
    Test::shared("a_32_bit_program", program_32_bit),
    Test::shared("a_template", template),
    Test::shared("a_missing_file_of_the_child", missing_file),
    Test::shared("a_named_pipe_that_the_childs_node_lacks", missing_pipe),
    Test::shared("a_stopped_container", stopped_container),
    Test::shared("names_that_are_too_long", too_long),
    Test::shared("an_unreadable_process", unreadable_process),
    Test::shared("a_wrong_command_line", wrong_usage),
    Test::shared("a_value_without_a_unit", missing_unit),
    Test::shared("a_payload_file_that_cannot_be_read", unreadable_payload),
    Test::shared("a_full_output_device", no_output),
    Test::shared("a_cluster_of_another_name", other_cluster),
    Test::shared("a_missing_daemon", no_daemon),
];

/// Time limit of a refusal, against hangs. If the process never stops, prepare ends after a shorter time limit of its
/// own.
const REFUSAL_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait until a control group is frozen.
const FROZEN_LIMIT: Duration = Duration::from_secs(60);

fn unknown_node(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    cluster.first().run_failing(&["fork", seed.id(), "--to", "nowhere"]).require_mentions(&[
        "nowhere",
        cluster.name(0),
        cluster.name(2),
    ]);
    cluster
        .first()
        .run_failing(&["fork", seed.id(), "--to", "nowhere", "--detach", "-n", "3"])
        .require_mentions(&["nowhere"]);
    let said = cluster.first().json_ignoring_status(&["fork", seed.id(), "--to", "nowhere", "--detach", "-n", "3"]);
    assert!(said.to_string().contains("nowhere"), "{said}");
    let address = cluster.first().run_failing(&["fork", seed.id(), "--to", "10.156.67.2"]);
    address.require_mentions(&["10.156.67.2", "is an address", "farfork nodes"]);
    // A space after the comma is no part of a name.
    seed.fork_idle(2, &["--to", &format!("{}, {}", cluster.name(0), cluster.name(1))]);
    parent.require_unharmed();
}

fn unknown_ids(cluster: &Cluster) {
    let (seed, child) =
        (format!("{}.s0123456789abcdef", cluster.name(0)), format!("{}.c0123456789abcdef", cluster.name(1)));
    cluster.first().run_failing(&["fork", &seed]).require_mentions(&[&seed]);
    cluster.first().run_failing(&["drop", &seed]).require_mentions(&[&seed]);
    cluster.first().run_failing(&["inspect", &child]).require_mentions(&[&child]);
    cluster.first().run_failing(&["kill", &child]).require_mentions(&[&child]);
    cluster.first().run_failing(&["logs", &child]).require_mentions(&[&child]);
    cluster.first().run_failing(&["wait", &child]).require_mentions(&[&child]);
    cluster.first().run_failing(&["fork", "nowhere.s0123456789abcdef"]).require_mentions(&["nowhere"]);
    cluster.first().run_failing(&["fork", "no-such-name"]).require_mentions(&["no-such-name", "unless sealed"]);
    cluster.first().run_failing(&["fork", "4711"]).require_mentions(&["4711", "`farfork prepare 4711`"]);
    for command in ["kill", "logs", "wait"] {
        cluster.first().run_failing(&[command, &seed]).require_mentions(&[&seed, "id of a seed", "farfork ps"]);
    }
    cluster.first().run_failing(&["drop", &child]).require_mentions(&[&child, "id of a child", "farfork kill"]);
}

/// Children that fail for the same reason are reported together.
fn missing_bind(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--detach", "-n", "3", "--bind", "/missing:/mnt"]);
    refused.require_mentions(&["3 children", "the path /missing of --bind does not exist", "create it"]);
    assert_eq!(refused.message.matches("/missing").count(), 1, "{}", refused.message);
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--detach", "--shared", "/missing"]);
    refused.require_mentions(&["the path /missing of --shared does not exist", "create it"]);
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--detach", "--bind", "/etc:/etc/passwd"]);
    refused.require_mentions(&["/etc", "/etc/passwd", "a directory can cover only a directory", "name a path"]);
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--detach", "--bind", "/etc:/etc/passwd/below"]);
    refused.require_mentions(&["/etc/passwd/below", "a part of the path in the container is a file", "another path"]);
}

fn no_process(cluster: &Cluster) {
    // Above the largest process id of Linux.
    let pid = (1_u32 << 22) + 5;
    cluster.first().run_failing(&["prepare", &pid.to_string()]).require_mentions(&[&pid.to_string(), "pgrep"]);
    cluster
        .first()
        .run_failing(&["prepare", "no-such-parent"])
        .require_mentions(&["no-such-parent", "farfork run --name"]);
}

fn kernel_thread(cluster: &Cluster) {
    let is_kernel_thread = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("Kthread:\t1")
    };
    let pid = (2..1000).find(is_kernel_thread).expect("a kernel thread is visible").to_string();
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&pid, "kernel"]);
}

/// prepare and check refuse the parent for the same reason.
fn refused(cluster: &Cluster, reason: &str, words: &[&str]) {
    let mut parent = Parent::start(Program::Situation("refused"), &[reason]);
    parent.wait_for_ticks(5);
    let pid = parent.pid_text();
    let begin = Instant::now();
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&[&*pid], words].concat());
    assert!(begin.elapsed() < REFUSAL_LIMIT, "it took {:?}", begin.elapsed());
    let checked = cluster.first().run(&["check", &pid]);
    let said = format!("{}{}", checked.stdout, checked.stderr).to_lowercase();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(words.iter().all(|word| said.contains(&word.to_lowercase())), "check says {said}");
    parent.require_unharmed();
}

/// Freezes the parent with the cgroup freezer of the machine. The parent must not check for EINTR, because the version 1
/// freezer interrupts system calls.
fn frozen(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Threads, &["4"]);
    let freezer = Freezer::of(&parent);
    let pid = parent.pid_text();
    let begin = Instant::now();
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&pid, "frozen"]);
    assert!(begin.elapsed() < REFUSAL_LIMIT, "it took {:?}", begin.elapsed());
    drop(freezer);
    parent.require_unharmed();
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 3, &["--to", cluster.name(1)]);
}

/// A process that is killed, with its children, when this is dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // kill(2) fails if the process has ended. The test has noticed this before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child with `--bind` is not copied from a zygote: `farfork-init`, the stub of its container, forks it.
fn stopped_container(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut containers = BTreeSet::new();
    let signal_containers = |containers: &BTreeSet<i32>, signal| {
        for pid in containers {
            // ESRCH: the process belonged to another child, or to a pool that was too large.
            let _ = kill_process(Pid::from_raw(*pid).expect("a process"), signal);
        }
    };
    // The pool may build a container after the listing. Then the child starts in that container.
    let refused = wait::poll_within(REFUSAL_LIMIT, || {
        containers.extend(cluster.processes("farfork-init"));
        signal_containers(&containers, Signal::STOP);
        let begin = Instant::now();
        let ended = cluster.first().run(&["fork", seed.id(), "--detach", "--bind", "/usr:/mnt"]);
        (!ended.status.success()).then(|| (FailedCommand::of(ended), begin.elapsed()))
    });
    signal_containers(&containers, Signal::CONT);
    let (refused, lasted) = refused.expect("a fork is refused when every container is stopped");
    refused.require_mentions(&["stopped", "farfork-init", "fork again"]);
    assert!(lasted < REFUSAL_LIMIT, "it took {lasted:?}");
    parent.require_unharmed();
}

fn program_32_bit(cluster: &Cluster) {
    let directory = scratch::directory();
    let binary = directory.path().join("program_32_bit");
    let mut compiler = Command::new("gcc");
    compiler.args(["-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-no-pie", "-fno-stack-protector"]);
    compiler.arg(programs::sources().join("situations/program_32_bit.c")).arg("-o").arg(&binary);
    assert!(compiler.status().expect("gcc").success());
    let process = KilledOnDrop(Command::new(&binary).stdin(Stdio::null()).spawn().expect("32-bit programs run here"));
    let pid = process.0.id().to_string();
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&pid, "32-bit"]);
}

fn template(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let pid = seed.template_pid().to_string();
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&pid]);
    seed.fork_and_check(&parent, 4, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}

/// The parent's current directory is missing on the child's node, or is a file.
fn missing_file(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("current").to_string_lossy().into_owned();
    fs::create_dir(&path).expect("a directory of ours");
    let parent = Parent::start_command(Program::Waits.command().arg("4").current_dir(&path));
    let seed = Seed::prepare(cluster.first(), &parent);
    // Waits until the seed is complete. Before that, the directory would count as deleted.
    seed.template_pid();
    fs::remove_dir(&path).expect("the directory was there");
    require_missing(cluster, &seed, &path, "No such file or directory");
    fs::write(&path, "").expect("a file of ours");
    require_missing(cluster, &seed, &path, "not a directory");
    fs::remove_file(&path).expect("the file was there");
    fs::create_dir(&path).expect("a directory of ours");
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
}

/// The parent has a named pipe open, which is missing on the child's node, or is another file.
fn missing_pipe(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("pipe").to_string_lossy().into_owned();
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    // Not a standard stream: an attached child has the standard streams of the command.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" 3<>\"$0\"", &path]).arg(Program::Waits.command().get_program()).arg("4");
    let parent = Parent::start_command(&mut shell);
    let seed = Seed::prepare(cluster.first(), &parent);
    // Waits until the seed is complete. Before that, the pipe would count as deleted.
    seed.template_pid();
    fs::remove_file(&path).expect("the pipe was there");
    require_missing(cluster, &seed, &path, "No such file or directory");
    fs::write(&path, "").expect("a file of ours");
    require_missing(cluster, &seed, &path, "not a named pipe");
}

/// Requires that a fork fails. The error must name the missing file, the cause and the next step.
fn require_missing(cluster: &Cluster, seed: &Seed, path: &str, cause: &str) {
    let node = format!("on node {}", cluster.name(1));
    cluster.first().run_failing(&["fork", seed.id(), "--to", cluster.name(1)]).require_mentions(&[
        &node,
        &format!("the seed needs {path}, which this node lacks"),
        cause,
        "copy it to the same path on that node",
        "share its directory",
    ]);
}

/// Errors contain only a part of a long name, because an HTTP/2 status has room for 16 KiB.
fn too_long(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let (long, pid) = ("x".repeat(70_000), parent.pid_text());
    cluster
        .first()
        .run_failing(&["prepare", &pid, "--name", &long])
        .require_mentions(&["name of 70000 bytes", "63 bytes"]);
    cluster
        .first()
        .run_failing(&["prepare", &pid, "--label", &format!("a={long}")])
        .require_mentions(&["70000 bytes", "63 bytes"]);
    for command in ["kill", "inspect", "logs", "drop", "fork"] {
        let refused = cluster.first().run_failing(&[command, &long]);
        refused.require_mentions(&["xxxx", "bytes more", "list"]);
        assert!(refused.message.len() < 8 << 10, "{} bytes", refused.message.len());
    }
    parent.require_unharmed();
}

/// On some machines, even root may not read process 1. The refusal gives the reason, and what to prepare instead.
fn unreadable_process(cluster: &Cluster) {
    if fs::read("/proc/1/auxv").is_ok() {
        // This machine could prepare process 1, which would stop it.
        return;
    }
    cluster.first().run_failing(&["prepare", "1"]).require_mentions(&[
        "process 1",
        "Permission denied",
        "CAP_SYS_PTRACE",
        "prepare the program",
    ]);
    cluster.first().run_failing(&["check", "1"]).require_mentions(&[
        "process 1",
        "Permission denied",
        "CAP_SYS_PTRACE",
    ]);
}

fn wrong_usage(cluster: &Cluster) {
    for arguments in [
        &["fork"][..],
        &["prepare", "../me"],
        &["run", "--name", "7", "--", "true"],
        &["fork", "x", "-n", "0"],
        &["fork", "x", "-n", "16385"],
        &["fork", "x", "--bind", "/a"],
        &["fork", "x", "--memory", "0"],
        &["fly"],
        &["bench", "rpc", "--client-seconds", "5", "--server-seconds", "4"],
    ] {
        let refused = cluster.first().run_failing(arguments);
        assert_eq!(refused.status, 2, "{arguments:?}: {}", refused.message);
    }
    let lines = scratch::file("1\n2\n");
    let path = lines.path().to_string_lossy();
    let refused = cluster.first().run_failing(&["fork", "x", "-n", "3", "--payloads", &path]);
    assert!(refused.status == 2 && refused.message.contains("it has 2 lines, and -n says 3"), "{refused:?}");
    for (command, option) in [("drop", "--label"), ("rm", "--ended")] {
        let refused = cluster.first().run_failing(&[command]);
        assert!(refused.status == 2 && refused.message.contains(option), "{refused:?}");
    }
    let refused = cluster.first().run_failing(&["frobnicate"]);
    assert!(refused.status == 2 && refused.message.contains("`farfork help` lists the commands"), "{refused:?}");
}

/// The error names the option and the expected format.
fn missing_unit(cluster: &Cluster) {
    let node = ["node", "--name", "n9", "--listen", "127.0.0.1:9"];
    let duration = "5 has no unit: write 5ms, 5s or 5m";
    for (arguments, option, cause) in [
        (&["fork", "x", "--memory", "512"][..], "--memory", "512 has no unit: write 512KiB, 512MiB or 512GiB"),
        (&["fork", "x", "--memory", "512M"], "--memory", "M is not a unit: write 512MiB"),
        (&[&node[..], &["--cache", "2GB"]].concat(), "--cache", "GB is not a unit: write 2GiB"),
        (&[&node[..], &["--seed-memory", "8"]].concat(), "--seed-memory", "8 has no unit"),
        (&["fork", "x", "--timeout", "5"], "--timeout", duration),
        (&["wait", "x", "--timeout", "5"], "--timeout", duration),
        (&["settle", "x", "--timeout", "5"], "--timeout", duration),
        (&["prepare", "1", "--ttl", "5"], "--ttl", duration),
        (&["cluster", "token", "--ttl", "5"], "--ttl", duration),
    ] {
        let refused = cluster.first().run_failing(arguments);
        assert_eq!(refused.status, 2, "{arguments:?}: {}", refused.message);
        let names_both = refused.message.contains(option) && refused.message.contains(cause);
        assert!(names_both, "{arguments:?}: {}", refused.message);
    }
}

/// The payload file is read before the node gets a request.
fn unreadable_payload(cluster: &Cluster) {
    let directory = scratch::directory();
    let (missing, step) = (directory.path().join("tasks.jsonl"), "or `-` for standard input");
    let empty = scratch::file("");
    for option in ["--payload", "--payloads"] {
        for (path, cause) in [(missing.as_path(), "it does not exist"), (directory.path(), "it is a directory")] {
            let path = path.to_string_lossy();
            let refused = cluster.first().run_failing(&["fork", "x", option, &path]);
            refused.require_mentions(&[&format!("payload file {path}"), cause, step]);
        }
    }
    let path = empty.path().to_string_lossy();
    cluster.first().run_failing(&["fork", "x", "--payloads", &path]).require_mentions(&[
        &format!("payload file {path}"),
        "it is empty",
        "write one line for each child",
    ]);
}

/// A failed write of the output is an error: a later reader must not mistake a part of the output for all of it. A
/// closed pipe is not an error.
fn no_output(cluster: &Cluster) {
    for arguments in [&["nodes"][..], &["nodes", "--json"], &["inspect", cluster.name(0)], &["man", "fork"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("every kernel has it");
        let mut command = cluster.first().command(arguments);
        let ended = command.stdout(full).output().expect("the binary under test can be started");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("No space left on device"), "{arguments:?}: {said}");
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended =
        cluster.first().command(&["nodes"]).stdout(writer).output().expect("the binary under test can be started");
    assert!(ended.status.success() && ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// `down --name` must not stop a cluster with another name.
fn other_cluster(cluster: &Cluster) {
    let directory =
        cluster.run_dir(0).parent().expect("the run directory of the cluster").to_string_lossy().into_owned();
    let down = ["down", "--name", "another", "--run-dir", &directory];
    cluster.first().run_failing(&down).require_mentions(&[&directory, "another", "--run-dir"]);
    let nodes = cluster.first().json(&["nodes"]);
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(3), "{nodes}");
}

fn no_daemon(_: &Cluster) {
    let directory = scratch::directory();
    let socket = directory.path().join("node.sock");
    let farfork = crate::harness::Farfork::at(&socket);
    farfork.run_failing(&["nodes"]).require_mentions(&[&socket.to_string_lossy()]);
}

/// A control group that contains one frozen process. Dropping it thaws the process and moves it back.
struct Freezer {
    group: FreezerGroup,
    pid: i32,
}

impl Freezer {
    fn of(parent: &Parent) -> Self {
        let group = FreezerGroup::of_worker().expect("a freezer is mounted");
        cgroup::create(&group.directory).expect("root can make a control group");
        let freezer = Self { group, pid: parent.pid() };
        let FreezerGroup { directory, version, .. } = &freezer.group;
        cgroup::move_process(directory, freezer.pid).expect("the parent can be moved");
        freezer::freeze(directory, *version, FROZEN_LIMIT).expect("the group can be frozen");
        freezer
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // Also runs when a test panics. If thawing fails, the test notices the missing tick of the parent.
        let _ = freezer::thaw(&self.group.directory, self.group.version);
        let _ = cgroup::move_process(&self.group.home, self.pid);
        let _ = fs::remove_dir(&self.group.directory);
    }
}
