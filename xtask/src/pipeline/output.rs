//! Parses the output of a test run: libtest and libtest-mimic, as printed by cargo. Pure.
//!
//! Counts are in the lines `test result: …`, and failures in the sections `---- NAME stdout ----`. Cargo reports a crash if
//! a signal ended a test binary.

/// A failed test, or a failed test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestFailure {
    /// The binary and the test, such as `farfork_fork: pager::tests::a_page_is_fetched`.
    pub(super) name: String,
    /// The first line of the reason.
    pub(super) reason: String,
}

/// The results that a test run has printed so far.
#[derive(Debug, Default)]
pub(super) struct TestOutput {
    pub(super) passed: usize,
    pub(super) failures: Vec<TestFailure>,
    /// The last line that begins with `error`. It names the cause if no test failed.
    pub(super) last_error: Option<String>,
    binary: String,
    section: OutputSection,
}

/// The part of the output that the next line belongs to.
#[derive(Debug, Default, PartialEq, Eq)]
enum OutputSection {
    #[default]
    Other,
    /// The output of the last failure, before its reason.
    Failure,
    /// The line after `thread … panicked at …`: the reason.
    Panic,
}

impl TestOutput {
    /// Parses the next line, without its line end.
    pub(super) fn read_line(&mut self, line: &str) {
        if let Some(binary) = binary_of(line) {
            self.binary = binary;
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----")) {
            let name = name.strip_suffix(" stdout").unwrap_or(name);
            self.failures.push(TestFailure { name: format!("{}: {name}", self.binary), reason: String::new() });
            self.section = OutputSection::Failure;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += number_before(counts, " passed").unwrap_or(0);
            self.section = OutputSection::Other;
        } else if line.contains("process didn't exit successfully") && line.contains("(signal: ") {
            let reason = line.trim().to_owned();
            self.failures.push(TestFailure { name: format!("{}: the whole binary", self.binary), reason });
        } else if line.starts_with("error") {
            self.last_error = Some(line.to_owned());
        } else {
            self.read_reason(line);
        }
    }

    fn read_reason(&mut self, line: &str) {
        let Some(failure) = self.failures.last_mut().filter(|_| self.section != OutputSection::Other) else { return };
        let is_location = line.starts_with("thread '") && line.contains("panicked at ");
        if is_location {
            failure.reason.clear();
            self.section = OutputSection::Panic;
        } else if failure.reason.is_empty() && !line.trim().is_empty() {
            line.trim().clone_into(&mut failure.reason);
            // A test may print before it panics. The reason of the panic replaces the lines that the test has printed.
            self.section =
                if self.section == OutputSection::Panic { OutputSection::Other } else { OutputSection::Failure };
        }
    }
}

/// Parses the name of a binary from `Running tests/capture/main.rs (target/debug/deps/capture-0123456789abcdef)`, without
/// the hash.
fn binary_of(line: &str) -> Option<String> {
    let running = line.trim_start().strip_prefix("Running ")?;
    let path = running.rsplit_once('(')?.1.strip_suffix(')')?;
    let file = path.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _hash)| name).to_owned())
}

/// The number before `word`: 12 in `ok. 12 passed; 0 failed`.
fn number_before(text: &str, word: &str) -> Option<usize> {
    let before = &text[..text.find(word)?];
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> TestOutput {
        let mut output = TestOutput::default();
        text.lines().for_each(|line| output.read_line(line));
        output
    }

    #[test]
    fn counts_of_all_binaries_are_added() {
        let output = read(
            "     Running unittests src/lib.rs (target/debug/deps/farfork_wire-0a1b)\n\
             test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s\n\
             test result: ok. 30 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n",
        );
        assert_eq!((output.passed, output.failures.len()), (42, 0));
    }

    #[test]
    fn a_failure_has_its_binary_and_the_line_after_its_panic() {
        let output = read(
            "     Running tests/capture/main.rs (/target/debug/deps/capture-00ff)\n\
             failures:\n\n---- refusals::each_is_named stdout ----\nsome output\n\n\
             thread 'refusals::each_is_named' (77) panicked at crates/fork/tests/capture/refusals.rs:33:9:\n\
             socket was not refused\nnote: run with `RUST_BACKTRACE=1`\n\n\
             ---- pause ----\nnot done after 300 s\n\n\
             failures:\n    refusals::each_is_named\n    pause\n\n\
             test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n",
        );
        assert_eq!(output.passed, 3);
        let expected = [
            ("capture: refusals::each_is_named", "socket was not refused"),
            ("capture: pause", "not done after 300 s"),
        ];
        let seen: Vec<_> = output.failures.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_binary_that_crashes_is_a_failure() {
        let output = read(
            "     Running unittests src/lib.rs (target/debug/deps/farfork_sys-0a1b)\n\
             error: test failed, to rerun pass `-p farfork-sys --lib`\n\n\
             Caused by:\n  process didn't exit successfully: `/target/farfork_sys-0a1b` (signal: 11, SIGSEGV: invalid memory reference)\n",
        );
        assert_eq!(output.failures.len(), 1);
        assert!(output.failures[0].name.starts_with("farfork_sys:") && output.failures[0].reason.contains("SIGSEGV"));
        assert!(output.last_error.is_some_and(|line| line.contains("test failed")));
    }
}
