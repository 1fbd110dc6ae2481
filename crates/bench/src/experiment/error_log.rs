//! Finds errors in the logs of a daemon and of the kernel of this machine since the start of a run. Even if all requests of a run
//! succeed, the run may cause such errors.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _};
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

impl LogEnds {
    /// Reads the ends of a daemon's log, whose file is `log`, and of the kernel's messages on this machine.
    pub(super) fn read(log: &Path) -> Self {
        let last = read_kernel_messages().last().map_or(0, |message| message.sequence + 1);
        Self { daemon: fs::metadata(log).map_or(0, |metadata| metadata.len()), kernel: last }
    }

    /// Reads the messages after these ends.
    pub(super) fn read_new(&self, log: &Path) -> NewMessages {
        let text = fs::read(log).unwrap_or_default();
        let new = String::from_utf8_lossy(text.get(self.daemon as usize..).unwrap_or_default());
        let mut kernel = read_kernel_messages();
        kernel.retain(|message| message.sequence >= self.kernel);
        NewMessages { daemon: new.lines().map(str::to_owned).collect(), kernel }
    }
}

/// The messages of a run.
#[derive(Debug)]
pub(super) struct NewMessages {
    /// Lines of the daemon's log.
    pub(super) daemon: Vec<String>,
    pub(super) kernel: Vec<KernelMessage>,
}

impl NewMessages {
    /// Returns a sentence for each log that has errors. `node` is the name of the daemon.
    pub(super) fn find_errors(node: &str, daemon: &[String], kernel: &[KernelMessage]) -> Vec<String> {
        let of_daemon: Vec<&str> = daemon.iter().map(String::as_str).filter(|line| is_daemon_error(line)).collect();
        let errors = kernel.iter().filter(|message| message.is_error);
        let of_kernel: Vec<&str> = errors.map(|message| message.text.as_str()).collect();
        let of_daemon = quote_errors(&format!("the log of {node}"), &of_daemon);
        of_daemon.into_iter().chain(quote_errors("the kernel's log", &of_kernel)).collect()
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

/// Reads the kernel's messages. None if they cannot be read, as in some containers. Each read(2) returns one message.
fn read_kernel_messages() -> Vec<KernelMessage> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(KERNEL_MESSAGES);
    let (Ok(mut kernel), mut messages) = (opened, Vec::new()) else { return Vec::new() };
    let mut message = [0; KERNEL_MESSAGE_BYTES_MAX];
    loop {
        match kernel.read(&mut message) {
            Ok(0) => return messages,
            Ok(length) => messages.extend(KernelMessage::parse(&String::from_utf8_lossy(&message[..length]))),
            // EPIPE: the kernel has overwritten messages before they were read. The next read(2) returns the oldest
            // remaining one.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => return messages,
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
    use super::{KernelMessage, is_daemon_error, quote_errors};

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
