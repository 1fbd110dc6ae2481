//! Pseudo-terminals of which the process has the end that drives them.
//!
//! A terminal has no way to look at what waits in it without taking it out, so that one in which anything waits is refused.
//! (A line that is being typed, and was not sent off yet, nobody is shown: it is lost, as when the terminal is flushed.)
//! What other processes have open of it has no part in a child's, which finds no more than the process's own ends.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use farfork_sys::mount::table;
use farfork_sys::pidfd;
use farfork_sys::process::FdInfo;
use farfork_sys::terminal::{self, Master, Readiness};
use farfork_wire::descriptor::{FileStatus, TERMINAL_NUMBER_MAX, Terminal};

use super::{Kind, OpenFd, object};
use crate::capture::error::{CaptureError, Refusal};

/// Where the other ends are.
const DIRECTORY: &str = "/dev/pts";

/// Mode bits that are carried.
const PERMISSIONS: u32 = 0o7777;

/// An end of a pseudo-terminal as it stood.
#[derive(Debug)]
pub(super) enum TerminalEnd {
    /// The one that drives it.
    Master(Master),
    /// The other, which programs take for a terminal.
    Slave { readiness: Readiness, is_exclusive: bool },
}

impl TerminalEnd {
    /// The number of its terminal.
    pub(super) fn number(&self, fd: &OpenFd) -> Option<u32> {
        match self {
            Self::Master(master) => Some(master.number),
            Self::Slave { .. } => number_of_slave(fd),
        }
    }
}

/// Looks at an end.
pub(super) fn read(copy: &OwnedFd, kind: &Kind) -> io::Result<TerminalEnd> {
    if *kind == Kind::TerminalMaster {
        return terminal::master(copy.as_fd()).map(TerminalEnd::Master);
    }
    let (readiness, is_exclusive) = (terminal::readiness(copy.as_fd())?, terminal::is_exclusive(copy.as_fd())?);
    Ok(TerminalEnd::Slave { readiness, is_exclusive })
}

/// Which terminal a path of `/dev/pts` is.
fn number_of_slave(fd: &OpenFd) -> Option<u32> {
    let name = str::from_utf8(&fd.link).ok()?.rsplit_once('/')?;
    if name.0.ends_with(DIRECTORY) { name.1.parse().ok() } else { None }
}

/// Ends of terminals beyond the standard streams.
fn ends(fds: &[OpenFd]) -> impl Iterator<Item = &OpenFd> {
    fds.iter().filter(|fd| matches!(fd.kind, Kind::Terminal | Kind::TerminalMaster) && !fd.is_standard)
}

/// Terminals of `subject`, a copy of `pid` or itself, that are not of its own making, or that others have a part in.
pub(super) fn refusals(pid: i32, subject: i32, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    if ends(fds).next().is_none() {
        return Ok(Vec::new());
    }
    let mut refusals = Vec::new();
    let mut masters = Vec::new();
    let process = pidfd::open(subject).map_err(CaptureError::read(pid, "the terminals"))?;
    for fd in ends(fds).filter(|fd| fd.kind == Kind::TerminalMaster) {
        // One that was closed meanwhile is left out.
        let Ok(copy) = pidfd::get_fd(&process, fd.number) else { continue };
        let told = terminal::master(copy.as_fd()).map_err(CaptureError::read(pid, format!("fd {}", fd.number)))?;
        refusals.extend(refuse_master(subject, fd, &told, fds).map(|why| Refusal::new(object(pid, fd.number), why)));
        masters.push(told.number);
    }
    for fd in ends(fds).filter(|fd| fd.kind == Kind::Terminal) {
        if !number_of_slave(fd).is_some_and(|number| masters.contains(&number)) || !is_own(subject, fd) {
            let link = String::from_utf8_lossy(&fd.link);
            let reason = format!(
                "terminal {link}: only standard streams may lead to a terminal that is driven by somebody else than the process"
            );
            refusals.push(Refusal::new(object(pid, fd.number), reason));
        }
    }
    Ok(refusals)
}

/// Whether the other end of a terminal is one of the process's own `/dev/pts`.
fn is_own(subject: i32, fd: &OpenFd) -> bool {
    fs::metadata(format!("/proc/{subject}/root{DIRECTORY}")).is_ok_and(|directory| directory.dev() == fd.device)
}

