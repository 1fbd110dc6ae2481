//! The holder: a third process that shares the descriptor table and only waits. If keeper and pager are killed
//! together, the holder becomes the keeper. The kernel puts the userfaultfd of a forked process into the table of the
//! process that reads the fork event, and then lets the forking thread continue (userfaultfd_ctx_read:
//! resolve_userfault_fork, userfaultfd_event_complete). So the holder has the userfaultfd before the new process runs,
//! without a message that a kill could prevent.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::time::Duration;

use farfork_sys::fork::{ForkedSide, fork_sharing_files};
use farfork_sys::{pidfd, process_memory};

use super::reap_process;
use super::roles::{ProcessRole, RoleTable};

/// How often the holder checks which processes live. The end of a process also wakes it, unless the number of the
/// process's pidfd refers to another descriptor when the wait begins.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The holder's name in /proc/PID/comm, and the word that replaces `pager` on its command line.
const HOLDER_COMM: &CStr = c"farfork-holder";
const HOLDER_COMMAND: &str = "holder";
/// The keeper's command on its command line.
const KEEPER_COMMAND: &str = "pager";

/// Why a holder ends.
pub(super) enum FdHolderExit {
    /// A client has stopped the pager, or another process is the holder.
    NotNeeded,
    /// Keeper and pager are gone: this process must become the keeper.
    KeeperAndPagerGone,
}

/// Clones a new holder, because the previous one is gone. An intermediate process makes it a child of init, so that the
/// keeper need not reap it.
///
/// # Errors
/// As clone3(2).
pub(super) fn start_fd_holder(roles: &RoleTable) -> io::Result<ForkedSide> {
    match fork_sharing_files(None)? {
        ForkedSide::Parent { pid } => {
            reap_process(pid);
            Ok(ForkedSide::Parent { pid })
        }
        ForkedSide::Child => match fork_sharing_files(roles.pidfd_slot(ProcessRole::FdHolder)) {
            Ok(ForkedSide::Child) => Ok(ForkedSide::Child),
            Ok(ForkedSide::Parent { .. }) => std::process::exit(0),
            Err(error) => {
                tracing::error!("the holder cannot be started: {error}");
                std::process::exit(1)
            }
        },
    }
}

/// The main function of the holder.
pub(super) fn run_fd_holder(roles: &RoleTable, title: Option<&ProcessTitle>) -> FdHolderExit {
    roles.set_fd_holder();
    if let Err(error) = title.map_or(Ok(()), ProcessTitle::set_fd_holder) {
        tracing::debug!("the holder's process title cannot be set: {error}");
    }
    let end = wait_until_orphaned(roles);
    // Restore the title: as the keeper, this process clones pagers, which are not holders.
    let _ = title.map_or(Ok(()), ProcessTitle::restore);
    end
}

fn wait_until_orphaned(roles: &RoleTable) -> FdHolderExit {
    loop {
        if roles.is_stopped() || !roles.is_fd_holder() {
            return FdHolderExit::NotNeeded;
        }
        match roles.first_alive(&[ProcessRole::Keeper, ProcessRole::Pager]) {
            Some(number) => drop(pidfd::wait_any_exit_raw(&[number], LIVENESS_CHECK_INTERVAL)),
            None if roles.is_stopped() => return FdHolderExit::NotNeeded,
            None => return FdHolderExit::KeeperAndPagerGone,
        }
    }
}

/// Kills the holder, if there is one, because the table is no longer needed.
pub(super) fn stop_fd_holder(roles: &RoleTable) {
    const LIMIT: Duration = Duration::from_secs(1);
    let Some(number) = roles.first_alive(&[ProcessRole::FdHolder]) else { return };
    // The holder would end itself, but only when it next wakes up. It holds no state that a kill could lose.
    let _ = pidfd::send_signal_raw(number, rustix::process::Signal::KILL.as_raw());
    pidfd::wait_any_exit_raw(&[number], LIMIT);
}

/// The process title that `ps` shows. It is read before the first pager starts, and changed without opening a
/// descriptor (`roles` gives the reason).
#[derive(Debug)]
pub(super) struct ProcessTitle {
    comm: CString,
    command_line: Vec<u8>,
    /// Address of the command line.
    arg_start: u64,
}

impl ProcessTitle {
    /// Reads the title of this process.
    ///
    /// # Errors
    /// As open(2) of files of proc(5).
    pub(super) fn read() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        // arg_start is field 48 of proc_pid_stat(5); the first field after the name is field 3.
        let start = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(48 - 3)?.parse().ok());
        let start = start.ok_or(io::ErrorKind::InvalidData)?;
        let comm = CString::new(fs::read("/proc/self/comm")?.trim_ascii_end())?;
        Ok(Self { comm, command_line: fs::read("/proc/self/cmdline")?, arg_start: start })
    }

    fn set_fd_holder(&self) -> io::Result<()> {
        rustix::thread::set_name(HOLDER_COMM)?;
        fd_holder_command_line(&self.command_line).map_or(Ok(()), |changed| self.write_command_line(&changed))
    }

    fn restore(&self) -> io::Result<()> {
        rustix::thread::set_name(&self.comm)?;
        self.write_command_line(&self.command_line)
    }

    fn write_command_line(&self, command_line: &[u8]) -> io::Result<()> {
        process_memory::write_process(std::process::id() as i32, self.arg_start, command_line)
    }
}

/// Returns the keeper's command line with the holder's command, padded to the same length. `None` if it is not the
/// command line of a keeper, as in tests.
fn fd_holder_command_line(keeper_command_line: &[u8]) -> Option<Vec<u8>> {
    let mut words = keeper_command_line.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let (_, command) = (words.next()?, words.next()?);
    if command != KEEPER_COMMAND.as_bytes() {
        return None;
    }
    let command_line: Vec<&[u8]> =
        [b"farfork".as_slice(), HOLDER_COMMAND.as_bytes()].into_iter().chain(words).collect();
    let mut command_line = command_line.join(&0);
    if command_line.len() >= keeper_command_line.len() {
        return None;
    }
    command_line.resize(keeper_command_line.len(), 0);
    Some(command_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_the_holder_if_it_fits() {
        let command_line = fd_holder_command_line(b"/proc/self/exe\0pager\0--run-dir\0/run/x\0").unwrap();
        assert_eq!(command_line, b"farfork\0holder\0--run-dir\0/run/x\0\0\0\0\0\0\0");
        assert_eq!(fd_holder_command_line(b"/usr/bin/test\0--exact\0"), None);
        assert_eq!(fd_holder_command_line(b"f\0pager\0"), None, "the holder's command does not fit");
    }
}
