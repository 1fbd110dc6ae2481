//! An attached child uses the command's standard streams, receives its signals, and gives it its exit status. The
//! writes of a child stay private unless a path is shared or bound.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use crate::harness::seed::without_ticks;
use crate::harness::{Cluster, Parent, Program, Seed, WAIT_TIMEOUT, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("an_attached_child_has_the_commands_standard_streams", streams),
    Test::shared("the_command_exits_with_the_childs_status", exit_status),
    Test::shared("signals_are_forwarded_to_the_child", signals),
    Test::shared("a_second_sigint_ends_a_child_that_ignores_it", ignored_signal),
    Test::shared("sigint_ends_all_attached_children", several_signalled),
    Test::shared("the_first_sigterm_stops_the_starts_of_many_children", stopped_starts),
    Test::shared("sigterm_stops_the_starts_of_detached_children", stopped_detached),
    Test::shared("a_child_ends_when_its_output_has_no_reader", no_reader),
    Test::shared("several_children_end_when_their_output_has_no_reader", no_reader_of_several),
    Test::shared("a_killed_child_has_the_shells_exit_status", killed),
    Test::shared("logs_show_the_output_of_a_detached_child", logs),
    Test::shared("each_child_has_its_own_exit_status", independent_ends),
    Test::shared("a_failed_child_is_named_by_the_line_of_its_payload", failed_line),
    Test::shared("writes_of_a_child_do_not_reach_the_node", own_files),
    Test::shared("a_shared_path_is_the_same_file", shared_files),
    Test::shared("a_bound_directory_is_visible_to_the_child", bound_directory),
    Test::shared("a_child_that_takes_too_long_is_killed", timeout),
];

const ATTACHED_LIMIT: Duration = Duration::from_secs(100);

fn start_streams() -> Parent {
    Parent::start(Program::Situation("streams"), &[])
}

fn streams(cluster: &Cluster) {
    let parent = start_streams();
    let seed = Seed::prepare(cluster.first(), &parent);
    let payload = scratch::file("12");
    let payload_path = payload.path().to_string_lossy();
    let arguments = ["fork", seed.id(), "--to", cluster.name(1), "--payload", &payload_path];
    let mut child = cluster.first().command(&arguments).stdin(Stdio::piped()).spawn().expect("the binary");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"one\ntwo words\n").expect("the command reads its input");
    drop(stdin);
    let ended = wait::wait_with_output(child, "an attached child", ATTACHED_LIMIT);
    assert_eq!(without_ticks(&ended.stdout), "child 12\nreceived one\nreceived two words\nend of input\n");
    assert_eq!(ended.stderr, "child 12 on standard error\n");
    assert_eq!(ended.status.code(), Some(42));
}

fn exit_status(cluster: &Cluster) {
    let parent = start_streams();
    let seed = Seed::prepare(cluster.first(), &parent);
    for status in [0, 1, 99, 255] {
        let ended = seed.fork_attached(&format!("1 {status}"), &["--to", cluster.name(1)]);
        assert_eq!(ended.status.code(), Some(status), "{}", ended.stderr);
    }
}

fn signals(cluster: &Cluster) {
    let parent = start_streams();
    let seed = Seed::prepare(cluster.first(), &parent);
    let payload = scratch::file("13");
    let payload_path = payload.path().to_string_lossy();
    let arguments = ["fork", seed.id(), "--to", cluster.name(1), "--payload", &payload_path];
    // Standard input stays open, so that the child waits for more.
    let mut child = cluster.first().command(&arguments).stdin(Stdio::piped()).spawn().expect("the binary");
    let stdin = child.stdin.take();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("child 13\n") {
        assert!(stdout.read_line(&mut said).expect("a pipe") > 0, "the child ended too early: {said}");
    }
    let pidfd = farfork_sys::pidfd::open(child.id().cast_signed()).expect("our own child");
    farfork_sys::pidfd::send_signal(&pidfd, 15).expect("our own child");
    let ended = wait::wait_with_output(child, "a terminated child", ATTACHED_LIMIT);
    drop(stdin);
    stdout.read_to_string(&mut said).expect("a pipe");
    assert_eq!(without_ticks(&said), "child 13\nterminated\n", "{}", ended.stderr);
    assert_eq!(ended.status.code(), Some(7));
}

