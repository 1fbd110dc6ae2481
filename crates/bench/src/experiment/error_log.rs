//! Finds errors in the logs of a daemon and of the kernel of this machine since the start of a run. Even if all requests of a run
//! succeed, the run may cause such errors.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The kernel's messages: see Documentation/ABI/testing/dev-kmsg.
const KERNEL_MESSAGES: &str = "/dev/kmsg";

/// The largest level of syslog(2) that counts as an error: KERN_ERR.
const KERN_ERR: u64 = 3;

/// Maximum size of one kernel message.
const KERNEL_MESSAGE_BYTES_MAX: usize = 8192;

/// Kernel errors that other programs of the machine cause, so that they do not concern farfork.
const HARMLESS_KERNEL_MESSAGES: [&str; 2] = ["oom-kill: constraint=CONSTRAINT_MEMCG", "Memory cgroup out of memory"];

/// Maximum number of quoted errors per log.
const QUOTED_MAX: usize = 3;

/// The ends of a node's log and of the kernel's messages at the start of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LogEnds {
    /// Length of the daemon's log.
    daemon: u64,
    /// Sequence number of the next kernel message.
    kernel: u64,
}

/// The result of a search for errors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogErrors {
    /// A sentence for each log with errors.
    pub(crate) found: Vec<String>,
    /// A sentence for each log that cannot be read.
    pub(crate) unread: Vec<String>,
}

impl LogErrors {
    /// Adds the errors of another node, whose kernel may be the same.
    pub(crate) fn add(&mut self, other: Self) {
        let add = |own: &mut Vec<String>, other: Vec<String>| {
            let new: Vec<String> = other.into_iter().filter(|sentence| !own.contains(sentence)).collect();
            own.extend(new);
        };
        add(&mut self.found, other.found);
        add(&mut self.unread, other.unread);
    }

    /// Returns why the run has failed. With `strict`, a log that cannot be read is a reason, too.
    pub(crate) fn faults(&self, strict: bool) -> impl Iterator<Item = String> {
        let unread = self.unread.iter().filter(move |_| strict);
        self.found.iter().chain(unread).cloned()
    }
}

impl LogEnds {
    /// Reads the ends of a daemon's log, whose file is `log`, and of the kernel's messages on this machine.
    pub(super) fn read(log: &Path) -> Self {
        let last = read_kernel_messages().unwrap_or_default().last().map_or(0, |message| message.sequence + 1);
        Self { daemon: fs::metadata(log).map_or(0, |metadata| metadata.len()), kernel: last }
    }

    /// Reads the end of the kernel's messages on this machine, for a run without a daemon.
    pub(crate) fn read_kernel() -> Self {
        Self::read(Path::new(""))
    }

    /// Reads the messages after these ends.
    pub(super) fn read_new(&self, log: &Path) -> NewMessages {
        let daemon = fs::read(log).map(|text| {
            let new = String::from_utf8_lossy(text.get(self.daemon as usize..).unwrap_or_default());
            new.lines().map(str::to_owned).collect()
        });
        NewMessages { daemon, kernel: self.read_new_of_kernel() }
    }

    fn read_new_of_kernel(&self) -> io::Result<NewKernelMessages> {
        let mut messages = read_kernel_messages()?;
        let is_incomplete = messages.first().is_some_and(|oldest| oldest.sequence > self.kernel);
        messages.retain(|message| message.sequence >= self.kernel);
        Ok(NewKernelMessages { messages, is_incomplete })
    }

    /// Searches the kernel's messages after these ends.
    pub(crate) fn find_kernel_errors(&self) -> LogErrors {
        let mut errors = LogErrors::default();
        errors.search_kernel(&self.read_new_of_kernel());
        errors
    }
}

/// The messages of a run. An error means that the log cannot be read.
#[derive(Debug)]
pub(super) struct NewMessages {
    /// Lines of the daemon's log.
    pub(super) daemon: io::Result<Vec<String>>,
    pub(super) kernel: io::Result<NewKernelMessages>,
}

/// The kernel's messages of a run.
#[derive(Debug, Default)]
pub(super) struct NewKernelMessages {
    pub(super) messages: Vec<KernelMessage>,
    /// Whether the kernel has overwritten earlier messages of the run.
    is_incomplete: bool,
}

impl NewMessages {
    /// Searches both logs. `node` is the name of the daemon. Its errors that have one of the texts `expected` are omitted.
    pub(super) fn find_errors(&self, node: &str, expected: &[String]) -> LogErrors {
        let (mut errors, log) = (LogErrors::default(), format!("the log of {node}"));
        let is_expected = |line: &str| expected.iter().any(|text| line.contains(text));
        match &self.daemon {
            Ok(lines) => {
                let errors_of_daemon = lines.iter().map(String::as_str).filter(|line| is_daemon_error(line));
                let lines: Vec<&str> = errors_of_daemon.filter(|line| !is_expected(line)).collect();
                errors.found.extend(quote_errors(&log, &lines));
            }
            Err(cause) => errors.unread.push(format!("{log} cannot be read: {cause}")),
        }
        errors.search_kernel(&self.kernel);
        errors
    }
}

impl LogErrors {
    fn search_kernel(&mut self, new: &io::Result<NewKernelMessages>) {
        const LOG: &str = "the kernel's log";
        match new {
            Ok(NewKernelMessages { messages, is_incomplete }) => {
                if *is_incomplete {
                    self.unread.push(format!("{LOG} has overwritten messages of the run"));
                }
                let errors = messages.iter().filter(|message| message.is_error);
                let texts: Vec<&str> = errors.map(|message| message.text.as_str()).collect();
                self.found.extend(quote_errors(LOG, &texts));
            }
            Err(cause) => self.unread.push(format!("{LOG} cannot be read: {cause}")),
        }
    }
}

