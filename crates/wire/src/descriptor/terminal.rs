//! Pseudo-terminals whose master end a process of the tree holds.

use serde::{Deserialize, Serialize};

use super::FileStatus;

/// Bytes of `struct termios2`.
pub const TERMINAL_SETTINGS_BYTES: usize = 44;

/// Highest number of a terminal: beyond, it takes the restorer long to get there.
pub const TERMINAL_NUMBER_MAX: u32 = 1023;

/// A pseudo-terminal (pty(7)), in which nothing waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PseudoTerminal {
    /// Its name in `/dev/pts`; a child's has the same.
    pub number: u32,
    /// `struct termios2`.
    pub settings: Vec<u8>,
    /// The window: rows and columns, in characters and in pixels.
    pub window: [u16; 4],
    /// Whether the other end cannot be opened yet.
    pub is_locked: bool,
    /// Whether the other end was opened, and is closed.
    pub is_hung_up: bool,
    /// TIOCPKT.
    pub is_packet_mode: bool,
    /// TIOCEXCL of the other end.
    pub is_exclusive: bool,
    /// The session whose controlling terminal it is.
    pub session: Option<ControlledSession>,
    /// Mode and owner of the other end; `None` where nobody has it open.
    pub status: Option<FileStatus>,
}

/// A session that a terminal controls (credentials(7)). All of its processes have it as theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlledSession {
    /// The process that leads it.
    pub leader: u32,
    /// The process group in the foreground.
    pub foreground: u32,
}