/// A shell without job control starts background programs with SIGINT ignored, and a child inherits this.
fn ignored_signal(cluster: &Cluster) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$@\"", "sh"]).arg(Program::Waits.command().get_program()).arg("4");
    let parent = Parent::start_command(&mut shell);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut command = cluster.first().command(&["fork", seed.id(), "--to", cluster.name(1)]);
    let mut command = command.stdout(Stdio::null()).spawn().expect("the binary");
    wait::wait_until("the child runs", ATTACHED_LIMIT, || (running(cluster, &seed) == 1).then_some(()));
    let pidfd = farfork_sys::pidfd::open(command.id().cast_signed()).expect("our own child");
    // The signals are repeated because the command takes two in quick succession for one.
    let ended = wait::wait_until("the command ends", ATTACHED_LIMIT, || {
        // ESRCH: the command has ended.
        let _ = farfork_sys::pidfd::send_signal(&pidfd, 2);
        thread::sleep(Duration::from_millis(300));
        command.try_wait().expect("our own child")
    });
    assert_eq!(ended.code(), Some(137));
    assert_eq!(running(cluster, &seed), 0);
}

/// Sends SIGINT to a command that waits for children that never end.
fn several_signalled(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = cluster.names(&[0, 1]);
    let command = cluster.first().spawn(&["fork", seed.id(), "--to", &to, "-n", "4"]);
    wait::wait_until("all of them run", ATTACHED_LIMIT, || (running(cluster, &seed) == 4).then_some(()));
    let pidfd = farfork_sys::pidfd::open(command.id().cast_signed()).expect("our own child");
    farfork_sys::pidfd::send_signal(&pidfd, 2).expect("our own child");
    let ended = wait::wait_with_output(command, "a command that was interrupted", ATTACHED_LIMIT);
    assert_eq!((ended.status.code(), ended.stderr.matches("SIGTERM").count()), (Some(1), 4), "{}", ended.stderr);
    assert_eq!(running(cluster, &seed), 0);
}

/// Sends one SIGTERM while children start, then in another fork SIGTERM and SIGINT. Each child is either ended, or was never started. If the nodes started all
/// children before the signal, a larger fork follows.
fn stopped_starts(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    for signals in [&[15][..], &[15, 2]] {
        let never_started = [300, 3000]
            .into_iter()
            .map(|count| stop_starts_of(cluster, &seed, count, signals))
            .find(|count| *count > 0);
        assert!(never_started.is_some(), "all children were started");
    }
}

/// Returns how many of the children were never started.
fn stop_starts_of(cluster: &Cluster, seed: &Seed, count: usize, signals: &[i32]) -> usize {
    let (document, never_started) = signal_fork(cluster, seed, count, signals, &[]);
    let children = document["children"].as_array().expect("children");
    let terminated = children.iter().filter(|child| child["signal"] == 15 || child["signal"] == 9).count();
    assert_eq!(never_started + terminated, count, "{document}");
    assert_eq!(running(cluster, seed), 0);
    never_started
}

/// As `stopped_starts`, with --detach: the children that were started continue, and the command prints their ids.
fn stopped_detached(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut never_started = [300, 3000].into_iter().map(|count| {
        let (document, never_started) = signal_fork(cluster, &seed, count, &[15], &["--detach"]);
        let children = document["children"].as_array().expect("children").iter();
        let started: Vec<&str> = children.filter_map(|child| child["child"].as_str()).collect();
        assert_eq!(never_started + started.len(), count, "{document}");
        assert_eq!(running(cluster, &seed), started.len());
        let killed = cluster.first().run(&[&["kill", "--signal", "KILL", "--wait"], &*started].concat());
        killed.require_success();
        assert_eq!(running(cluster, &seed), 0);
        never_started
    });
    assert!(never_started.any(|count| count > 0), "all children were started");
    let dropped = cluster.first().run(&["drop", seed.id()]);
    dropped.require_success();
    std::mem::forget(seed);
}

