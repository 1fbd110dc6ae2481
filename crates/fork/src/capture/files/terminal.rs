//! Pseudo-terminals whose masters are open in the tree.
//!
//! Data that waits in a terminal cannot be read without removing it, so a terminal with such data is refused. A line that is
//! being typed and was not sent yet is not visible: it is lost, as when the terminal is flushed. A child gets only the ends
//! that the tree has, and none that other processes have open.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use farfork_sys::mount::table;
use farfork_sys::pidfd;
use farfork_sys::process::FdInfo;
use farfork_sys::terminal::{self, PtyMaster, PtyReadiness};
use farfork_wire::descriptor::{ControlledSession, FileStatus, PseudoTerminal, TERMINAL_NUMBER_MAX};

use super::{FdKind, OpenFd, fd_object};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::state::tree_root::TreeRoot;

/// Directory of the slaves.
const DEVPTS_PATH: &str = "/dev/pts";

/// Mode bits that are carried.
const PERMISSIONS: u32 = 0o7777;

/// One end of a pseudo-terminal, in its state at the pause.
#[derive(Debug)]
pub(crate) enum TerminalEnd {
    /// The master, which drives the terminal.
    Master(PtyMaster),
    /// The slave, which programs use as a terminal.
    Slave { number: Option<u32>, readiness: PtyReadiness, is_exclusive: bool },
    /// The slave of a terminal whose master was closed, or that was hung up (vhangup(2)).
    HungUp,
}

impl TerminalEnd {
    /// The number of its terminal, if it is a pseudo-terminal.
    pub(super) fn pts_number(&self) -> Option<u32> {
        match self {
            Self::Master(master) => Some(master.number),
            Self::Slave { number, .. } => *number,
            Self::HungUp => None,
        }
    }
}

/// An end, with its process and descriptor number.
pub(crate) type ProcessTerminalEnd<'a> = (i32, u32, &'a TerminalEnd);

/// The part of a process's state that terminals depend on. Each pair has the id in farfork's pid namespace and the id in the
/// child.
#[derive(Debug)]
pub(crate) struct SessionMember {
    pub(crate) pid: i32,
    pub(crate) session: (i32, u32),
    pub(crate) group: (i32, u32),
    /// Number of the process's controlling terminal.
    pub(crate) terminal: Option<u32>,
    /// Whether the process is a zombie: its id and its group remain until its parent waits for it.
    pub(crate) has_ended: bool,
}

/// Reads the state of an end.
pub(super) fn read_terminal_end(copy: &OwnedFd, kind: &FdKind) -> io::Result<TerminalEnd> {
    if *kind == FdKind::TerminalMaster {
        return terminal::read_master(copy.as_fd()).map(TerminalEnd::Master);
    }
    match read_slave(copy) {
        // EIO: the master was closed.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(TerminalEnd::HungUp),
        other => other,
    }
}

fn read_slave(copy: &OwnedFd) -> io::Result<TerminalEnd> {
    let number = terminal::pts_number(copy.as_fd())?;
    let (readiness, is_exclusive) = (terminal::poll_pty(copy.as_fd())?, terminal::is_exclusive(copy.as_fd())?);
    Ok(TerminalEnd::Slave { number, readiness, is_exclusive })
}

/// Ends of terminals other than standard streams.
fn terminal_ends(fds: &[OpenFd]) -> impl Iterator<Item = &OpenFd> {
    fds.iter().filter(|fd| matches!(fd.kind, FdKind::Terminal | FdKind::TerminalMaster) && !fd.is_standard_stream)
}

/// Refuses ends that cannot be carried, no matter which process has the other ends. `root` is the root of the tree.
pub(super) fn refuse_terminals(pid: i32, root: TreeRoot, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    if terminal_ends(fds).next().is_none() {
        return Ok(Vec::new());
    }
    let mut refusals = Vec::new();
    let process = pidfd::open(pid).map_err(CaptureError::reading(pid, "the terminals"))?;
    for fd in terminal_ends(fds).filter(|fd| fd.kind == FdKind::TerminalMaster) {
        // Skip an end that was closed during the call.
        let Ok(copy) = fd.duplicate(&process) else { continue };
        let master =
            terminal::read_master(copy.as_fd()).map_err(CaptureError::reading(pid, format!("fd {}", fd.number)))?;
        refusals.extend(refuse_master(pid, root, fd, &master).map(|why| Refusal::new(fd_object(pid, fd.number), why)));
    }
    for fd in terminal_ends(fds).filter(|fd| fd.kind == FdKind::Terminal) {
        if is_controlling_terminal(fd) {
            refusals.push(Refusal::new(fd_object(pid, fd.number), CONTROLLING_TERMINAL_REASON));
        } else if !is_on_tree_devpts(root, fd) {
            refusals.push(refuse_foreign_master(pid, fd.number));
        } else if !fd.link.starts_with(b"/dev/pts/") {
            let reason = format!(
                "it is a terminal that was opened by another name than {DEVPTS_PATH} has for it, which is not carried; close it first"
            );
            refusals.push(Refusal::new(fd_object(pid, fd.number), reason));
        }
    }
    Ok(refusals)
}

