//! `RunContext`: how a run was made. A reader needs it to repeat the run, and to judge whether two runs are comparable.

use std::env;
use std::ffi::OsStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::machine::description::MachineState;

/// How a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunContext {
    /// The command line, quoted for a shell.
    pub(crate) command: String,
    /// CPUs and memory.
    pub(crate) machine: String,
    /// The kernel release.
    pub(crate) kernel: String,
    /// The commit that the program was built from; `None` outside a repository.
    pub(crate) commit: Option<String>,
    /// Load average over one minute.
    pub(crate) load_average: f64,
    /// The end of the run in UTC, as in RFC 3339.
    pub(crate) finished: String,
}

impl RunContext {
    /// The context of a run of this process on a machine.
    pub(crate) fn new(MachineState { machine, load_average }: &MachineState) -> Self {
        Self {
            command: command_line(env::args_os().skip(1)),
            machine: machine.hardware_text(),
            kernel: machine.kernel().to_owned(),
            commit: BUILD_COMMIT.map(str::to_owned),
            // JSON has no NaN.
            load_average: if load_average.is_finite() { *load_average } else { 0.0 },
            finished: now_text(),
        }
    }

    /// The end of the run, and the load.
    pub(crate) fn end_text(&self) -> String {
        format!("finished {}, load {:.1}", self.finished, self.load_average)
    }

    /// The end and the load of a run that is compared with the run `compared`, and its machine if that is another one.
    pub(crate) fn end_text_next_to(&self, compared: &Self) -> String {
        match (&self.machine, &self.kernel) == (&compared.machine, &compared.kernel) {
            true => self.end_text(),
            false => format!("{}, on another machine: {}, Linux {}", self.end_text(), self.machine, self.kernel),
        }
    }
}

/// The commit that this program was built from.
pub(crate) const BUILD_COMMIT: Option<&str> = option_env!("FARFORK_COMMIT");

/// The current second in UTC, as in RFC 3339.
pub(crate) fn now_text() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The command line of `farfork` with these arguments, quoted for a shell. Bytes that are not UTF-8 are replaced.
pub(crate) fn command_line(arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> String {
    let quoted = arguments.into_iter().map(|argument| quote_argument(&argument.as_ref().to_string_lossy()));
    std::iter::once("farfork".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

fn quote_argument(argument: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::{RunContext, command_line};
    use crate::machine::description::MachineState;

    #[test]
    fn a_command_line_is_quoted_for_the_shell() {
        let arguments = ["bench", "function", "./a.py:f", "--payload", "{\"it's\": 1}", ""].map(str::to_owned);
        assert_eq!(command_line(arguments), r#"farfork bench function ./a.py:f --payload '{"it'\''s": 1}' ''"#);
    }

    #[test]
    fn an_argument_need_not_be_text() {
        let arguments = [OsStr::new("--samples"), OsStr::from_bytes(b"/tmp/\xff.jsonl")];
        assert_eq!(command_line(arguments), "farfork --samples '/tmp/\u{fffd}.jsonl'");
    }

    #[test]
    fn a_load_that_cannot_be_read_is_a_number() {
        let context = RunContext::new(&MachineState { load_average: f64::NAN, ..MachineState::detect() });
        assert_eq!(context.load_average, 0.0);
        assert!(context.finished.ends_with('Z') && !context.kernel.is_empty(), "{context:?}");
    }
}
