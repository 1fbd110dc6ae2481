//! Parses `/proc/PID/stat`: ids, state and the boundaries of the address space.

use std::io;

use super::{malformed, read_once};
use crate::terminal::pts_number_of_device;

/// The PF_* flags of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskFlags(u64);

impl TaskFlags {
    /// Flags of kernel threads, and of tasks that are exiting.
    const KTHREAD: u64 = 0x0020_0000;
    const EXITING: u64 = 0x4;
    /// Set by PR_MCE_KILL: the task has a policy, and it is the early one.
    const MCE_PROCESS: u64 = 0x80;
    const MCE_EARLY: u64 = 0x0800_0000;
    /// PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE, which PR_SET_IO_FLUSHER sets together.
    const IO_FLUSHER: u64 = 0x0018_0000;

    /// PR_MCE_KILL_GET (prctl(2)): PR_MCE_KILL_LATE, PR_MCE_KILL_EARLY or PR_MCE_KILL_DEFAULT.
    pub fn mce_kill(self) -> u32 {
        match (self.0 & Self::MCE_PROCESS != 0, self.0 & Self::MCE_EARLY != 0) {
            (false, _) => 2,
            (true, is_early) => is_early.into(),
        }
    }

    /// PR_GET_IO_FLUSHER (prctl(2)), which only privileged threads may call.
    pub fn is_io_flusher(self) -> bool {
        self.0 & Self::IO_FLUSHER == Self::IO_FLUSHER
    }
}

/// Fields of `/proc/PID/stat`, addresses in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Name (comm).
    pub name: Vec<u8>,
    /// One letter: R, S, D, T, t, Z, X, I.
    pub state: char,
    /// The parent's process id.
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Session.
    pub session: i32,
    /// Number of the process's controlling pseudo-terminal, if it has one.
    pub terminal: Option<u32>,
    /// Flags of the task.
    pub flags: TaskFlags,
    /// Start time, in clock ticks since boot. Together with the pid it identifies a process forever.
    pub start_ticks: u64,
    /// Start of the code.
    pub start_code: u64,
    /// End of the code.
    pub end_code: u64,
    /// Start (bottom) of the stack.
    pub start_stack: u64,
    /// Start of the initialized data.
    pub start_data: u64,
    /// End of the initialized data.
    pub end_data: u64,
    /// Start of the heap.
    pub start_brk: u64,
    /// Start of the arguments.
    pub arg_start: u64,
    /// End of the arguments.
    pub arg_end: u64,
    /// Start of the environment.
    pub env_start: u64,
    /// End of the environment.
    pub env_end: u64,
    /// The processor on which the process runs or last ran.
    pub processor: u32,
    /// The signal that the parent gets when the process ends; 0 for none.
    pub exit_signal: u32,
    /// The status that wait(2) returns after the end of the process. While the process is stopped, the stop signal, until
    /// the parent has waited for the stop.
    pub exit_code: u32,
}

impl ProcStat {
    /// Reads the fields of a process, or of a thread by its id.
    ///
    /// # Errors
    /// NotFound if it has ended.
    pub fn read(id: i32) -> io::Result<Self> {
        let bytes = read_once(&format!("/proc/{id}/stat"))?;
        Self::parse(&bytes).ok_or_else(|| malformed("stat"))
    }

    /// Reads the fields of a thread. Those of times and addresses are the process's.
    ///
    /// # Errors
    /// NotFound if it has ended.
    pub fn read_thread(pid: i32, tid: i32) -> io::Result<Self> {
        let bytes = read_once(&format!("/proc/{pid}/task/{tid}/stat"))?;
        Self::parse(&bytes).ok_or_else(|| malformed("stat"))
    }

    /// Whether it is a kernel thread.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags.0 & TaskFlags::KTHREAD != 0
    }

    /// Whether it is exiting. The kernel may already have freed its resources, which then look empty.
    pub fn is_exiting(&self) -> bool {
        self.flags.0 & TaskFlags::EXITING != 0
    }

    /// Parses the line. The name may contain any character, including parentheses, and ends at the last closing parenthesis.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let open = bytes.iter().position(|byte| *byte == b'(')?;
        let close = bytes.iter().rposition(|byte| *byte == b')')?;
        let rest = str::from_utf8(bytes.get(close + 1..)?).ok()?;
        // proc_pid_stat(5) counts fields from 1; the state is field 3.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let word = |number: usize| field(number)?.parse::<u64>().ok();
        let id = |number: usize| field(number)?.parse::<i32>().ok();
        Some(Self {
            name: bytes.get(open + 1..close)?.to_vec(),
            state: field(3)?.chars().next()?,
            parent: id(4)?,
            group: id(5)?,
            session: id(6)?,
            terminal: pts_number_of_device(u64::from(id(7)?.cast_unsigned())),
            flags: TaskFlags(word(9)?),
            start_ticks: word(22)?,
            start_code: word(26)?,
            end_code: word(27)?,
            start_stack: word(28)?,
            start_data: word(45)?,
            end_data: word(46)?,
            start_brk: word(47)?,
            arg_start: word(48)?,
            arg_end: word(49)?,
            env_start: word(50)?,
            env_end: word(51)?,
            processor: field(39)?.parse().ok()?,
            // The kernel writes −1 for a thread that is not the leader.
            exit_signal: u32::try_from(field(38)?.parse::<i32>().ok()?).unwrap_or(0),
            exit_code: field(52)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_parsed() {
        let mut text = b"7 (a) (b) S 1 7 7 0 -1 4194304".to_vec();
        for field in 10..=52 {
            text.extend(format!(" {field}").bytes());
        }
        let stat = ProcStat::parse(&text).unwrap();
        assert_eq!((stat.name.as_slice(), stat.state, stat.start_ticks), (&b"a) (b"[..], 'S', 22));
        assert_eq!((stat.start_code, stat.env_end, stat.processor), (26, 51, 39));
    }

    #[test]
    fn the_stat_file_of_this_process_is_read() {
        let stat = ProcStat::read(std::process::id() as i32).unwrap();
        assert!(stat.start_stack != 0 && !stat.is_kernel_thread());
    }
}
