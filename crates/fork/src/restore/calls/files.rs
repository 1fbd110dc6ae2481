//! Open files that a child makes itself, because they tell of it, or live in its own namespaces.

use std::collections::HashMap;

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, TimeLeft};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::{STEP_OWN_PID, STEP_SIGNAL_FD, STEP_TIMER_FD};
use super::super::report::realtime_ns;
use super::socket::{self, Surroundings};
use super::timer::timerspec;
use super::{Argument, Made, Script, delivery, directory, inotify, named_pipe, number, terminal, value};

/// Makes objects and puts them aside.
#[derive(Debug)]
pub(super) struct Bench<'s, 'w> {
    pub(super) script: &'s mut Script<'w>,
    pub(super) fd_base: u32,
    next_slot: u32,
    slots: HashMap<u32, u32>,
    /// Of each open file the first descriptor that leads to it.
    numbers: HashMap<u32, u32>,
}

impl Bench<'_, '_> {
    /// The first descriptor that leads to an open file: what a message names.
    pub(super) fn number_of(&self, open_file: u32) -> u32 {
        self.numbers.get(&open_file).copied().unwrap_or(0)
    }

    /// The calls that follow are a step of making an open file.
    pub(super) fn about(&mut self, step: u32, open_file: u32) {
        self.script.about(step, self.number_of(open_file));
    }

    /// The descriptor under which an open file's object was put aside.
    pub(super) fn place_of(&self, open_file: u32) -> Option<u32> {
        self.slots.get(&open_file).map(|slot| self.fd_base + slot)
    }

    /// Puts descriptor `from` aside as the object of an open file, and closes it.
    pub(super) fn put_aside(&mut self, from: u32, open_file: u32) {
        self.slots.insert(open_file, self.next_slot);
        self.put_away(from);
    }

    /// Where the next object will be put aside.
    pub(super) fn next_place(&self) -> u32 {
        self.fd_base + self.next_slot
    }

    /// Keeps descriptor `from` open until the child runs, out of the way. Gives where.
    pub(super) fn put_away(&mut self, from: u32) -> u32 {
        let slot = self.next_slot;
        self.next_slot += 1;
        let place = u64::from(self.fd_base) + u64::from(slot);
        let close_on_exec = OFlags::CLOEXEC.bits();
        self.script.gives(place, number::DUP3, &[value(from), value(place), value(close_on_exec)]);
        self.script.gives(0, number::CLOSE, &[value(from)]);
        self.fd_base + slot
    }
}

/// Makes all of them, in the order of the open files.
pub(super) fn make(
    descriptor: &Descriptor,
    fd_base: u32,
    passed: u32,
    around: Surroundings<'_>,
    script: &mut Script<'_>,
) -> Result<Made, RestoreError> {
    let mut numbers = HashMap::with_capacity(descriptor.open_files.len());
    for entry in &descriptor.file_descriptors {
        numbers.entry(entry.open_file).or_insert(entry.number);
    }
    let passed_at = |index| around.objects.of_open_file(index).map(|slot| fd_base + slot);
    let mut bench = Bench { script, fd_base, next_slot: passed, slots: HashMap::new(), numbers };
    for (index, file) in descriptor.open_files.iter().enumerate() {
        let index = index as u32;
        let number = bench.number_of(index);
        match file {
            OpenFile::TimerFd { clock, flags, ticks, time, is_cancelled_by_clock } => {
                bench.about(STEP_TIMER_FD, index);
                bench.script.gives(0, number::TIMERFD_CREATE, &[value(*clock), value(modes(*flags))]);
                set_timer(bench.script, *time, *is_cancelled_by_clock)?;
                set_ticks(bench.script, *ticks)?;
                bench.put_aside(0, index);
            }
            OpenFile::DeletedDirectory { status, flags } => {
                directory::open(&mut bench, (index, number), *status, *flags)?;
            }
            OpenFile::SignalFd { mask, flags } => {
                const SIGNAL_SET_BYTES: u32 = 8;
                bench.about(STEP_SIGNAL_FD, index);
                let mask = bench.script.words(&[*mask])?;
                let arguments = [Argument::Value(u64::MAX), mask, value(SIGNAL_SET_BYTES), value(modes(*flags))];
                bench.script.gives(0, number::SIGNALFD4, &arguments);
                bench.put_aside(0, index);
            }
            OpenFile::Process { pid, flags } => {
                bench.about(STEP_OWN_PID, index);
                let arguments = [value(*pid), value(nonblocking(*flags))];
                bench.script.gives(0, number::PIDFD_OPEN, &arguments);
                bench.put_aside(0, index);
            }
            OpenFile::Inotify { flags, .. } if passed_at(index).is_none() => {
                inotify::make(&mut bench, index, *flags);
            }
            OpenFile::NamedPipe { path, .. } if !bench.slots.contains_key(&index) => {
                named_pipe::make(&mut bench, descriptor, path)?;
            }
            _ => {}
        }
    }
    delivery::open_files(&mut bench, descriptor)?;
    terminal::make(&mut bench, descriptor, around.objects)?;
    socket::make(&mut bench, descriptor, around)?;
    inotify::watch(&mut bench, descriptor, passed_at)?;
    Ok(Made { slots: bench.slots, end: bench.next_slot })
}

fn nonblocking(flags: u32) -> u32 {
    (OFlags::from_bits_retain(flags) & OFlags::NONBLOCK).bits()
}

/// The flags that calls which make a descriptor take.
fn modes(flags: u32) -> u32 {
    nonblocking(flags) | OFlags::CLOEXEC.bits()
}

/// Descriptor 0, with the time that is left. One that whoever sets the wall clock cancels is set to the time of day that this will
/// be, and is cancelled so when it is disarmed, too.
fn set_timer(script: &mut Script<'_>, time: TimeLeft, is_cancelled_by_clock: bool) -> Result<(), RestoreError> {
    /// TFD_TIMER_ABSTIME and TFD_TIMER_CANCEL_ON_SET.
    const CANCELLED_BY_CLOCK: u32 = 1 | 2;
    let is_armed = time != TimeLeft::default();
    let (flags, time) = match (is_cancelled_by_clock, is_armed) {
        (false, false) => return Ok(()),
        (false, true) => (0, timerspec(time)),
        (true, false) => (CANCELLED_BY_CLOCK, [0; 4]),
        (true, true) => {
            (CANCELLED_BY_CLOCK, timerspec(TimeLeft { left_ns: realtime_ns().saturating_add(time.left_ns), ..time }))
        }
    };
    let time = script.words(&time)?;
    script.gives(0, number::TIMERFD_SETTIME, &[value(0_u32), value(flags), time, value(0_u32)]);
    Ok(())
}

/// Expirations of descriptor 0 that nobody has read.
fn set_ticks(script: &mut Script<'_>, ticks: u64) -> Result<(), RestoreError> {
    /// `_IOW('T', 0, u64)`; needs a kernel that can checkpoint (CONFIG_CHECKPOINT_RESTORE).
    const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;
    if ticks > 0 {
        let ticks = script.words(&[ticks])?;
        script.gives(0, number::IOCTL, &[value(0_u32), Argument::Value(TFD_IOC_SET_TICKS), ticks]);
    }
    Ok(())
}
