//! Identifies a process by its id and start time, so that a stored id is never mistaken for a later process with the same
//! id.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::str::FromStr;

/// Index of the start time in `/proc/PID/stat`, counted from the field after the command's closing parenthesis.
const START_FIELD: usize = 19;

/// Size of the buffer for the line, in bytes. One read(2) returns the line, which has about fifty numbers of at most twenty
/// digits.
const LINE_BYTES_MAX: usize = 2048;

/// Identifies a process uniquely among all processes since the machine started. Displayed as `PID@TICKS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// Its pid, in the pid namespace of `/proc`.
    pub pid: i32,
    /// Its start time, in clock ticks since the machine started.
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// Reads the identity of the process that has this pid now.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn of(pid: i32) -> io::Result<Self> {
        let mut line = [0; LINE_BYTES_MAX];
        let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
        // The command may contain spaces, parentheses and invalid UTF-8. The fields after its last parenthesis do not.
        let fields = line[..length].rsplit(|byte| *byte == b')').next().and_then(|fields| str::from_utf8(fields).ok());
        let start_ticks = fields
            .and_then(|fields| fields.split_whitespace().nth(START_FIELD)?.parse().ok())
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, start_ticks })
    }

    /// Opens a pidfd of the process; `None` if it has ended, even if its pid belongs to another process now.
    ///
    /// # Errors
    /// As pidfd_open(2), except ESRCH.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        let pidfd = match crate::pidfd::open(self.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Compare after opening the descriptor: from here on it cannot refer to another process.
        Ok(Self::of(self.pid).is_ok_and(|now| now == *self).then_some(pidfd))
    }
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.start_ticks)
    }
}

impl FromStr for ProcessIdentity {
    type Err = io::Error;
    fn from_str(text: &str) -> io::Result<Self> {
        let parsed = text
            .trim()
            .split_once('@')
            .and_then(|(pid, ticks)| Some(Self { pid: pid.parse().ok()?, start_ticks: ticks.parse().ok()? }));
        parsed.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_start_time_is_another_process() {
        let me = ProcessIdentity::of(std::process::id().cast_signed()).unwrap();
        assert!(me.open().unwrap().is_some());
        assert_eq!(me.to_string().parse::<ProcessIdentity>().unwrap(), me);
        let other = ProcessIdentity { start_ticks: me.start_ticks + 1, ..me };
        assert!(other.open().unwrap().is_none());
        assert!("12".parse::<ProcessIdentity>().is_err());
    }
}
