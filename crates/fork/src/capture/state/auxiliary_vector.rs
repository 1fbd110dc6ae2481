//! The auxiliary vector, which identifies the program that a process runs. execve(2) replaces the address space and the
//! address of the vdso, so earlier readings do not hold for the new program.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process;

use crate::capture::error::CaptureError;

/// How long execve(2) may take from the end of the old address space to the first instruction. In that time, the kernel
/// reads the program's first pages, and waits for a CPU on a busy machine.
const EXEC_LIMIT: Duration = Duration::from_secs(1);
/// Time between two reads of the vector.
const EXEC_INTERVAL: Duration = Duration::from_micros(100);

/// The program that a process runs, identified by the words that the kernel wrote on its stack at its start (getauxval(3)).
/// Among them are the addresses of the program, of its name, of the vdso and of random bytes. The kernel chooses these
/// addresses anew at each start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capture) struct AuxiliaryVector(Vec<u8>);

impl AuxiliaryVector {
    /// Reads the vector of `pid`. While execve(2) builds the address space, the vector is all zeroes; waits until it is
    /// filled.
    pub(in crate::capture) fn read(pid: i32) -> Result<Self, CaptureError> {
        let deadline = Instant::now() + EXEC_LIMIT;
        loop {
            let words = process::read_bytes(&format!("/proc/{pid}/auxv")).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => CaptureError::ProcessGone { pid },
                _ => CaptureError::reading(pid, "the auxiliary vector")(error),
            })?;
            // An exiting process has no address space, so its vector is empty.
            if words.is_empty() || words.iter().any(|byte| *byte != 0) {
                return Ok(Self(words));
            }
            if Instant::now() >= deadline {
                return Err(Self::changed_error(pid));
            }
            thread::sleep(EXEC_INTERVAL);
        }
    }

    /// Whether `pid` still runs this program.
    pub(in crate::capture) fn matches(&self, pid: i32) -> Result<bool, CaptureError> {
        Ok(*self == Self::read(pid)?)
    }

    /// Returns the error for a process that executed another program during its survey.
    pub(in crate::capture) fn changed_error(pid: i32) -> CaptureError {
        CaptureError::Unstable { pid, what: "its program, by execve(2)".to_owned() }
    }
}