/// Forks children, and sends signals to the command when some of them run, SIGTERM first. Returns its document, and how many
/// children were never started.
fn signal_fork(
    cluster: &Cluster,
    seed: &Seed,
    count: usize,
    signals: &[i32],
    options: &[&str],
) -> (serde_json::Value, usize) {
    let (to, requested) = (cluster.names(&[0, 1]), count.to_string());
    let arguments = ["fork", seed.id(), "--to", &to, "-n", &requested, "--json"];
    let command = cluster.first().spawn(&[&arguments, options].concat());
    wait::wait_until("some of them run", ATTACHED_LIMIT, || (running(cluster, seed) > 0).then_some(()));
    let pidfd = farfork_sys::pidfd::open(command.id().cast_signed()).expect("our own child");
    for signal in signals {
        farfork_sys::pidfd::send_signal(&pidfd, *signal).expect("our own child");
    }
    let ended = wait::wait_with_output(command, "a command that was stopped", ATTACHED_LIMIT);
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).expect("a document");
    let children = document["children"].as_array().expect("children");
    let is_never_started =
        |child: &&serde_json::Value| child["error"].as_str().is_some_and(|error| error.contains("never started"));
    let never_started = children.iter().filter(is_never_started).count();
    assert_eq!(document["never_started"], never_started, "{}", ended.stderr);
    if never_started > 0 {
        // Of signals that wait at the same time, the kernel delivers the one with the lowest number first. A command that
        // runs in between gets them in the order in which they were sent.
        let status = ended.status.code().expect("an exit status");
        assert!(signals.contains(&(status - 128)), "exit status {status}: {}", ended.stderr);
        let line = format!("{never_started} of {count} children were never started");
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
    }
    (document, never_started)
}

fn running(cluster: &Cluster, seed: &Seed) -> usize {
    let said = cluster.first().json(&["ps", "--running"]);
    let is_ours = |child: &&serde_json::Value| child["seed"] == seed.id();
    said["children"].as_array().map_or(0, |children| children.iter().filter(is_ours).count())
}

fn no_reader(cluster: &Cluster) {
    end_without_reader(cluster, "1");
}

fn no_reader_of_several(cluster: &Cluster) {
    end_without_reader(cluster, "3");
}

/// Reads one line of children that write forever, and closes the pipe.
fn end_without_reader(cluster: &Cluster, count: &str) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut command = cluster.first().spawn(&["fork", seed.id(), "--to", cluster.name(1), "-n", count]);
    let mut line = String::new();
    let read = BufReader::new(command.stdout.take().expect("a pipe")).read_line(&mut line);
    assert!(read.is_ok() && line.starts_with("tick "), "{line}");
    let ended = wait::wait_with_output(command, "a command without a reader", ATTACHED_LIMIT);
    assert_eq!((ended.status.code(), &*ended.stderr), (Some(141), ""));
    wait::wait_until("none runs", ATTACHED_LIMIT, || (running(cluster, &seed) == 0).then_some(()));
}

fn killed(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = &seed.fork_idle(1, &["--to", cluster.name(1)])[0];
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    let said = cluster.first().json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &child.id]);
    assert_eq!((&said["children"][0]["exit_code"], &said["children"][0]["signal"]), (&137.into(), &9.into()), "{said}");
}

fn logs(cluster: &Cluster) {
    let parent = start_streams();
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(&["21 5".to_owned()], &["--to", cluster.name(2)]);
    cluster.first().json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &children[0].id]);
    // A detached child's standard input is empty.
    let logs = cluster.first().json(&["logs", &children[0].id]);
    let stdout = logs["stdout"].as_str().map(without_ticks);
    assert_eq!(stdout.as_deref(), Some("child 21\nend of input\n"));
    assert_eq!(logs["stderr"], "child 21 on standard error\n");
    let inspected = cluster.first().json(&["inspect", &children[0].id]);
    assert_eq!((&inspected["state"], &inspected["exit_code"]), (&"exited".into(), &5.into()), "{inspected}");
    for key in ["faults", "pages_fetched", "bytes_fetched"] {
        assert!(inspected[key].as_u64().is_some_and(|count| count > 0), "{key}: {inspected}");
    }
}

