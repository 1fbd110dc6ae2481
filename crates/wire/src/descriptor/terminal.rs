//! Pseudo-terminals whose master end a process of the tree holds.

use serde::{Deserialize, Serialize};

use super::FileStatus;

/// Size of `struct termios2`, in bytes.
pub const TERMINAL_SETTINGS_BYTES: usize = 44;

/// Highest terminal number. The restorer opens terminals until it reaches a number, so a higher number would take too long.
pub const TERMINAL_NUMBER_MAX: u32 = 1023;

/// A pseudo-terminal (pty(7)) without queued data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PseudoTerminal {
    /// Its number in `/dev/pts`, which is the same in a child.
    pub number: u32,
    /// The settings, a `struct termios2`.
    pub settings: Vec<u8>,
    /// Window size: rows and columns in characters, then width and height in pixels.
    pub window: [u16; 4],
    /// Whether the slave end is still locked (unlockpt(3)).
    pub is_locked: bool,
    /// Whether the slave end was opened and is closed now.
    pub is_hung_up: bool,
    /// TIOCPKT.
    pub is_packet_mode: bool,
    /// TIOCEXCL of the slave end.
    pub is_exclusive: bool,
    /// The session whose controlling terminal it is.
    pub session: Option<ControlledSession>,
    /// Mode and owner of the slave end; `None` if no process has it open.
    pub status: Option<FileStatus>,
}

/// The session that a terminal controls (credentials(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlledSession {
    /// The session leader.
    pub leader: u32,
    /// The foreground process group.
    pub foreground: u32,
}
