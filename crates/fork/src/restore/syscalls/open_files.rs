//! Open files that the child creates itself, because they refer to the child or belong to its namespaces. Each is
//! stored in a slot above all numbers of the child; `restorer/file_descriptors.c` places it later.

use std::collections::HashMap;

use farfork_sys::clock::realtime_ns;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, TimerSpec};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::plan_layout::{STEP_PIDFD, STEP_SIGNAL_FD, STEP_TIMER_FD};
use super::socket::{self, SocketContext};
use super::timers::encode_itimerspec;
use super::{
    CreatedFiles, SyscallArgument, SyscallBuilder, abi, ancillary_messages, deleted_directory, inotify, named_pipe,
    terminal_settings, value,
};

/// Creates the objects of open files and stores them in slots.
#[derive(Debug)]
pub(super) struct OpenFileBuilder<'s, 'w> {
    pub(super) syscalls: &'s mut SyscallBuilder<'w>,
    pub(super) fd_base: u32,
    next_slot: u32,
    slots: HashMap<u32, u32>,
    /// The first descriptor of each open file, for error reports.
    first_fds: HashMap<u32, u32>,
}

/// A socket, and the index of its open file.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketOpenFile<'a> {
    /// Index of the open file.
    pub(super) index: u32,
    /// The socket's state.
    pub(super) socket: &'a Socket,
}

impl<'a> SocketOpenFile<'a> {
    /// All sockets of a process, in the order of its open files.
    pub(super) fn all(descriptor: &'a Descriptor) -> impl Iterator<Item = Self> {
        descriptor.open_files.iter().zip(0..).filter_map(|(file, index)| match file {
            OpenFile::Socket(socket) => Some(Self { index, socket }),
            _ => None,
        })
    }
}

impl OpenFileBuilder<'_, '_> {
    /// The first descriptor of an open file, which error reports name.
    pub(super) fn first_fd(&self, open_file: u32) -> u32 {
        self.first_fds.get(&open_file).copied().unwrap_or(0)
    }

    /// Sets the step of the following calls. Their object is an open file.
    pub(super) fn set_step(&mut self, step: u32, open_file: u32) {
        self.syscalls.set_step(step, self.first_fd(open_file));
    }

    /// The slot descriptor of an open file's object.
    pub(super) fn slot_fd(&self, open_file: u32) -> Option<u32> {
        self.slots.get(&open_file).map(|slot| self.fd_base + slot)
    }

    /// Moves descriptor `from` to the next slot, as the object of an open file.
    pub(super) fn store_open_file(&mut self, from: u32, open_file: u32) {
        self.slots.insert(open_file, self.next_slot);
        self.store_descriptor(from);
    }

    /// The descriptor of the next slot.
    pub(super) fn next_slot_fd(&self) -> u32 {
        self.fd_base + self.next_slot
    }

    /// Moves descriptor `from` to the next slot, where it stays open until the child runs. Returns the new descriptor.
    pub(super) fn store_descriptor(&mut self, from: u32) -> u32 {
        let slot = self.next_slot;
        self.next_slot += 1;
        let place = u64::from(self.fd_base) + u64::from(slot);
        let close_on_exec = OFlags::CLOEXEC.bits();
        self.syscalls.call_expecting(place, abi::DUP3, &[value(from), value(place), value(close_on_exec)]);
        self.syscalls.call_expecting(0, abi::CLOSE, &[value(from)]);
        self.fd_base + slot
    }
}