/// A kernel message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelMessage {
    sequence: u64,
    pub(super) text: String,
    /// Whether its level is an error.
    is_error: bool,
}

fn quote_errors(log: &str, errors: &[&str]) -> Option<String> {
    let quoted = errors.iter().take(QUOTED_MAX).map(|line| line.trim()).collect::<Vec<_>>().join("; ");
    (!errors.is_empty()).then(|| format!("{log} has {} errors: {quoted}", errors.len()))
}

/// Whether the level of a line of a daemon's log is ERROR, or a thread has panicked. The level is the second word, after the
/// time. The line of a panic has no level.
fn is_daemon_error(line: &str) -> bool {
    let is_panic = line.starts_with("thread '") && line.contains(" panicked at ");
    is_panic || line.split_ascii_whitespace().nth(1) == Some("ERROR")
}

/// Reads the kernel's messages. Some containers have no access to them. Each read(2) returns one message.
fn read_kernel_messages() -> io::Result<Vec<KernelMessage>> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut kernel = OpenOptions::new().read(true).custom_flags(flags).open(KERNEL_MESSAGES)?;
    let (mut messages, mut message) = (Vec::new(), [0; KERNEL_MESSAGE_BYTES_MAX]);
    loop {
        match kernel.read(&mut message) {
            Ok(0) => return Ok(messages),
            Ok(length) => messages.extend(KernelMessage::parse(&String::from_utf8_lossy(&message[..length]))),
            // EPIPE: the kernel has overwritten messages before they were read. The next read(2) returns the oldest
            // remaining one.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(messages),
            Err(error) => return Err(error),
        }
    }
}

impl KernelMessage {
    /// Parses `PRIORITY,SEQUENCE,TIME,FLAGS;TEXT`. The level is in the lowest three bits of the priority, the facility above
    /// them.
    fn parse(message: &str) -> Option<Self> {
        let (prefix, text) = message.split_once(';')?;
        let mut numbers = prefix.split(',').map(|number| number.parse::<u64>().ok());
        let (priority, sequence) = (numbers.next()??, numbers.next()??);
        let text = text.lines().next()?;
        let is_error = priority & 7 <= KERN_ERR && priority >> 3 == 0;
        let is_harmless = HARMLESS_KERNEL_MESSAGES.iter().any(|harmless| text.contains(harmless));
        Some(Self { sequence, text: text.to_owned(), is_error: is_error && !is_harmless })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{KernelMessage, LogErrors, NewKernelMessages, NewMessages, is_daemon_error, quote_errors};

    #[test]
    fn a_log_that_cannot_be_read_is_a_fault_of_a_strict_run() {
        let line = "2026-11-25T10:00:00Z ERROR farfork_node: a page is lost".to_owned();
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        let mut errors = NewMessages { daemon: Ok(vec![line]), kernel: denied() }.find_errors("n1", &[]);
        errors
            .add(NewMessages { daemon: Err(io::ErrorKind::NotFound.into()), kernel: denied() }.find_errors("n2", &[]));
        assert_eq!(errors.unread.len(), 2, "the kernel is the same: {errors:?}");
        assert_eq!((errors.faults(false).count(), errors.faults(true).count()), (1, 3));
        let message = KernelMessage::parse("3,12,99,-;bad page").unwrap();
        let kernel = Ok(NewKernelMessages { messages: vec![message], is_incomplete: true });
        let errors = NewMessages { daemon: Ok(Vec::new()), kernel }.find_errors("n1", &[]);
        assert_eq!((errors.found.len(), errors.unread.len()), (1, 1), "what is left is searched: {errors:?}");
        let quiet = NewMessages { daemon: Ok(Vec::new()), kernel: Ok(NewKernelMessages::default()) };
        assert_eq!(quiet.find_errors("n1", &[]), LogErrors::default());
    }

    #[test]
    fn only_errors_of_the_kernel_are_counted() {
        let error = |message| KernelMessage::parse(message).filter(|message| message.is_error);
        let bad = KernelMessage { sequence: 12, text: "bad page".to_owned(), is_error: true };
        assert_eq!(KernelMessage::parse("3,12,99,-;bad page\n SUBSYSTEM=mm\n"), Some(bad));
        for harmless in ["6,12,99,-;eth0 up", "4,12,99,-;a warning", "11,12,99,-;a user's error", "nonsense"] {
            assert_eq!(error(harmless), None, "{harmless}");
        }
        assert_eq!(error("3,1,1,-;Memory cgroup out of memory: Killed process 7 (x)"), None);
    }

    #[test]
    fn errors_of_a_daemon_are_quoted() {
        assert!(is_daemon_error("2026-11-25T10:00:00Z ERROR farfork_node: a page is lost"));
        assert!(!is_daemon_error("2026-11-25T10:00:00Z  WARN farfork_node: ERROR is only a word"));
        assert!(is_daemon_error("thread 'tokio-runtime-worker' (812) panicked at crates/node/src/engine/mod.rs:7:5:"));
        assert!(!is_daemon_error("2026-11-25T10:00:00Z  WARN farfork_node: thread 'x' panicked at an earlier time"));
        assert_eq!(quote_errors("the log of n1", &[]), None);
        let fault = quote_errors("the log of n1", &["a", "b", "c", "d"]).unwrap();
        assert_eq!(fault, "the log of n1 has 4 errors: a; b; c");
    }
}
