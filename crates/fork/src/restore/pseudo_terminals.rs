//! Creates the child's pseudo-terminals in its own `/dev/pts`, from the daemon, for `passed_objects`. They must exist
//! before any process of the child: a session's controlling terminal is passed only to processes that are forked after
//! TIOCSCTTY (tty_ioctl(4)). The child sets the attributes of the terminals itself (`syscalls/terminal_settings.rs`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use farfork_sys::terminal;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::OpenFile;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::RestoreError;
use super::passed_objects::RootPaths;

/// The directory of pseudo-terminals in the child.
pub(super) const PTS_DIRECTORY: &str = "/dev/pts";

const PTMX_PATH: &str = "/dev/pts/ptmx";

/// A pseudo-terminal of the child.
#[derive(Debug)]
pub(super) struct TerminalPair {
    /// The master.
    pub(super) master: OwnedFd,
    /// Index of the master's open file.
    pub(super) open_file: u32,
    /// The slave, if it controls a session. The session's leader makes it the controlling terminal when it begins the
    /// session.
    pub(super) slave: Option<OwnedFd>,
}

/// Creates the terminals of a descriptor, in ascending order: devpts assigns the lowest free number, from 0.
pub(super) fn create_terminals(descriptor: &Descriptor, roots: &RootPaths) -> Result<Vec<TerminalPair>, RestoreError> {
    let Some(last) = descriptor.terminals.last() else { return Ok(Vec::new()) };
    if !roots.is_private_path(&format!("{PTS_DIRECTORY}/{}", last.number)) {
        return Err(RestoreError::SharedTerminal { number: last.number });
    }
    let map_error = |error| RestoreError::from_object_error("a terminal", error);
    let root = rustix::fs::open(&roots.container_root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let root = root.map_err(io::Error::from).map_err(map_error)?;
    // Keep terminals open for numbers that the program does not use: devpts then assigns the next number.
    let mut closed = Vec::new();
    let mut terminals = Vec::with_capacity(descriptor.terminals.len());
    for (index, wanted) in descriptor.terminals.iter().enumerate() {
        let next = (closed.len() + terminals.len()) as u32;
        for _ in next..wanted.number {
            closed.push(open_in_root(&root, PTMX_PATH, OFlags::RDWR.bits()).map_err(map_error)?);
        }
        let (open_file, path, flags) = find_master(descriptor, index as u32)?;
        let master = open_in_root(&root, path, flags).map_err(map_error)?;
        let slave = open_slave(&master, wanted.number, wanted.session.is_some()).map_err(map_error)?;
        terminals.push(TerminalPair { master, open_file, slave });
    }
    Ok(terminals)
}

/// Returns the open file of a terminal's master: index, path, flags.
fn find_master(descriptor: &Descriptor, wanted: u32) -> Result<(u32, &str, u32), RestoreError> {
    let found = descriptor.open_files.iter().enumerate().find_map(|(index, file)| match file {
        OpenFile::Terminal { terminal, path, is_master: true, flags } if *terminal == wanted => {
            Some((index as u32, path.as_str(), *flags))
        }
        _ => None,
    });
    found.ok_or(RestoreError::UnsupportedOpenFile { number: 0 })
}

/// Opens a path of the container. Symbolic links cannot lead out of it.
fn open_in_root(root: &OwnedFd, path: &str, flags: u32) -> io::Result<OwnedFd> {
    let inside = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
    Ok(openat2(root, inside, open_flags(flags), Mode::empty(), ResolveFlags::IN_ROOT)?)
}

/// Returns the flags for open(2) of an end that had `flags`.
pub(super) fn open_flags(flags: u32) -> OFlags {
    let kept = OFlags::from_bits_retain(flags) & (OFlags::RWMODE | OFlags::NONBLOCK | OFlags::APPEND);
    kept | OFlags::NOCTTY | OFlags::CLOEXEC
}

/// Unlocks the slave. Opens it if it controls a session.
fn open_slave(master: &OwnedFd, number: u32, controls: bool) -> io::Result<Option<OwnedFd>> {
    let assigned_number = terminal::read_master(master.as_fd())?.number;
    if assigned_number != number {
        return Err(io::Error::other(format!("the kernel assigned number {assigned_number} instead of {number}")));
    }
    terminal::unlock(master.as_fd())?;
    if controls { terminal::open_peer(master.as_fd()).map(Some) } else { Ok(None) }
}