/// Creates all objects that need system calls, in the order of the open files.
pub(super) fn create_open_files(
    descriptor: &Descriptor,
    fd_base: u32,
    passed: u32,
    around: SocketContext<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<CreatedFiles, RestoreError> {
    let mut first_fds = HashMap::with_capacity(descriptor.open_files.len());
    for entry in &descriptor.file_descriptors {
        first_fds.entry(entry.open_file).or_insert(entry.number);
    }
    let passed_at = |index| around.objects.slot_of_open_file(index).map(|slot| fd_base + slot);
    let mut open_file_builder =
        OpenFileBuilder { syscalls: syscall_builder, fd_base, next_slot: passed, slots: HashMap::new(), first_fds };
    for (index, file) in descriptor.open_files.iter().enumerate() {
        let index = index as u32;
        let number = open_file_builder.first_fd(index);
        match file {
            OpenFile::TimerFd { clock, flags, ticks, time, is_cancelled_by_clock } => {
                open_file_builder.set_step(STEP_TIMER_FD, index);
                open_file_builder.syscalls.call_expecting(
                    0,
                    abi::TIMERFD_CREATE,
                    &[value(*clock), value(creation_flags(*flags))],
                );
                set_timerfd(open_file_builder.syscalls, *time, *is_cancelled_by_clock)?;
                set_timerfd_ticks(open_file_builder.syscalls, *ticks)?;
                open_file_builder.store_open_file(0, index);
            }
            OpenFile::DeletedDirectory { status, flags } => {
                deleted_directory::open_deleted_directory(&mut open_file_builder, (index, number), *status, *flags)?;
            }
            OpenFile::SignalFd { mask, flags } => {
                const SIGNAL_SET_BYTES: u32 = 8;
                open_file_builder.set_step(STEP_SIGNAL_FD, index);
                let mask = open_file_builder.syscalls.words_argument(&[*mask])?;
                let arguments =
                    [SyscallArgument::Value(u64::MAX), mask, value(SIGNAL_SET_BYTES), value(creation_flags(*flags))];
                open_file_builder.syscalls.call_expecting(0, abi::SIGNALFD4, &arguments);
                open_file_builder.store_open_file(0, index);
            }
            OpenFile::PidFd { pid, flags } => {
                open_file_builder.set_step(STEP_PIDFD, index);
                let arguments = [value(*pid), value(nonblocking_flag(*flags))];
                open_file_builder.syscalls.call_expecting(0, abi::PIDFD_OPEN, &arguments);
                open_file_builder.store_open_file(0, index);
            }
            OpenFile::Inotify { flags, .. } if passed_at(index).is_none() => {
                inotify::create_inotify(&mut open_file_builder, index, *flags);
            }
            OpenFile::NamedPipe { path, .. } if !open_file_builder.slots.contains_key(&index) => {
                named_pipe::create_named_pipe(&mut open_file_builder, descriptor, path)?;
            }
            _ => {}
        }
    }
    ancillary_messages::open_passed_files(&mut open_file_builder, descriptor)?;
    terminal_settings::configure_terminals(&mut open_file_builder, descriptor, around.objects)?;
    socket::create_sockets(&mut open_file_builder, descriptor, around)?;
    inotify::add_watches(&mut open_file_builder, descriptor, passed_at)?;
    Ok(CreatedFiles { slots: open_file_builder.slots, next_slot: open_file_builder.next_slot })
}

fn nonblocking_flag(flags: u32) -> u32 {
    (OFlags::from_bits_retain(flags) & OFlags::NONBLOCK).bits()
}

/// Returns the flags for a call that creates a descriptor.
fn creation_flags(flags: u32) -> u32 {
    nonblocking_flag(flags) | OFlags::CLOEXEC.bits()
}

/// Arms the timerfd at descriptor 0 with the remaining time. A timer that is cancelled when the wall clock is set
/// (TFD_TIMER_CANCEL_ON_SET) gets an absolute time instead. It is set even if it is disarmed, so that a change of the
/// clock cancels it.
fn set_timerfd(
    syscall_builder: &mut SyscallBuilder<'_>,
    time: TimerSpec,
    is_cancelled_by_clock: bool,
) -> Result<(), RestoreError> {
    /// TFD_TIMER_ABSTIME and TFD_TIMER_CANCEL_ON_SET.
    const TFD_CANCEL_ON_SET_FLAGS: u32 = 1 | 2;
    let is_armed = time != TimerSpec::default();
    let (flags, time) = match (is_cancelled_by_clock, is_armed) {
        (false, false) => return Ok(()),
        (false, true) => (0, encode_itimerspec(time)),
        (true, false) => (TFD_CANCEL_ON_SET_FLAGS, [0; 4]),
        (true, true) => (
            TFD_CANCEL_ON_SET_FLAGS,
            encode_itimerspec(TimerSpec { remaining_ns: realtime_ns().saturating_add(time.remaining_ns), ..time }),
        ),
    };
    let time = syscall_builder.words_argument(&time)?;
    syscall_builder.call_expecting(0, abi::TIMERFD_SETTIME, &[value(0_u32), value(flags), time, value(0_u32)]);
    Ok(())
}

/// Sets the unread expirations of the timerfd at descriptor 0.
fn set_timerfd_ticks(syscall_builder: &mut SyscallBuilder<'_>, ticks: u64) -> Result<(), RestoreError> {
    /// `_IOW('T', 0, u64)`; requires CONFIG_CHECKPOINT_RESTORE.
    const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;
    if ticks > 0 {
        let ticks = syscall_builder.words_argument(&[ticks])?;
        syscall_builder.call_expecting(
            0,
            abi::IOCTL,
            &[value(0_u32), SyscallArgument::Value(TFD_IOC_SET_TICKS), ticks],
        );
    }
    Ok(())
}