/// Whether the terminal was opened by the name of the controlling terminal. `refuse_terminals` refuses it.
fn is_controlling_terminal(fd: &OpenFd) -> bool {
    fd.link == b"/dev/tty"
}

const CONTROLLING_TERMINAL_REASON: &str = "it is /dev/tty, which names the controlling terminal of the process that opens it, and is not carried; close it first, and open it again in the child";

fn refuse_foreign_master(pid: i32, number: u32) -> Refusal {
    let reason = "only standard streams may lead to a terminal whose master is open outside the process and its descendants; close it first";
    Refusal::new(fd_object(pid, number), reason)
}

/// Refuses terminals that were hung up, and ends of terminals whose other end none of the processes has open.
pub(in crate::capture) fn refuse_unpaired<'a>(
    processes: impl Iterator<Item = (i32, &'a [OpenFd])>,
) -> Result<Vec<Refusal>, CaptureError> {
    let (mut found, mut has_unnamed) = (Vec::new(), false);
    for (pid, fds) in processes.filter(|(_, fds)| terminal_ends(fds).next().is_some()) {
        has_unnamed |= terminal_ends(fds).any(is_controlling_terminal);
        // Skip a process that has ended.
        let process = match pidfd::open(pid).map_err(CaptureError::reading(pid, "the terminals")) {
            Err(CaptureError::ProcessGone { .. }) => continue,
            opened => opened?,
        };
        for fd in terminal_ends(fds).filter(|fd| !is_controlling_terminal(fd)) {
            // Skip an end that was closed during the call.
            let Ok(copy) = fd.duplicate(&process) else { continue };
            let end =
                read_terminal_end(&copy, &fd.kind).map_err(CaptureError::reading(pid, format!("fd {}", fd.number)))?;
            found.push((pid, fd.number, end));
        }
    }
    Ok(refuse_missing_ends(found.iter().map(|(pid, number, end)| (*pid, *number, end)), has_unnamed))
}

/// `has_unnamed` is whether a process of the tree has `/dev/tty` open, which may be the other end of any master.
fn refuse_missing_ends<'a>(
    ends: impl Iterator<Item = ProcessTerminalEnd<'a>> + Clone,
    has_unnamed: bool,
) -> Vec<Refusal> {
    let has = |wanted: Option<u32>, is_master: bool| {
        ends.clone().any(|(_, _, end)| match end {
            TerminalEnd::Master(_) => is_master && end.pts_number() == wanted,
            TerminalEnd::Slave { .. } => !is_master && end.pts_number() == wanted,
            TerminalEnd::HungUp => false,
        })
    };
    let refusal = |(pid, fd, end): ProcessTerminalEnd<'a>| match end {
        TerminalEnd::Slave { number, .. } => (!has(*number, true)).then(|| refuse_foreign_master(pid, fd)),
        TerminalEnd::HungUp => {
            let reason =
                "it is a terminal that was hung up, or whose master was closed, which is not carried; close it first";
            Some(Refusal::new(fd_object(pid, fd), reason))
        }
        TerminalEnd::Master(master) => {
            let has_slave = has_unnamed || has(end.pts_number(), false);
            let is_alone = !has_slave && !master.is_locked && !master.readiness.is_hung_up;
            is_alone.then(|| {
                let reason = format!(
                    "it is the master of {DEVPTS_PATH}/{}, which other processes use, or no process has opened yet; close it first",
                    master.number
                );
                Refusal::new(fd_object(pid, fd), reason)
            })
        }
    };
    ends.clone().filter_map(refusal).collect()
}

/// Whether the slave of a terminal is in the tree's own `/dev/pts`.
fn is_on_tree_devpts(root: TreeRoot, fd: &OpenFd) -> bool {
    fs::metadata(root.resolve(Path::new(DEVPTS_PATH))).is_ok_and(|directory| directory.dev() == fd.device)
}

/// Returns why a master cannot be carried, no matter which data is queued.
fn refuse_master(pid: i32, root: TreeRoot, fd: &OpenFd, master: &PtyMaster) -> Option<String> {
    let number = master.number;
    if !is_ptmx_of_mounts(pid, root, fd) {
        return Some(
            "it is the master of a terminal of another mount namespace, which is not carried; close it first"
                .to_owned(),
        );
    }
    if ![&b"/dev/ptmx"[..], b"/dev/pts/ptmx"].contains(&fd.link.as_slice()) {
        return Some(
            "it is the master of a terminal, and was opened by another name than /dev/ptmx, which is not carried; close it first"
                .to_owned(),
        );
    }
    if number > TERMINAL_NUMBER_MAX {
        return Some(format!("it drives terminal {number}, and numbers beyond {TERMINAL_NUMBER_MAX} are not carried"));
    }
    if master.discipline != 0 {
        return Some(format!("its line discipline is {}, and only the usual one (0) is carried", master.discipline));
    }
    None
}

