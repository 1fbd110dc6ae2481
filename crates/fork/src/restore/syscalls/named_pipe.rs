//! Named pipes: opened again by path, and filled with their content.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::OpenFile;
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::plan_layout::STEP_NAMED_PIPE;
use super::open_files::OpenFileBuilder;
use super::{abi, value};

/// Flags of an end that are set after open(2). Each end is opened with O_NONBLOCK: otherwise, open(2) would wait for the
/// other direction.
const FLAGS_AFTER_OPEN: OFlags = OFlags::NONBLOCK.union(OFlags::DIRECT);

/// Opens all ends of one pipe. The first open(2) is for both directions, so that it does not block, and the content
/// stays in the pipe. A pipe without a write end has had no writer since its read ends were opened.
pub(super) fn create_named_pipe(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    wanted: &str,
) -> Result<(), RestoreError> {
    let both = (OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let path = open_file_builder.syscalls.text_argument(wanted)?;
    let ends: Vec<(u32, u32, u32, &[u8])> = pipe_ends(descriptor, wanted).collect();
    if let Some((first, ..)) = ends.first() {
        open_file_builder.set_step(STEP_NAMED_PIPE, *first);
    }
    open_file_builder.syscalls.call_expecting(0, abi::OPEN, &[path, value(both)]);
    for (_, _, capacity, content) in &ends {
        open_file_builder.syscalls.call(abi::FCNTL, &[value(0_u32), value(abi::F_SETPIPE_SZ), value(*capacity)]);
        if !content.is_empty() {
            let (bytes, length) = (open_file_builder.syscalls.bytes_argument(content)?, content.len() as u64);
            open_file_builder.syscalls.call_expecting(length, abi::WRITE, &[value(0_u32), bytes, value(length)]);
        }
    }
    let has_writer = ends.iter().any(|(_, flags, ..)| OFlags::from_bits_retain(*flags).intersects(OFlags::RWMODE));
    if !has_writer {
        // A reader that is opened while there is no writer reports no POLLHUP. Another reader keeps the content until then.
        let reading = (OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
        open_file_builder.syscalls.call_expecting(1, abi::OPEN, &[path, value(reading)]);
        let replaced = [value(1_u32), value(0_u32), value(OFlags::CLOEXEC.bits())];
        open_file_builder.syscalls.call_expecting(0, abi::DUP3, &replaced);
        open_file_builder.syscalls.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
    }
    for (index, flags, _, _) in ends {
        let flags = OFlags::from_bits_retain(flags);
        let opened = (flags & OFlags::RWMODE) | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open_file_builder.syscalls.call_expecting(1, abi::OPEN, &[path, value(opened.bits())]);
        let set = [value(1_u32), value(abi::F_SETFL), value((flags & FLAGS_AFTER_OPEN).bits())];
        open_file_builder.syscalls.call_expecting(0, abi::FCNTL, &set);
        open_file_builder.store_open_file(1, index);
    }
    open_file_builder.syscalls.call_expecting(0, abi::CLOSE, &[value(0_u32)]);
    Ok(())
}

/// Returns the index, flags, capacity and content of each end of the pipe at a path.
fn pipe_ends<'a>(descriptor: &'a Descriptor, wanted: &str) -> impl Iterator<Item = (u32, u32, u32, &'a [u8])> {
    descriptor.open_files.iter().enumerate().filter_map(move |(index, file)| match file {
        OpenFile::NamedPipe { path, flags, capacity, content } if path == wanted => {
            Some((index as u32, *flags, *capacity, content.as_slice()))
        }
        _ => None,
    })
}
