//! The test programs are correct: each passes without a fork when the payload appears in its mount namespace. So an
//! error in a child is due to the fork. Dangerous programs refuse to run outside a container.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Program, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("when_a_payload_appears", payload_appears),
    Test::alone("dangerous_programs_refuse_to_run_outside_a_container", dangerous_programs),
];

/// Time limit of a program, on a busy machine. The Python program needs most of the time.
const PROGRAM_LIMIT: Duration = Duration::from_secs(120);

/// Programs, each with its argument. The list does not contain fork_advice, which passes only in a fork.
const PROGRAMS: [(Program, &str); 18] = [
    (Program::Waits, "4"),
    (Program::Threads, "4"),
    (Program::Goroutines, "4"),
    (Program::Heap, "4"),
    (Program::Arrays, "4"),
    (Program::Resource("registers"), ""),
    (Program::Resource("tasks"), ""),
    (Program::Resource("rseq"), ""),
    (Program::Resource("signals"), ""),
    (Program::Resource("identity"), ""),
    (Program::Resource("clocks"), ""),
    (Program::Resource("files"), ""),
    (Program::Resource("pipes"), ""),
    (Program::Resource("events"), ""),
    (Program::Resource("memory_kinds"), ""),
    (Program::Resource("shared_memory"), ""),
    (Program::Resource("memory_operations"), ""),
    (Program::Situation("time_limits"), "400"),
];

/// A shell script that runs a program in its mount namespace. There, the directory `$0` is at the path of the payload.
const WITH_PAYLOAD_AT_ITS_PLACE: &str =
    r#"mount -t tmpfs farfork-test /run && mkdir /run/farfork && mount --bind "$0" /run/farfork && exec "$@""#;

/// Starts a program in a new mount namespace. The program finds its payload when the file appears in the directory
/// `payload`.
fn start(program: Program, argument: &str, payload: &Path) -> Child {
    let program = program.command();
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", WITH_PAYLOAD_AT_ITS_PLACE]).arg(payload);
    command.arg(program.get_program()).args(program.get_args()).args(Some(argument).filter(|a| !a.is_empty()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("unshare(1) can be started")
}

fn write_payload(payload: &Path, text: &str) {
    fs::write(payload.join("unfinished"), text).expect("the payload can be written");
    fs::rename(payload.join("unfinished"), payload.join("payload")).expect("a rename within a directory");
}

fn payload_appears() {
    let payload = scratch::directory();
    let running: Vec<_> =
        PROGRAMS.iter().map(|(program, argument)| start(*program, argument, payload.path())).collect();
    std::thread::sleep(Duration::from_millis(300));
    write_payload(payload.path(), "7\n");
    for (child, (program, _)) in running.into_iter().zip(&PROGRAMS) {
        let ended = wait::wait_with_output(child, &format!("{program:?}"), PROGRAM_LIMIT);
        assert_eq!(ended.status.code(), Some(42), "{program:?}: {}", ended.stderr);
    }
}

/// Programs that could harm the machine refuse to run in the pid namespace in which they were started.
fn dangerous_programs() {
    for (name, payload) in [
        ("fork_bomb", "7 multiply"),
        ("escaping", "7"),
        ("file_ownership", "7"),
        ("host_names", "7"),
        ("tracing", "7 traces"),
    ] {
        let (directory, own) = (scratch::directory(), scratch::directory());
        // `file_ownership` reads this file. `escaping` would try to connect to this path.
        fs::write(own.path().join("secret"), "secret").expect("a scratch directory can be written");
        let argument = own.path().to_string_lossy();
        let argument = if ["escaping", "file_ownership"].contains(&name) { &*argument } else { "" };
        write_payload(directory.path(), payload);
        let child = start(Program::Situation(name), argument, directory.path());
        let ended = wait::wait_with_output(child, name, PROGRAM_LIMIT);
        assert!(ended.stderr.contains("refused: this is dangerous"), "{name}: {}{}", ended.stdout, ended.stderr);
        assert!(!ended.stdout.contains("open ") && !ended.stdout.contains("result "), "{name}: {}", ended.stdout);
    }
}