/// Whether a master was opened in the mount namespace of the tree, where `/dev/ptmx` leads to the tree's own `/dev/pts`.
fn is_ptmx_of_mounts(pid: i32, root: TreeRoot, fd: &OpenFd) -> bool {
    let mounts = fs::read(format!("/proc/{}/mountinfo", root.pid)).and_then(|text| table::parse(&text));
    let opened = FdInfo::read(pid, fd.number);
    let (Ok(mounts), Ok(opened)) = (mounts, opened) else { return false };
    mounts.iter().any(|mount| u64::from(mount.id) == opened.mount)
}

/// Builds the terminals of a tree, by ascending number. `root` is the root of the tree.
pub(in crate::capture) fn describe_terminals<'a>(
    ends: impl Iterator<Item = ProcessTerminalEnd<'a>> + Clone,
    session_members: &[SessionMember],
    root: TreeRoot,
) -> Result<Vec<PseudoTerminal>, Vec<Refusal>> {
    let unpaired = refuse_missing_ends(ends.clone(), false);
    if !unpaired.is_empty() {
        return Err(unpaired);
    }
    let mut terminals: BTreeMap<u32, PseudoTerminal> = BTreeMap::new();
    for (pid, fd, end) in ends.clone() {
        let TerminalEnd::Master(master) = end else { continue };
        let terminal =
            refuse_queued_data(&master.readiness).and_then(|()| build_terminal(master, session_members, root));
        terminals.insert(master.number, terminal.map_err(|reason| vec![Refusal::new(fd_object(pid, fd), reason)])?);
    }
    for (pid, fd, end) in ends {
        let TerminalEnd::Slave { number, readiness, is_exclusive } = end else { continue };
        refuse_queued_data(readiness).map_err(|reason| vec![Refusal::new(fd_object(pid, fd), reason)])?;
        if let Some(terminal) = number.and_then(|number| terminals.get_mut(&number)) {
            terminal.is_exclusive |= is_exclusive;
        }
    }
    Ok(terminals.into_values().collect())
}

/// Sessions that the tree's terminals control, each with its foreground group.
pub(in crate::capture) fn foreground_groups<'a>(
    ends: impl Iterator<Item = ProcessTerminalEnd<'a>>,
) -> impl Iterator<Item = (i32, i32)> {
    ends.filter_map(|(_, _, end)| match end {
        TerminalEnd::Master(master) => Some((master.session?, master.foreground)),
        TerminalEnd::Slave { .. } | TerminalEnd::HungUp => None,
    })
}

fn refuse_queued_data(pty_readiness: &PtyReadiness) -> Result<(), String> {
    if pty_readiness.unread_bytes > 0 {
        let bytes = pty_readiness.unread_bytes;
        return Err(format!(
            "{bytes} bytes or more wait to be read from the terminal, which are not carried; try again"
        ));
    }
    if pty_readiness.has_packet_event {
        return Err("a change of the terminal's settings waits to be read (packet mode), which is not carried".into());
    }
    if !pty_readiness.is_writable && !pty_readiness.is_hung_up {
        return Err("the terminal was stopped (Ctrl-S), or its output buffer is full; try again".to_owned());
    }
    Ok(())
}

fn build_terminal(master: &PtyMaster, seats: &[SessionMember], root: TreeRoot) -> Result<PseudoTerminal, String> {
    let status = fs::metadata(root.resolve(&Path::new(DEVPTS_PATH).join(master.number.to_string()))).ok();
    let status =
        status.map(|found| FileStatus { mode: found.mode() & PERMISSIONS, uid: found.uid(), gid: found.gid() });
    Ok(PseudoTerminal {
        number: master.number,
        settings: master.settings.to_vec(),
        window: master.window,
        is_locked: master.is_locked,
        is_hung_up: master.readiness.is_hung_up,
        is_packet_mode: master.is_packet_mode,
        is_exclusive: false,
        session: master.session.map(|session| build_controlled_session(master, session, seats)).transpose()?,
        status,
    })
}

/// Builds the session that a terminal controls. It is carried only if all processes of the session have the terminal: in a
/// child, all processes of a session inherit it from the leader.
fn build_controlled_session(
    master: &PtyMaster,
    session: i32,
    seats: &[SessionMember],
) -> Result<ControlledSession, String> {
    let mut of_session =
        seats.iter().filter(|session_member| session_member.session.0 == session && !session_member.has_ended);
    let Some(leader) = of_session.clone().next().map(|session_member| session_member.session.1) else {
        return Err("the terminal is the controlling one of another process's session, which is not carried".to_owned());
    };
    if let Some(without) = of_session.find(|session_member| session_member.terminal != Some(master.number)) {
        return Err(format!(
            "the terminal is the controlling one of session {session}, but not of its process {} (TIOCNOTTY), which is not carried",
            without.pid
        ));
    }
    let in_foreground = seats
        .iter()
        .find(|session_member| (session_member.session.0, session_member.group.0) == (session, master.foreground));
    match (master.foreground, in_foreground) {
        // No visible group is in the foreground: use the leader's, as for a new terminal.
        (0, _) => Ok(ControlledSession { leader, foreground: leader }),
        (_, Some(session_member)) => Ok(ControlledSession { leader, foreground: session_member.group.1 }),
        (group, None) => Err(format!(
            "process group {group} is in the foreground of the terminal, and has no process of the tree: not carried"
        )),
    }
}
