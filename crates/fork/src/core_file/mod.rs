//! Core files: the state of a running process in the format of core(5), for gdb and similar tools.
//!
//! The node calls `dump_core`. The process stays stopped until its memory was read. Pages of zeroes become holes. The
//! caller must settle the process first: pages that are still on another node would read as zeroes.

mod elf;
mod notes;
mod segments;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use farfork_sys::process_memory::{read_process, read_process_exact};
use farfork_wire::PAGE_SIZE;

use crate::capture::{CaptureError, StoppedProcess};
use segments::{CoreSegment, SegmentContents};

/// Time limit for stopping the process, as for a capture.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of memory that are read and written at a time.
const CHUNK_BYTES: u64 = 1 << 20;

static ZERO_PAGE: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];

/// Why a core file was not written.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The process cannot be stopped.
    #[error(transparent)]
    Stop(#[from] CaptureError),
    /// Its state cannot be read.
    #[error("its {what} cannot be read: {source}")]
    Read {
        /// The state that was read.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// It has more mappings than the format allows.
    #[error("it has {0} mappings, and a core file holds 65533 at most")]
    TooManySegments(usize),
    /// The receiver has gone, or takes too long.
    #[error("the receiver of the core file has gone or is too slow; the process runs on")]
    Cancelled,
}

impl CoreError {
    fn read_error(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { what, source }
    }
}

/// Facts about a core file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreSummary {
    /// Length of the file, including holes.
    pub file_bytes: u64,
    /// Number of threads of the process.
    pub threads: usize,
    /// How long the process was stopped.
    pub stop_duration: Duration,
}

/// Receives a piece of the file at an offset. Returns `Break` to end the dump.
pub type CoreSink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>;

//  0       64         notes                        a multiple of 4096
//  ┌───────┬──────────┬────────────────────────────┬───────────────┬────────────────┬───
//  │ ELF   │ program  │ process, auxv, files, then │ first segment │ second segment │ …
//  │ header│ headers  │ registers of each thread   │               │                │
//  └───────┴──────────┴────────────────────────────┴───────────────┴────────────────┴───
/// Writes the core file of a process in pieces, in ascending order. The gaps between the pieces are zeroes. Blocks, and
/// traces the process, so call it from a thread that ends afterwards.
///
/// # Errors
/// [`CoreError`]. The process runs on.
pub fn dump_core(pid: i32, take: CoreSink<'_>) -> Result<CoreSummary, CoreError> {
    let began = Instant::now();
    let stopped = StoppedProcess::stop(pid, STOP_LIMIT)?;
    let areas = segments::read_segments(pid)?;
    if areas.len() >= elf::SEGMENTS_MAX {
        return Err(CoreError::TooManySegments(areas.len()));
    }
    let notes = notes::encode_notes(pid, &stopped, &areas)?;
    let (head, offsets, file_bytes) = elf::encode_headers(&notes, &areas);
    write_chunk(take, 0, &head)?;
    let mem = File::open(format!("/proc/{pid}/mem")).map_err(CoreError::read_error("memory"))?;
    for (area, offset) in areas.iter().zip(offsets) {
        write_segment(pid, &mem, area, offset, take)?;
    }
    let threads = stopped.threads().count();
    drop(stopped);
    Ok(CoreSummary { file_bytes, threads, stop_duration: began.elapsed() })
}

fn write_chunk(take: CoreSink<'_>, offset: u64, bytes: &[u8]) -> Result<(), CoreError> {
    match take(offset, bytes) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(CoreError::Cancelled),
    }
}

/// Writes the pages of a segment that hold data.
fn write_segment(
    pid: i32,
    mem: &File,
    core_segment: &CoreSegment,
    offset: u64,
    take: CoreSink<'_>,
) -> Result<(), CoreError> {
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    for range in core_segment.readable_ranges() {
        for start in (range.start..range.end).step_by(CHUNK_BYTES as usize) {
            let bytes = &mut buffer[..(range.end - start).min(CHUNK_BYTES) as usize];
            read_segment(pid, mem, core_segment, start, bytes)?;
            let at = offset + (start - core_segment.start);
            for (first, run) in nonzero_runs(bytes) {
                write_chunk(take, at + first as u64, run)?;
            }
        }
    }
    Ok(())
}

/// Reads memory. Pages after the end of a mapped file cannot be read, and count as zero. So do unreadable pages without
/// data.
fn read_segment(
    pid: i32,
    mem: &File,
    core_segment: &CoreSegment,
    start: u64,
    bytes: &mut [u8],
) -> Result<(), CoreError> {
    if core_segment.contents == SegmentContents::Populated {
        return read_process_exact(pid, mem, start, bytes).map_err(CoreError::read_error("memory"));
    }
    bytes.fill(0);
    let mut done = 0;
    while done < bytes.len() {
        match read_process(pid, start + done as u64, &mut bytes[done..]) {
            Ok(read) if read > 0 => done += read,
            Ok(_) => done += PAGE_SIZE as usize,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => {
                done += PAGE_SIZE as usize;
            }
            Err(source) => return Err(CoreError::Read { what: "memory", source }),
        }
    }
    Ok(())
}

/// Returns the runs of pages that are not all zero, each with its offset.
fn nonzero_runs(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let page = PAGE_SIZE as usize;
    // Compare each page by one memcmp call, because the process is stopped during the comparison.
    let has_data = move |at: usize| {
        let piece = &bytes[at..bytes.len().min(at + page)];
        *piece != ZERO_PAGE[..piece.len()]
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() && !has_data(at) {
            at += page;
        }
        let start = at;
        while at < bytes.len() && has_data(at) {
            at += page;
        }
        let end = at.min(bytes.len());
        (start < end).then(|| (start, &bytes[start..end]))
    })
}

#[cfg(test)]
mod tests {
    use super::nonzero_runs;

    #[test]
    fn pages_of_zeroes_are_left_out() {
        let mut bytes = vec![0; 5 * 4096];
        bytes[4096] = 1;
        bytes[3 * 4096 - 1] = 1;
        bytes[5 * 4096 - 1] = 1;
        let runs: Vec<_> = nonzero_runs(&bytes).map(|(at, run)| (at, run.len())).collect();
        assert_eq!(runs, [(4096, 8192), (16384, 4096)]);
        assert_eq!(nonzero_runs(&[0; 8192]).count(), 0);
    }
}
