//! Runs whose tests write too much, remove the logs, or fail in another thread: the report still describes each failure.

use std::fs;

use super::{InnerRun, last_line, note_in, require};
use crate::harness::Disk;

/// More than the output of a test that the runner keeps, in MiB.
const LOG_MIB_MAX: u64 = 16;

/// More than the line of a failure with a long message.
const LINE_BYTES_MAX: usize = 4 << 10;

/// More than the report of a failure with a long message.
const STDOUT_BYTES_MAX: usize = 128 << 10;

/// Two processes of a test write without end. The test fails, and its log has a limited size.
pub(super) fn endless_output() {
    let disk = Disk::of_mib(256);
    let inner = InnerRun::start_with(&["hostile::writes_without_end"], |_| [("TMPDIR", disk.path().into())]);
    let (ended, directory) = inner.end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    assert!(failures.contains("writes_without_end: the test has written more than 8 MiB"), "{failures}");
    let log = directory.path().join("logs/hostile.writes_without_end.log");
    let length = fs::metadata(log).expect("the failure has a log").len();
    assert!(length <= LOG_MIB_MAX << 20, "the log has {length} bytes");
    assert!(ended.stderr.len() <= (2 * LOG_MIB_MAX as usize) << 20, "{} bytes are shown", ended.stderr.len());
}

/// The message is shown once, and is in the log. The list of failures has its beginning.
pub(super) fn long_message() {
    let (ended, directory) = InnerRun::start(&["hostile::fails_with_a_long_message"]).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    assert!(failures.starts_with("hostile::fails_with_a_long_message: xxx") && failures.contains("(log: "));
    assert!(failures.len() < LINE_BYTES_MAX, "the line of the failure has {} bytes", failures.len());
    assert!(ended.stdout.len() < STDOUT_BYTES_MAX, "the report has {} bytes", ended.stdout.len());
    let log = fs::metadata(directory.path().join("logs/hostile.fails_with_a_long_message.log"));
    assert!(log.expect("the failure has a log").len() > 1 << 20, "the log does not have the message");
}

/// A program of a test truncates the file with the output. The output after that is in the log.
pub(super) fn truncated_output() {
    let (ended, directory) = InnerRun::start(&["hostile::writes_a_page", "hostile::truncates_its_output"]).end();
    require(&ended, last_line(&ended) == "1 passed, 1 failed", "the last line");
    let log = fs::read_to_string(directory.path().join("logs/hostile.truncates_its_output.log"));
    let log = log.expect("the failure has a log");
    assert!(log.contains("second") && log.contains("panicked at"), "{log}");
}

/// Four tests time out, and pass when they run again.
pub(super) fn flaky_tests() {
    let (ended, directory) = InnerRun::start(&["unsteady::"]).end();
    require(&ended, last_line(&ended) == "4 passed, 1 failed", "the last line");
    require(&ended, ended.status.code() == Some(101), "the exit status");
    let counts = note_in(directory.path(), "counts").expect("counts are written");
    assert_eq!(counts.trim(), "passed=4 failed=1 flaky=4");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    assert!(failures.starts_with("runner::flaky_tests: "), "{failures}");
}

/// A wrong byte counts more than a timeout in the same message: the test does not run again.
pub(super) fn wrong_and_late() {
    let (ended, directory) = InnerRun::start(&["hostile::finds_a_wrong_byte_and_times_out"]).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    require(&ended, !ended.stdout.contains("again"), "the test does not run again");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    assert!(failures.contains(": wrong: program.c:1"), "{failures}");
}

/// The logs are removed while a test runs. The log of its failure exists nevertheless.
pub(super) fn removed_logs() {
    let (ended, directory) = InnerRun::start(&["hostile::removes_the_logs"]).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    let log = fs::read_to_string(directory.path().join("logs/hostile.removes_the_logs.log"));
    assert!(log.is_ok_and(|log| log.contains("a wrong byte")), "{}", ended.stderr);
}

/// A thread of a test fails, and the test ignores that.
pub(super) fn failed_thread() {
    let (ended, directory) = InnerRun::start(&["hostile::fails_in_a_thread"]).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    assert!(failures.starts_with("hostile::fails_in_a_thread: a wrong byte"), "{failures}");
}
