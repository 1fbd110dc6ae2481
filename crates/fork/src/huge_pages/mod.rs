//! Replaces small pages of running processes by huge pages, in the background, by MADV_COLLAPSE from another process.
//!
//! A fork copies one page table entry for 2 MiB in a huge page, and 512 for small pages. The costs are in
//! `docs/decisions/012-huge-pages.md`. MADV_NOHUGEPAGE memory keeps its small pages, and so does memory that is shared
//! with a fork, unless `include_shared` was called. The callers (the node, `farfork run`) select processes and times.

mod candidates;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use farfork_sys::huge_page::{HUGE_PAGE_BYTES, collapse_huge_page};
use farfork_sys::pagemap::{PageTables, ScanDetail};
use farfork_sys::pidfd::wait_exit;
use farfork_sys::process::{MapEntry, read_maps};
use farfork_sys::process_identity::ProcessIdentity;

/// Pause after each collapse, as a multiple of the time that the collapse took. So for at least four fifths of the time
/// the process can change its memory map, and the CPU is free.
const REST_FACTOR: u32 = 4;

/// Shortest and longest pause between two rounds. The pause grows while rounds find no pages.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Interval, in rounds, at which all units that could not be collapsed are tried again: the obstacle may be gone.
const RETRY_ROUNDS: u32 = 16;

// A unit of 2 MiB is collapsed when nearly all of its small pages are present. This needs neither a request of the
// program nor a change of the machine's settings.
/// Collapses the pages of one process.
#[derive(Debug)]
pub struct HugePageCollapser {
    process: ProcessIdentity,
    pidfd: OwnedFd,
    /// Whether pages that the process shares with its forks are collapsed, too.
    includes_shared: bool,
    /// Units that could not be collapsed.
    failed_units: BTreeSet<u64>,
    round_count: u32,
    pause: Duration,
}

impl HugePageCollapser {
    /// Creates a collapser for a process; `None` if the process has ended.
    ///
    /// # Errors
    /// As pidfd_open(2).
    pub fn open(process: ProcessIdentity) -> io::Result<Option<Self>> {
        let huge_page_collapser = |pidfd| Self {
            process,
            pidfd,
            includes_shared: false,
            failed_units: BTreeSet::new(),
            round_count: 0,
            pause: PAUSE_MIN,
        };
        Ok(process.open()?.map(huge_page_collapser))
    }

    /// Also collapses pages that the process shares with its forks. The forks keep the small pages while they live.
    pub fn include_shared(self) -> Self {
        Self { includes_shared: true, ..self }
    }

    /// Runs until the process ends.
    ///
    /// # Errors
    /// EPERM if CAP_SYS_NICE or the right to trace the process is missing.
    pub fn run(mut self) -> io::Result<()> {
        while !wait_exit(&self.pidfd, self.pause)? {
            self.run_round(PAUSE_MAX)?;
        }
        Ok(())
    }

    /// Returns how long to wait before the next round.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Scans the memory of the process once, for about `limit` at most. Returns the number of new huge pages; zero if the
    /// memory is gone.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_round(&mut self, limit: Duration) -> io::Result<usize> {
        self.round_count += 1;
        if self.round_count.is_multiple_of(RETRY_ROUNDS) {
            self.failed_units.clear();
        }
        let made = match self.collapse_candidates(limit) {
            Err(error) if is_process_gone(&error) => 0,
            round => round?,
        };
        self.pause = if made > 0 { PAUSE_MIN } else { (2 * self.pause).min(PAUSE_MAX) };
        Ok(made)
    }

    fn collapse_candidates(&mut self, limit: Duration) -> io::Result<usize> {
        // Open the tables in each round: the process may have executed another program.
        let mut tables = PageTables::open(self.process.pid)?;
        let (began, mut made) = (Instant::now(), 0);
        for unit in find_candidates(self.process.pid, &mut tables)? {
            if began.elapsed() >= limit {
                break;
            }
            let stays =
                || Ok::<_, io::Error>(!self.includes_shared && tables.is_any_shared(unit, unit + HUGE_PAGE_BYTES)?);
            if self.failed_units.contains(&unit) || stays()? {
                continue;
            }
            let started = Instant::now();
            if collapse_huge_page(self.pidfd.as_fd(), unit)? {
                made += 1;
            } else {
                self.failed_units.insert(unit);
            }
            if wait_exit(&self.pidfd, REST_FACTOR * started.elapsed())? {
                break;
            }
        }
        Ok(made)
    }
}

/// Finds the units of a process that can become huge pages now.
fn find_candidates(pid: i32, tables: &mut PageTables) -> io::Result<Vec<u64>> {
    let (mut units, mut regions) = (Vec::new(), Vec::new());
    for mapping in read_maps(pid)?.iter().filter(|mapping| can_be_huge(mapping)) {
        regions.clear();
        tables.scan_populated(mapping.start, mapping.end, ScanDetail::Populated, &mut regions)?;
        let small = regions.iter().filter(|region| !region.is_huge() && !region.is_guard());
        units.extend(candidates::find_collapsible_units(
            mapping.start..mapping.end,
            small.map(|region| region.start..region.end),
        ));
    }
    Ok(units)
}

/// Whether a mapping is private memory without a file, and long enough for a huge page.
fn can_be_huge(mapping: &MapEntry) -> bool {
    let first_unit = mapping.start.next_multiple_of(HUGE_PAGE_BYTES);
    !mapping.is_shared
        && mapping.inode == 0
        && first_unit + HUGE_PAGE_BYTES <= mapping.end
        && !mapping.path.starts_with(b"[v")
}

/// Whether an error means that the process, or its memory, is gone.
fn is_process_gone(error: &io::Error) -> bool {
    let ended = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound
        || error.kind() == io::ErrorKind::UnexpectedEof
        || error.raw_os_error() == Some(ended)
}
