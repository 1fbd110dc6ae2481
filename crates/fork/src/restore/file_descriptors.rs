//! Compiles the plan's tables of file descriptors and epoll entries, which `restorer/file_descriptors.c` opens and
//! places. `plan` calls it. Objects without a path come from `passed_objects`, or are created by `syscalls`.

use std::collections::HashMap;
use std::path::Path;

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{EpollTarget, OpenFile, SharedObjectKind};
use rustix::fs::OFlags;

use super::RestoreError;
use super::plan::PlanInputs;
use super::plan_layout::{
    DESCRIPTOR_DUPLICATE, DESCRIPTOR_EPOLL, DESCRIPTOR_FROM_PROCESS, DESCRIPTOR_OPEN, DESCRIPTOR_PASSED,
    PlanEpollEntry, PlanFileDescriptor,
};
use super::plan_writer::PlanWriter;
use super::syscalls::{CreatedFiles, O_ASYNC};

/// Flags of open(2) that are not flags of the open file description, and O_ASYNC, which open(2) ignores.
const OPEN_TIME_FLAGS: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::CLOEXEC)
    .union(OFlags::from_bits_retain(O_ASYNC));

/// Name of the payload in the container's private directory.
pub const PAYLOAD_NAME: &str = "payload";

/// Descriptor of a child's payload, unless its parent used that number for something other than its own payload.
pub const PAYLOAD_FD: u32 = 1000;

/// Builds the tables of descriptors, in ascending order, and of epoll registrations.
pub(super) fn build_fd_tables(
    inputs: &PlanInputs<'_>,
    created_files: &CreatedFiles,
    writer: &mut PlanWriter,
) -> Result<(Vec<PlanFileDescriptor>, Vec<PlanEpollEntry>), RestoreError> {
    let PlanInputs { descriptor, objects, position, .. } = *inputs;
    let mut first_of: HashMap<u32, u32> = HashMap::new();
    let (mut descriptors, mut epolls) = (Vec::new(), Vec::new());
    for entry in &descriptor.file_descriptors {
        let mut planned = PlanFileDescriptor {
            number: entry.number,
            kind: DESCRIPTOR_DUPLICATE,
            source: 0,
            flags: 0,
            offset: 0,
            close_on_exec: entry.close_on_exec.into(),
            reserved: 0,
        };
        if let Some(first) = first_of.get(&entry.open_file) {
            planned.source = *first;
        } else if let Some((pid, number)) =
            position.fd_source(entry.open_file).filter(|_| objects.slot_of_open_file(entry.open_file).is_none())
        {
            planned.kind = DESCRIPTOR_FROM_PROCESS;
            planned.source = pid;
            planned.flags = number;
        } else {
            first_of.insert(entry.open_file, entry.number);
            let file = &descriptor.open_files[entry.open_file as usize];
            let aside = objects.slot_of_open_file(entry.open_file).or(created_files.slot_of_open_file(entry.open_file));
            fill_fd_row(&mut planned, descriptor, file, aside, writer)?;
            if let OpenFile::Epoll { targets, .. } = file {
                epolls.extend(targets.iter().map(|target| epoll_entry(entry.number, target, target.number)));
            }
        }
        descriptors.push(planned);
    }
    add_moved_epoll_targets(inputs, created_files, &mut descriptors, &mut epolls)?;
    if let Some(path) = inputs.plan_options.payload {
        add_payload(&mut descriptors, descriptor, path, writer)?;
    }
    Ok((descriptors, epolls))
}

fn epoll_entry(epoll: u32, target: &EpollTarget, source: u32) -> PlanEpollEntry {
    PlanEpollEntry { epoll, target: target.number, source, events: target.events, data: target.data }
}

/// Adds the registrations of this process's epoll instances whose files are not open at the registered numbers. A file that
/// only another process has open gets a descriptor above those of the child, which the restorer closes at the end.
fn add_moved_epoll_targets(
    inputs: &PlanInputs<'_>,
    created_files: &CreatedFiles,
    descriptors: &mut Vec<PlanFileDescriptor>,
    epolls: &mut Vec<PlanEpollEntry>,
) -> Result<(), RestoreError> {
    let PlanInputs { descriptor, objects, position, .. } = *inputs;
    let number_of = |open_file: u32| {
        let entry = descriptor.file_descriptors.iter().find(|entry| entry.open_file == open_file);
        entry.map(|entry| entry.number)
    };
    let mut next_fd = position.fd_base + created_files.next_slot();
    for moved in &descriptor.moved_epoll_targets {
        let opened_here = number_of(moved.epoll).filter(|_| position.fd_source(moved.epoll).is_none());
        let Some(epoll) = opened_here else { continue };
        let slot = || {
            let slot = objects.slot_of_open_file(moved.open_file).or(created_files.slot_of_open_file(moved.open_file));
            slot.map(|slot| position.fd_base + slot)
        };
        let source = match number_of(moved.open_file).or_else(slot) {
            Some(number) => number,
            None => {
                let missing = RestoreError::UnsupportedOpenFile { number: moved.target.number };
                let (process, number) = position.fd_in_tree(moved.open_file).ok_or(missing)?;
                descriptors.push(PlanFileDescriptor {
                    number: next_fd,
                    kind: DESCRIPTOR_FROM_PROCESS,
                    source: process,
                    flags: number,
                    offset: 0,
                    close_on_exec: 1,
                    reserved: 0,
                });
                next_fd += 1;
                next_fd - 1
            }
        };
        epolls.push(epoll_entry(epoll, &moved.target, source));
    }
    Ok(())
}

