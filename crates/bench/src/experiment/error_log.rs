//! Finds errors in the logs of daemons and of the kernel since the start of a run. Even if all requests of a run
//! succeed, the run may cause such errors.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use farfork_cluster::local::LocalNode;

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

/// The ends of the logs at the start of a run.
#[derive(Debug)]
pub(crate) struct ErrorLogs {
    /// Length of each daemon's log, in the order of the nodes.
    daemons: Vec<u64>,
    /// `None` if the kernel's messages cannot be read, as in some containers.
    kernel: Option<File>,
}

impl ErrorLogs {
    /// Records the ends of all logs.
    pub(crate) fn begin(nodes: &[LocalNode]) -> Self {
        let length = |node: &LocalNode| fs::metadata(node.log_path()).map_or(0, |metadata| metadata.len());
        Self { daemons: nodes.iter().map(length).collect(), kernel: open_kernel_messages() }
    }

    /// Returns a sentence for each log that has new errors.
    pub(crate) fn find_errors(mut self, nodes: &[LocalNode]) -> Vec<String> {
        let mut faults = Vec::new();
        for (node, begin) in nodes.iter().zip(self.daemons) {
            let text = fs::read(node.log_path()).unwrap_or_default();
            let new = String::from_utf8_lossy(text.get(begin as usize..).unwrap_or_default()).into_owned();
            let errors: Vec<&str> = new.lines().filter(|line| is_daemon_error(line)).collect();
            faults.extend(quote_errors(&format!("the log of {}", node.name), &errors));
        }
        if let Some(kernel) = &mut self.kernel {
            let errors = read_kernel_errors(kernel);
            let errors: Vec<&str> = errors.iter().map(String::as_str).collect();
            faults.extend(quote_errors("the kernel's log", &errors));
        }
        faults
    }
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

/// Opens the kernel's messages at their end.
fn open_kernel_messages() -> Option<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(KERNEL_MESSAGES).ok()?;
    file.seek(SeekFrom::End(0)).ok()?;
    Some(file)
}

/// Reads new kernel messages, and returns the errors. Each read(2) returns one message.
fn read_kernel_errors(kernel: &mut File) -> Vec<String> {
    let mut errors = Vec::new();
    let mut message = [0; KERNEL_MESSAGE_BYTES_MAX];
    loop {
        match kernel.read(&mut message) {
            Ok(0) => return errors,
            Ok(length) => errors.extend(parse_kernel_error(&String::from_utf8_lossy(&message[..length]))),
            // EPIPE: the kernel has overwritten messages before they were read. The next read(2) returns the oldest
            // remaining one.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => return errors,
        }
    }
}

/// The text of a kernel message of the form `PRIORITY,SEQUENCE,TIME,FLAGS;TEXT`, if its level is an error. The level is
/// in the lowest three bits of the priority, the facility above them.
fn parse_kernel_error(message: &str) -> Option<String> {
    let (prefix, text) = message.split_once(';')?;
    let priority: u64 = prefix.split(',').next()?.parse().ok()?;
    let text = text.lines().next()?;
    let is_error = priority & 7 <= KERN_ERR && priority >> 3 == 0;
    (is_error && !HARMLESS_KERNEL_MESSAGES.iter().any(|harmless| text.contains(harmless))).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{is_daemon_error, parse_kernel_error, quote_errors};

    #[test]
    fn only_errors_of_the_kernel_are_counted() {
        assert_eq!(parse_kernel_error("3,12,99,-;bad page\n SUBSYSTEM=mm\n").as_deref(), Some("bad page"));
        for harmless in ["6,12,99,-;eth0 up", "4,12,99,-;a warning", "11,12,99,-;a user's error", "nonsense"] {
            assert_eq!(parse_kernel_error(harmless), None, "{harmless}");
        }
        assert_eq!(parse_kernel_error("3,1,1,-;Memory cgroup out of memory: Killed process 7 (x)"), None);
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
