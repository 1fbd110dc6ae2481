//! The holder: a third process with the common table of descriptors, which does nothing but wait.
//!
//! The kernel puts the userfaultfd of a forked process into the table of whoever reads the fork event, and lets the
//! forking thread go on after that (userfaultfd_ctx_read: `resolve_userfault_fork`, then `userfaultfd_event_complete`). So
//! the holder has it before the new process runs, with no message that a kill could come before. Keeper and pager may be
//! killed together at any moment: the holder is the keeper then.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::time::Duration;

use farfork_sys::fork::{Forked, sharing_files};
use farfork_sys::{memory, pidfd};

use super::reap;
use super::roles::{Role, RoleTable};

/// How often the holder looks who lives, beside being woken: the number of a pidfd that it waits for may come to mean
/// another descriptor in the moment before it waits.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the holder is called in /proc/PID/comm, and instead of `pager` on its command line.
const NAME: &CStr = c"farfork-holder";
const COMMAND: &str = "holder";
/// What the keeper's command is called there.
const KEEPER_COMMAND: &str = "pager";

/// Why a holder holds no longer.
pub(super) enum HolderEnd {
    /// A client has stopped the pager, or another process is the holder.
    NotNeeded,
    /// Keeper and pager are gone: this process has to be the keeper now.
    KeeperAndPagerGone,
}

/// Clones a holder in the place of one that is gone. It is init's child, so that no keeper has to reap it.
///
/// # Errors
/// As clone3(2).
pub(super) fn start(roles: &RoleTable) -> io::Result<Forked> {
    match sharing_files(None)? {
        Forked::Parent { pid } => {
            reap(pid);
            Ok(Forked::Parent { pid })
        }
        Forked::Child => match sharing_files(roles.slot(Role::Holder)) {
            Ok(Forked::Child) => Ok(Forked::Child),
            Ok(Forked::Parent { .. }) => std::process::exit(0),
            Err(error) => {
                tracing::error!("the holder cannot be started: {error}");
                std::process::exit(1)
            }
        },
    }
}

/// The holder's life.
pub(super) fn hold(roles: &RoleTable, shown: Option<&ShownName>) -> HolderEnd {
    roles.begin_to_hold();
    if let Err(error) = shown.map_or(Ok(()), ShownName::tell_holder) {
        tracing::debug!("the holder is called as its keeper is: {error}");
    }
    let end = hold_table(roles);
    // Those that it clones as the keeper are no holders.
    let _ = shown.map_or(Ok(()), ShownName::restore);
    end
}

fn hold_table(roles: &RoleTable) -> HolderEnd {
    loop {
        if roles.is_stopped() || !roles.is_holder() {
            return HolderEnd::NotNeeded;
        }
        match roles.living(&[Role::Keeper, Role::Pager]) {
            Some(number) => drop(pidfd::wait_exit_of_any(&[number], LOOK_INTERVAL)),
            None if roles.is_stopped() => return HolderEnd::NotNeeded,
            None => return HolderEnd::KeeperAndPagerGone,
        }
    }
}

/// Ends the holder, where there is one: nobody needs the table any more.
pub(super) fn end(roles: &RoleTable) {
    const LIMIT: Duration = Duration::from_secs(1);
    let Some(number) = roles.living(&[Role::Holder]) else { return };
    // It looks again when it is woken, or after a while; nothing is lost by a kill.
    let _ = pidfd::send_signal_by_number(number, rustix::process::Signal::KILL.as_raw());
    pidfd::wait_exit_of_any(&[number], LIMIT);
}

/// What `ps` shows a process as. It is read before there is a pager, and told without a descriptor (`roles`).
#[derive(Debug)]
pub(super) struct ShownName {
    comm: CString,
    command_line: Vec<u8>,
    /// Address of the command line.
    start: u64,
}

impl ShownName {
    /// Of this process.
    ///
    /// # Errors
    /// As open(2) of files of proc(5).
    pub(super) fn read() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        // arg_start is field 48 of proc_pid_stat(5); the first behind the name is field 3.
        let start = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(48 - 3)?.parse().ok());
        let start = start.ok_or(io::ErrorKind::InvalidData)?;
        let comm = CString::new(fs::read("/proc/self/comm")?.trim_ascii_end())?;
        Ok(Self { comm, command_line: fs::read("/proc/self/cmdline")?, start })
    }

    fn tell_holder(&self) -> io::Result<()> {
        rustix::thread::set_name(NAME)?;
        command_line(&self.command_line).map_or(Ok(()), |told| self.write(&told))
    }

    fn restore(&self) -> io::Result<()> {
        rustix::thread::set_name(&self.comm)?;
        self.write(&self.command_line)
    }

    fn write(&self, command_line: &[u8]) -> io::Result<()> {
        memory::write_process(std::process::id() as i32, self.start, command_line)
    }
}

/// The keeper's command line with another command, of the same length; `None` where it is of another program, as in tests.
fn command_line(keepers: &[u8]) -> Option<Vec<u8>> {
    let mut words = keepers.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let (_, command) = (words.next()?, words.next()?);
    if command != KEEPER_COMMAND.as_bytes() {
        return None;
    }
    let told: Vec<&[u8]> = [b"farfork".as_slice(), COMMAND.as_bytes()].into_iter().chain(words).collect();
    let mut told = told.join(&0);
    if told.len() >= keepers.len() {
        return None;
    }
    told.resize(keepers.len(), 0);
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_command_line_says_holder_in_the_place_that_there_is() {
        let told = command_line(b"/proc/self/exe\0pager\0--run-dir\0/run/x\0").unwrap();
        assert_eq!(told, b"farfork\0holder\0--run-dir\0/run/x\0\0\0\0\0\0\0");
        assert_eq!(command_line(b"/usr/bin/test\0--exact\0"), None);
        assert_eq!(command_line(b"f\0pager\0"), None, "it does not fit");
    }
}
