//! Connections to hosts of an inventory with the system's OpenSSH, ssh(1). The process of a command uses the connection of
//! the host's master (`connection.rs`). No process reads the user's configuration or asks a question.

//  coordinator ──stdin──▶ ssh -M n1 cat ═══ connection ═══ sshd ── cat
//              ──stdin──▶ ssh n1 COMMAND ──┘               └────── COMMAND
//
// When the coordinator ends, even by SIGKILL, the standard input of each ssh ends, and then the input of each remote command.
mod command;
mod config;
mod connection;
mod copy;
mod directory;
mod error;
mod lock;
mod scratch;
mod sync;

pub use self::command::{HostCommand, OutputLine, OutputStream, RunningCommand, ScriptOutput};
pub use self::config::{HostKeyPolicy, SshClient};
pub use self::connection::RemoteHost;
pub use self::copy::CopyOutcome;
pub use self::error::RemoteError;
pub use self::lock::{HOLDERS_VARIABLE, HostLock, lock_holders};
pub use self::scratch::HostDirectory;