/// Why the end that drives a terminal cannot be carried, whatever waits in it.
fn refuse_master(subject: i32, fd: &OpenFd, told: &Master, fds: &[OpenFd]) -> Option<String> {
    let number = told.number;
    let has_slave = ends(fds).any(|fd| number_of_slave(fd) == Some(number));
    if !is_of_own_mounts(subject, fd) {
        return Some("it drives a terminal of another mount namespace, which is not carried".to_owned());
    }
    if ![&b"/dev/ptmx"[..], b"/dev/pts/ptmx"].iter().any(|path| fd.link.ends_with(path)) {
        return Some("it drives a terminal, and was opened by an unusual name, which is not carried".to_owned());
    }
    if number > TERMINAL_NUMBER_MAX {
        return Some(format!("it drives terminal {number}, and numbers beyond {TERMINAL_NUMBER_MAX} are not carried"));
    }
    if told.discipline != 0 {
        return Some(format!("its line discipline is {}, and only the usual one (0) is carried", told.discipline));
    }
    if !has_slave && !told.is_locked && !told.readiness.is_hung_up {
        let reason = format!(
            "it drives {DIRECTORY}/{number}, which other processes use, or nobody has opened yet; close it first"
        );
        return Some(reason);
    }
    None
}

/// Whether it was opened in the mount namespace of the process, where `/dev/ptmx` leads to its own `/dev/pts`.
fn is_of_own_mounts(subject: i32, fd: &OpenFd) -> bool {
    let mounts = fs::read(format!("/proc/{subject}/mountinfo")).and_then(|text| table::parse(&text));
    let opened = FdInfo::read(subject, fd.number);
    let (Ok(mounts), Ok(opened)) = (mounts, opened) else { return false };
    mounts.iter().any(|mount| u64::from(mount.id) == opened.mount)
}

/// The terminals of a process, ascending; or the descriptor of one that cannot be carried, and why. The process group and
/// the session are the parent's.
pub(super) fn describe(
    (subject, group, session): (i32, i32, i32),
    fds: &[OpenFd],
    found: &BTreeMap<u32, TerminalEnd>,
) -> Result<Vec<Terminal>, (u32, String)> {
    let mut terminals: BTreeMap<u32, Terminal> = BTreeMap::new();
    for (fd, end) in ends(fds).filter_map(|fd| Some((fd, found.get(&fd.number)?))) {
        let TerminalEnd::Master(master) = end else { continue };
        let refused = |reason| (fd.number, reason);
        refuse_what_waits(&master.readiness).map_err(refused)?;
        let own = (group, session);
        let terminal = described(master, own, fs::metadata(slave_path(subject, master.number)).ok());
        terminals.insert(master.number, terminal.map_err(refused)?);
    }
    for (fd, end) in ends(fds).filter_map(|fd| Some((fd, found.get(&fd.number)?))) {
        let TerminalEnd::Slave { readiness, is_exclusive } = end else { continue };
        refuse_what_waits(readiness).map_err(|reason| (fd.number, reason))?;
        let terminal = number_of_slave(fd).and_then(|number| terminals.get_mut(&number));
        terminal.ok_or((fd.number, "nothing of the process drives it".to_owned()))?.is_exclusive |= is_exclusive;
    }
    Ok(terminals.into_values().collect())
}

fn slave_path(subject: i32, number: u32) -> String {
    format!("/proc/{subject}/root{DIRECTORY}/{number}")
}

fn refuse_what_waits(readiness: &Readiness) -> Result<(), String> {
    if readiness.unread_bytes > 0 {
        let bytes = readiness.unread_bytes;
        return Err(format!(
            "{bytes} bytes or more wait to be read from the terminal, which are not carried; try again"
        ));
    }
    if readiness.has_news {
        return Err("a change of the terminal's settings waits to be read (packet mode), which is not carried".into());
    }
    if !readiness.is_writable && !readiness.is_hung_up {
        return Err("the terminal was stopped (Ctrl-S), or the way to its other end is full; try again".to_owned());
    }
    Ok(())
}

fn described(master: &Master, (group, session): (i32, i32), status: Option<fs::Metadata>) -> Result<Terminal, String> {
    let is_controlling = master.session == Some(session);
    if master.session.is_some() && !is_controlling {
        return Err("the terminal is the controlling one of another process's session, which is not carried".to_owned());
    }
    if is_controlling && ![0, group].contains(&master.foreground) {
        return Err("another process group is in the foreground of its terminal, which is not carried".to_owned());
    }
    let status =
        status.map(|found| FileStatus { mode: found.mode() & PERMISSIONS, uid: found.uid(), gid: found.gid() });
    Ok(Terminal {
        number: master.number,
        settings: master.settings.to_vec(),
        window: master.window,
        is_locked: master.is_locked,
        is_hung_up: master.readiness.is_hung_up,
        is_packet_mode: master.is_packet_mode,
        is_exclusive: false,
        is_controlling,
        status,
    })
}