fn independent_ends(cluster: &Cluster) {
    let parent = start_streams();
    let seed = Seed::prepare(cluster.first(), &parent);
    let payloads: Vec<String> = (0..6).map(|number| format!("{number} {}", number * 3)).collect();
    let children = seed.fork_detached(&payloads, &["--to", &cluster.names(&[0, 1, 2])]);
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    let said = cluster.first().json_ignoring_status(&[&["wait", "--timeout", WAIT_TIMEOUT], &ids[..]].concat());
    let codes: Vec<_> =
        said["children"].as_array().expect("children").iter().map(|end| end["exit_code"].as_u64()).collect();
    assert_eq!(codes, [0, 3, 6, 9, 12, 15].map(Some), "{said}");
}

/// The output of several children has no gaps, so the error says which result is missing.
fn failed_line(cluster: &Cluster) {
    let parent = start_streams();
    let seed = Seed::prepare(cluster.first(), &parent);
    let file = scratch::file("0 0\n1 3\n2 0\n");
    let path = file.path().to_string_lossy();
    let ended = cluster.first().run(&["fork", seed.id(), "--to", cluster.name(1), "--payloads", &path]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let [cause, step] = ended.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", ended.stderr) };
    let child =
        cause.strip_prefix(&format!("farfork: line 2 of {path}: ")).and_then(|rest| rest.strip_suffix("  exit 3"));
    assert_eq!(step.trim_start(), format!("see `farfork logs {}`", child.unwrap_or_else(|| panic!("{cause}"))));

    let refused = cluster.first().run(&["fork", seed.id(), "--payloads", &path, "--memory", "4KiB", "--detach"]);
    let lines = refused.stderr.matches(&format!("farfork: lines 1, 2, 3 of {path}: ")).count();
    assert_eq!((refused.status.code(), lines), (Some(1), 1), "{}", refused.stderr);
}

/// Starts a parent with an open file, and returns the file's contents after a child has written to it.
fn write_with(cluster: &Cluster, options: &[&str]) -> String {
    let directory = scratch::directory();
    let path = directory.path().join("file");
    let path_text = path.to_string_lossy().into_owned();
    let mut parent = Parent::start(Program::Situation("appending"), &[&path_text]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let directory_text = directory.path().to_string_lossy().into_owned();
    let options: Vec<&str> =
        options.iter().map(|o| if *o == "DIRECTORY" { directory_text.as_str() } else { o }).collect();
    seed.fork_and_check(&parent, 8, &[&["--to", cluster.name(1)], &options[..]].concat());
    parent.require_unharmed();
    fs::read_to_string(&path).expect("the file is there")
}

fn own_files(cluster: &Cluster) {
    assert_eq!(write_with(cluster, &[]), "parent\n");
}

fn shared_files(cluster: &Cluster) {
    assert_eq!(write_with(cluster, &["--shared", "DIRECTORY"]), "parent\nchild 8\n");
    assert_eq!(write_with(cluster, &["--shared", "/"]), "parent\nchild 8\n");
}

/// A bind mount of the child covers the directory of the parent's file.
fn bound_directory(cluster: &Cluster) {
    let (seen, bound) = (scratch::directory(), scratch::directory());
    let path = seen.path().join("file");
    fs::write(bound.path().join("file"), "bound, and longer than the parent's line\n").expect("a small file");
    let mut parent = Parent::start(Program::Situation("appending"), &[&path.to_string_lossy()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let bind = format!("{}:{}", bound.path().display(), seen.path().display());
    seed.fork_and_check(&parent, 9, &["--to", cluster.name(1), "--bind", &bind]);
    let written = fs::read_to_string(bound.path().join("file")).expect("the bound file");
    assert!(written.starts_with("bound, child 9\n"), "{written}");
    assert_eq!(fs::read_to_string(&path).expect("the parent's file"), "parent\n");
    parent.require_unharmed();
}

fn timeout(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_idle(1, &["--to", cluster.name(1), "--timeout", "500ms"]);
    let said = cluster.first().json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &children[0].id]);
    assert_eq!(said["children"][0]["signal"], 9, "{said}");
}
