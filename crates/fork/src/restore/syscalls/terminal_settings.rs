//! Sets the attributes of pseudo-terminals, and opens their slave ends, in the child's own `/dev/pts`, with the
//! parent's numbers. The daemon creates and passes the master ends (`pseudo_terminals.rs`).

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, PseudoTerminal};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::STEP_TERMINAL;
use super::super::process_tree::TreePosition;
use super::super::pseudo_terminals::{PTS_DIRECTORY, open_flags};
use super::open_files::OpenFileBuilder;
use super::{SyscallBuilder, abi, value};

/// ioctl(2) requests of asm-generic/ioctls.h.
const TCSETS2: u64 = 0x402c_542b;
const TIOCEXCL: u64 = 0x540c;
const TIOCSPGRP: u64 = 0x5410;
const TIOCSWINSZ: u64 = 0x5414;
const TIOCPKT: u64 = 0x5420;
const TIOCSPTLCK: u64 = 0x4004_5431;

/// Configures all terminals. A zygote has none.
pub(super) fn configure_terminals(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    objects: &PassedObjects,
) -> Result<(), RestoreError> {
    for (index, terminal) in descriptor.terminals.iter().enumerate() {
        let ends = TerminalFiles::find(descriptor, index as u32);
        let here = ends.master.and_then(|master| Some((master, objects.slot_of_open_file(master)?)));
        let Some((master, slot)) = here else { continue };
        open_file_builder.set_step(STEP_TERMINAL, master);
        configure_terminal(open_file_builder, terminal, open_file_builder.fd_base + slot, &ends)?;
    }
    Ok(())
}

/// Sets the foreground process group of a controlling terminal. Runs in the session's leader, when all groups exist.
pub(super) fn set_foreground_group(
    place: &TreePosition<'_>,
    objects: &PassedObjects,
    process: u32,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let Some(slot) = objects.controlling_terminal(process) else { return Ok(()) };
    let sessions = place.tree_descriptor().terminals.iter().filter_map(|terminal| terminal.session);
    for session in sessions.filter(|session| session.leader == process && session.foreground != process) {
        syscall_builder.set_step(STEP_TERMINAL, 0);
        ioctl_u32(syscall_builder, place.fd_base + slot, TIOCSPGRP, session.foreground)?;
    }
    Ok(())
}

/// The open files of a terminal.
struct TerminalFiles {
    /// Index of the master.
    master: Option<u32>,
    /// Index and flags of each slave.
    slaves: Vec<(u32, u32)>,
}

impl TerminalFiles {
    fn find(descriptor: &Descriptor, wanted: u32) -> Self {
        let mut ends = Self { master: None, slaves: Vec::new() };
        for (index, file) in descriptor.open_files.iter().enumerate() {
            match file {
                OpenFile::Terminal { terminal, is_master: true, .. } if *terminal == wanted => {
                    ends.master = Some(index as u32);
                }
                OpenFile::Terminal { terminal, flags, .. } if *terminal == wanted => {
                    ends.slaves.push((index as u32, *flags));
                }
                _ => {}
            }
        }
        ends
    }
}

/// Sets the attributes, and opens the slaves as descriptor 0, one after another. If the program had closed all slaves,
/// opens and closes one, so that the master sees a hangup.
fn configure_terminal(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    terminal: &PseudoTerminal,
    master: u32,
    ends: &TerminalFiles,
) -> Result<(), RestoreError> {
    let slave = open_file_builder.syscalls.text_argument(&format!("{PTS_DIRECTORY}/{}", terminal.number))?;
    for (index, flags) in &ends.slaves {
        open_file_builder.syscalls.call_expecting(0, abi::OPEN, &[slave, value(open_flags(*flags).bits())]);
        open_file_builder.store_open_file(0, *index);
    }
    let syscall_builder = &mut *open_file_builder.syscalls;
    if terminal.is_hung_up {
        syscall_builder.call_expecting(0, abi::OPEN, &[slave, value(open_flags(OFlags::RDWR.bits()).bits())]);
        syscall_builder.call_expecting(0, abi::CLOSE, &[value(0_u32)]);
    }
    let settings = syscall_builder.bytes_argument(&terminal.settings)?;
    syscall_builder.call_expecting(0, abi::IOCTL, &[value(master), value(TCSETS2), settings]);
    let window: Vec<u8> = terminal.window.iter().flat_map(|count| count.to_ne_bytes()).collect();
    let window = syscall_builder.bytes_argument(&window)?;
    syscall_builder.call_expecting(0, abi::IOCTL, &[value(master), value(TIOCSWINSZ), window]);
    if terminal.is_packet_mode {
        ioctl_u32(syscall_builder, master, TIOCPKT, 1)?;
    }
    if terminal.is_locked {
        ioctl_u32(syscall_builder, master, TIOCSPTLCK, 1)?;
    }
    if let Some(status) = terminal.status {
        syscall_builder.call_expecting(0, abi::CHOWN, &[slave, value(status.uid), value(status.gid)]);
        syscall_builder.call_expecting(0, abi::CHMOD, &[slave, value(status.mode)]);
    }
    if let Some(place) = ends.slaves.first().and_then(|(index, _)| open_file_builder.slot_fd(*index))
        && terminal.is_exclusive
    {
        open_file_builder.syscalls.call_expecting(0, abi::IOCTL, &[value(place), value(TIOCEXCL), value(0_u32)]);
    }
    Ok(())
}

/// Adds an ioctl(2) whose argument is a pointer to a 32-bit number.
fn ioctl_u32(syscall_builder: &mut SyscallBuilder<'_>, fd: u32, request: u64, word: u32) -> Result<(), RestoreError> {
    let word = syscall_builder.bytes_argument(&word.to_ne_bytes())?;
    syscall_builder.call_expecting(0, abi::IOCTL, &[value(fd), value(request), word]);
    Ok(())
}