fn add_payload(
    descriptors: &mut Vec<PlanFileDescriptor>,
    descriptor: &Descriptor,
    path: &Path,
    writer: &mut PlanWriter,
) -> Result<(), RestoreError> {
    let place = descriptors.binary_search_by_key(&PAYLOAD_FD, |planned| planned.number);
    if place.is_ok() && !has_payload_open(descriptor) {
        return Ok(());
    }
    let source = writer.write_text(&path.to_string_lossy())?;
    let flags = (OFlags::RDONLY | OFlags::NOCTTY).bits();
    let kind = DESCRIPTOR_OPEN;
    let planned =
        PlanFileDescriptor { number: PAYLOAD_FD, kind, source, flags, offset: 0, close_on_exec: 0, reserved: 0 };
    match place {
        Ok(place) => descriptors[place] = planned,
        Err(place) => descriptors.insert(place, planned),
    }
    Ok(())
}

/// Whether the parent is itself a child that has its payload open. This payload is a file of the parent's container, so
/// the new child does not inherit it.
fn has_payload_open(descriptor: &Descriptor) -> bool {
    let entry = descriptor.file_descriptors.iter().find(|entry| entry.number == PAYLOAD_FD);
    let Some(OpenFile::MemFd { object, .. }) = entry.map(|entry| &descriptor.open_files[entry.open_file as usize])
    else {
        return false;
    };
    let object = &descriptor.shared_objects[*object as usize];
    object.name == PAYLOAD_NAME && matches!(object.kind, SharedObjectKind::DeletedFile(_))
}

fn fill_fd_row(
    planned: &mut PlanFileDescriptor,
    descriptor: &Descriptor,
    file: &OpenFile,
    aside: Option<u32>,
    writer: &mut PlanWriter,
) -> Result<(), RestoreError> {
    if let Some(slot) = aside {
        planned.kind = DESCRIPTOR_PASSED;
        planned.source = slot;
        return Ok(());
    }
    match file {
        OpenFile::Regular { path, flags, offset } | OpenFile::Directory { path, flags, offset } => {
            planned.kind = DESCRIPTOR_OPEN;
            planned.source = writer.write_text(path)?;
            planned.flags = reopen_flags(*flags);
            planned.offset = *offset;
        }
        OpenFile::Device { path, flags } => {
            planned.kind = DESCRIPTOR_OPEN;
            planned.source = writer.write_text(path)?;
            planned.flags = reopen_flags(*flags);
        }
        OpenFile::MemFd { object, flags, offset } => {
            let SharedObjectKind::PosixShm { path, .. } = &descriptor.shared_objects[*object as usize].kind else {
                return Err(RestoreError::UnsupportedOpenFile { number: planned.number });
            };
            planned.kind = DESCRIPTOR_OPEN;
            planned.source = writer.write_text(path)?;
            planned.flags = reopen_flags(*flags);
            planned.offset = *offset;
        }
        OpenFile::Epoll { .. } => planned.kind = DESCRIPTOR_EPOLL,
        OpenFile::Pipe { .. }
        | OpenFile::EventFd { .. }
        | OpenFile::CheckpointSocket { .. }
        | OpenFile::DeletedDirectory { .. }
        | OpenFile::NamedPipe { .. }
        | OpenFile::TimerFd { .. }
        | OpenFile::SignalFd { .. }
        | OpenFile::Inotify { .. }
        | OpenFile::PidFd { .. }
        | OpenFile::Terminal { .. }
        | OpenFile::Socket(_)
        | OpenFile::StandardStream(_) => return Err(RestoreError::UnsupportedOpenFile { number: planned.number }),
    }
    Ok(())
}

pub(super) fn reopen_flags(flags: u32) -> u32 {
    let mut flags = OFlags::from_bits_retain(flags) - OPEN_TIME_FLAGS;
    // O_TMPFILE contains O_DIRECTORY, with which no regular file can be opened.
    if flags.contains(OFlags::TMPFILE) {
        flags.remove(OFlags::TMPFILE);
    }
    (flags | OFlags::NOCTTY).bits()
}
