//! Reads the system call that a sleeping thread is in.

use std::io;

use super::{malformed, read_line};

/// The system call that a thread executes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SystemCall {
    /// Number of the system call.
    pub number: u64,
    /// Arguments of the system call.
    pub arguments: [u64; 6],
    /// The thread's stack pointer.
    pub stack_pointer: u64,
    /// The address to which the system call returns.
    pub instruction_pointer: u64,
}

impl SystemCall {
    /// Reads the system call of a thread; `None` if the thread runs, or sleeps outside of a system call.
    ///
    /// # Errors
    /// NotFound or ESRCH if the thread has ended; EPERM if the caller may not trace it (ptrace(2)).
    pub fn read(tid: i32) -> io::Result<Option<Self>> {
        let file = format!("/proc/{tid}/syscall");
        let text = read_line(&file)?;
        // `-1` means no system call; two more words follow.
        if text == "running" || text.starts_with('-') {
            return Ok(None);
        }
        Self::parse(&text).map(Some).ok_or_else(|| malformed(&file))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut word = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = word()?;
        }
        Some(Self { number, arguments, stack_pointer: word()?, instruction_pointer: word()? })
    }
}

/// Whether a thread sleeps in this kernel function.
pub fn is_waiting_in(tid: i32, function: &str) -> bool {
    read_line(&format!("/proc/{tid}/wchan")).is_ok_and(|name| name == function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_is_parsed() {
        let text = "25 0x7f0000 0x1000 0x2000 0x1 0x0 0x0 0x7ffc10 0x7f10";
        let arguments = [0x7f_0000, 0x1000, 0x2000, 1, 0, 0];
        let (stack_pointer, instruction_pointer) = (0x7ffc10, 0x7f10);
        let call = SystemCall { number: 25, arguments, stack_pointer, instruction_pointer };
        assert_eq!(SystemCall::parse(text), Some(call));
        assert_eq!(SystemCall::parse("running"), None);
    }

    #[test]
    fn the_system_call_of_a_sleeping_process_is_read() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let tid = child.id().cast_signed();
        let sleeps =
            || SystemCall::read(tid).unwrap().is_some_and(|call| call.number == libc::SYS_clock_nanosleep as u64);
        while !sleeps() {
            std::thread::yield_now();
        }
        assert!(!is_waiting_in(tid, "handle_userfault"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
