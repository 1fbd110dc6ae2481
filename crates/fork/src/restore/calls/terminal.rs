//! What is set of pseudo-terminals, and their other ends: in the child's own `/dev/pts`, with the numbers that the program knows.
//! The ends that drive them are passed (`terminals.rs`).

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Terminal};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::STEP_TERMINAL;
use super::super::objects::Objects;
use super::super::terminals::{DIRECTORY, opened};
use super::files::Bench;
use super::{Script, number, value};

/// From asm-generic/ioctls.h.
const TCSETS2: u64 = 0x402c_542b;
const TIOCEXCL: u64 = 0x540c;
const TIOCSPGRP: u64 = 0x5410;
const TIOCSWINSZ: u64 = 0x5414;
const TIOCPKT: u64 = 0x5420;
const TIOCSPTLCK: u64 = 0x4004_5431;

/// All of them. A zygote has none.
pub(super) fn make(bench: &mut Bench<'_, '_>, descriptor: &Descriptor, objects: &Objects) -> Result<(), RestoreError> {
    for (index, terminal) in descriptor.terminals.iter().enumerate() {
        let ends = Ends::of(descriptor, index as u32);
        let here = ends.master.and_then(|master| Some((master, objects.of_open_file(master)?)));
        let Some((master, slot)) = here else { continue };
        bench.about(STEP_TERMINAL, master);
        one(bench, terminal, bench.fd_base + slot, &ends)?;
    }
    Ok(())
}

/// Of the process that leads the session that a terminal controls: which group is in its foreground. All groups are there.
pub(super) fn choose_foreground(
    descriptor: &Descriptor,
    (objects, fd_base): (&Objects, u32),
    process: u32,
    script: &mut Script<'_>,
) -> Result<(), RestoreError> {
    let Some(slot) = objects.controlling(process) else { return Ok(()) };
    let sessions = descriptor.terminals.iter().filter_map(|terminal| terminal.session);
    for session in sessions.filter(|session| session.leader == process && session.foreground != process) {
        script.about(STEP_TERMINAL, 0);
        set_word(script, fd_base + slot, TIOCSPGRP, session.foreground)?;
    }
    Ok(())
}

/// The open files of a terminal.
struct Ends {
    /// Index.
    master: Option<u32>,
    /// Index and flags.
    slaves: Vec<(u32, u32)>,
}

impl Ends {
    fn of(descriptor: &Descriptor, wanted: u32) -> Self {
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

/// The other ends as descriptor 0, one after the other. Where all are closed, one is opened for a moment: it was, and is
/// closed.
fn one(bench: &mut Bench<'_, '_>, terminal: &Terminal, master: u32, ends: &Ends) -> Result<(), RestoreError> {
    let slave = bench.script.text(&format!("{DIRECTORY}/{}", terminal.number))?;
    for (index, flags) in &ends.slaves {
        bench.script.gives(0, number::OPEN, &[slave, value(opened(*flags).bits())]);
        bench.put_aside(0, *index);
    }
    let script = &mut *bench.script;
    if terminal.is_hung_up {
        script.gives(0, number::OPEN, &[slave, value(opened(OFlags::RDWR.bits()).bits())]);
        script.gives(0, number::CLOSE, &[value(0_u32)]);
    }
    let settings = script.bytes(&terminal.settings)?;
    script.gives(0, number::IOCTL, &[value(master), value(TCSETS2), settings]);
    let window: Vec<u8> = terminal.window.iter().flat_map(|count| count.to_ne_bytes()).collect();
    let window = script.bytes(&window)?;
    script.gives(0, number::IOCTL, &[value(master), value(TIOCSWINSZ), window]);
    if terminal.is_packet_mode {
        set_word(script, master, TIOCPKT, 1)?;
    }
    if terminal.is_locked {
        set_word(script, master, TIOCSPTLCK, 1)?;
    }
    if let Some(status) = terminal.status {
        script.gives(0, number::CHOWN, &[slave, value(status.uid), value(status.gid)]);
        script.gives(0, number::CHMOD, &[slave, value(status.mode)]);
    }
    if let Some(place) = ends.slaves.first().and_then(|(index, _)| bench.place_of(*index))
        && terminal.is_exclusive
    {
        bench.script.gives(0, number::IOCTL, &[value(place), value(TIOCEXCL), value(0_u32)]);
    }
    Ok(())
}

/// A request that is told by a number.
fn set_word(script: &mut Script<'_>, fd: u32, request: u64, word: u32) -> Result<(), RestoreError> {
    let word = script.bytes(&word.to_ne_bytes())?;
    script.gives(0, number::IOCTL, &[value(fd), value(request), word]);
    Ok(())
}
