//! The test programs are right by themselves: each finds nothing wrong when the payload appears in the parent's own
//! view. What one of them finds wrong in a child is then the child's fault.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Program, deadline, scratch};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[Test::alone("without_farfork", without_farfork)];

/// For Python, on a busy machine.
const PROGRAM_LIMIT: Duration = Duration::from_secs(120);

/// Not among them: fork_advice, which only a fork makes right.
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

/// In a mount namespace of its own, a program finds the directory that `$0` names at the payload's place.
const WITH_PAYLOAD_AT_ITS_PLACE: &str =
    r#"mount -t tmpfs farfork-test /run && mkdir /run/farfork && mount --bind "$0" /run/farfork && exec "$@""#;

fn without_farfork() {
    let payload = scratch::directory();
    let start = |(program, argument): &(Program, &str)| {
        let program = program.command();
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", WITH_PAYLOAD_AT_ITS_PLACE]).arg(payload.path());
        command.arg(program.get_program()).args(program.get_args()).args(Some(*argument).filter(|a| !a.is_empty()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("unshare(1) can be started")
    };
    let running: Vec<_> = PROGRAMS.iter().map(start).collect();
    std::thread::sleep(Duration::from_millis(300));
    fs::write(payload.path().join("unfinished"), "7\n").expect("the payload can be written");
    fs::rename(payload.path().join("unfinished"), payload.path().join("payload")).expect("the payload gets its name");
    for (child, (program, _)) in running.into_iter().zip(&PROGRAMS) {
        let ended = deadline::wait_with_output(child, &format!("{program:?}"), PROGRAM_LIMIT);
        assert_eq!(ended.status.code(), Some(42), "{program:?}: {}", ended.stderr);
    }
}
