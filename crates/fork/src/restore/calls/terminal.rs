//! Pseudo-terminals, in the child's own `/dev/pts`: with the numbers that the program knows.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Terminal};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::STEP_TERMINAL;
use super::super::objects::Objects;
use super::files::{Bench, number_of};
use super::{Argument, Script, number, value};

const DIRECTORY: &str = "/dev/pts";
const NEW_ONES: &str = "/dev/pts/ptmx";

/// From asm-generic/ioctls.h.
const TCSETS2: u64 = 0x402c_542b;
const TIOCEXCL: u64 = 0x540c;
const TIOCSCTTY: u64 = 0x540e;
const TIOCSWINSZ: u64 = 0x5414;
const TIOCPKT: u64 = 0x5420;
const TIOCSPTLCK: u64 = 0x4004_5431;

/// All of them, ascending: numbers are given from 0 on, in a `/dev/pts` where nobody has any yet.
pub(super) fn make(bench: &mut Bench<'_, '_>, descriptor: &Descriptor, objects: &Objects) -> Result<(), RestoreError> {
    let mut next = 0;
    for (index, terminal) in descriptor.terminals.iter().enumerate() {
        if !objects.is_private(&format!("{DIRECTORY}/{}", terminal.number)) {
            return Err(RestoreError::SharedTerminal { number: terminal.number });
        }
        let ends = Ends::of(descriptor, index as u32)?;
        bench.script.about(STEP_TERMINAL, number_of(descriptor, ends.master.0));
        let both = (OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
        let new_ones = bench.script.text(NEW_ONES)?;
        // Terminals that the program has closed: as long as they are open, their numbers are not given again.
        for _ in next..terminal.number {
            bench.script.gives(0, number::OPEN, &[new_ones, value(both)]);
            bench.put_away(0);
        }
        one(bench, terminal, &ends)?;
        next = terminal.number + 1;
    }
    Ok(())
}

/// The open files of a terminal, with their indices.
struct Ends<'a> {
    /// Index, path, flags.
    master: (u32, &'a str, u32),
    /// Index and flags.
    slaves: Vec<(u32, u32)>,
}

impl<'a> Ends<'a> {
    fn of(descriptor: &'a Descriptor, wanted: u32) -> Result<Self, RestoreError> {
        let (mut master, mut slaves) = (None, Vec::new());
        for (index, file) in descriptor.open_files.iter().enumerate() {
            match file {
                OpenFile::Terminal { terminal, path, is_master: true, flags } if *terminal == wanted => {
                    master = Some((index as u32, path.as_str(), *flags));
                }
                OpenFile::Terminal { terminal, flags, .. } if *terminal == wanted => {
                    slaves.push((index as u32, *flags));
                }
                _ => {}
            }
        }
        Ok(Self { master: master.ok_or(RestoreError::NotMade { number: 0 })?, slaves })
    }
}

/// The end that drives it as descriptor 0, the others as descriptor 1, one after the other. Where all others are closed,
/// one is opened for a moment: it was, and is closed.
fn one(bench: &mut Bench<'_, '_>, terminal: &Terminal, ends: &Ends<'_>) -> Result<(), RestoreError> {
    let (index, path, flags) = ends.master;
    let script = &mut *bench.script;
    let path = script.text(path)?;
    script.gives(0, number::OPEN, &[path, value(opened(flags))]);
    set_word(script, TIOCSPTLCK, 0)?;
    let slave = script.text(&format!("{DIRECTORY}/{}", terminal.number))?;
    for (slave_index, flags) in &ends.slaves {
        bench.script.gives(1, number::OPEN, &[slave, value(opened(*flags))]);
        bench.put_aside(1, *slave_index);
    }
    let script = &mut *bench.script;
    if terminal.is_hung_up || terminal.is_controlling {
        script.gives(1, number::OPEN, &[slave, value((OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC).bits())]);
    }
    let settings = script.bytes(&terminal.settings)?;
    script.gives(0, number::IOCTL, &[value(0_u32), value(TCSETS2), settings]);
    let window: Vec<u8> = terminal.window.iter().flat_map(|count| count.to_ne_bytes()).collect();
    let window = script.bytes(&window)?;
    script.gives(0, number::IOCTL, &[value(0_u32), value(TIOCSWINSZ), window]);
    if terminal.is_controlling {
        script.gives(0, number::IOCTL, &[value(1_u32), value(TIOCSCTTY), value(0_u32)]);
    }
    if terminal.is_hung_up || terminal.is_controlling {
        script.gives(0, number::CLOSE, &[value(1_u32)]);
    }
    if terminal.is_packet_mode {
        set_word(script, TIOCPKT, 1)?;
    }
    if terminal.is_locked {
        set_word(script, TIOCSPTLCK, 1)?;
    }
    if let Some(status) = terminal.status {
        script.gives(0, number::CHOWN, &[slave, value(status.uid), value(status.gid)]);
        script.gives(0, number::CHMOD, &[slave, value(status.mode)]);
    }
    bench.put_aside(0, index);
    if let Some(place) = ends.slaves.first().and_then(|(index, _)| bench.place_of(*index))
        && terminal.is_exclusive
    {
        bench.script.gives(0, number::IOCTL, &[value(place), value(TIOCEXCL), value(0_u32)]);
    }
    Ok(())
}

/// How an end is opened that is open with `flags`.
fn opened(flags: u32) -> u32 {
    let kept = OFlags::from_bits_retain(flags) & (OFlags::RWMODE | OFlags::NONBLOCK | OFlags::APPEND);
    (kept | OFlags::NOCTTY | OFlags::CLOEXEC).bits()
}

/// A request to descriptor 0 that is told by a number.
fn set_word(script: &mut Script<'_>, request: u64, word: u32) -> Result<(), RestoreError> {
    let word: Argument = script.bytes(&word.to_ne_bytes())?;
    script.gives(0, number::IOCTL, &[value(0_u32), value(request), word]);
    Ok(())
}
