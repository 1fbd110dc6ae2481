//! A peer: CRIU, which clones a process by dump and restore. The clone is made on the node of its parent, into a new pid
//! namespace, since it has its parent's process id; images are files in memory.
//!
//! ```text
//! eager   dump (all memory into images) ─▶ restore (all memory out of them) ─▶ the clone runs
//! lazy    dump (all but memory) ─▶ page server, its process stands still until the last page is sent
//!                                    ▲ TCP on the loopback
//!                                  lazy-pages ◀─ userfaultfd ─ restore ─▶ the clone runs
//! ```
//!
//! What is measured of it has the names of what it stands beside: *prepare* is the dump until a restore could begin,
//! *resume* from there to the clone's first instruction, *pause* the dump as a whole, as long as the parent may stand still.
//! `process` runs its commands.

pub(crate) mod error;
mod process;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::error::BenchError;
use crate::workload::micro::{ChildReport, MICRO, Manner, Micro, TOUCH, ms};
use process::Criu;

/// What CRIU asks of pipes when it serves pages, in bytes: less makes it fail, without a word of why.
const PIPE_BYTES: u64 = 4 << 20;

/// Capability to exceed the system's limit of that (`CAP_SYS_RESOURCE`).
const CAPABILITY_OF_LIMITS: u32 = 24;

/// How the clone gets its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Before it runs.
    Eager,
    /// As it touches it, or later.
    Lazy,
}

/// A clone that has touched its memory, and ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cloned {
    pub(crate) prepare_ms: f64,
    pub(crate) resume_ms: f64,
    pub(crate) pause_ms: f64,
    pub(crate) execution_ms: f64,
}

/// A parent that CRIU clones; it ends with this value.
#[derive(Debug)]
pub(crate) struct Subject {
    parent: Micro,
    criu: Criu,
    directory: PathBuf,
}

/// Whether CRIU is there and works; and why it cannot be lazy, if so.
pub(crate) async fn check() -> Result<Option<String>, BenchError> {
    process::check().await?;
    let pipe_bytes = fs::read_to_string("/proc/sys/fs/pipe-max-size").ok().and_then(|text| text.trim().parse().ok());
    let is_enough = pipe_bytes.is_none_or(|bytes: u64| bytes >= PIPE_BYTES) || may_exceed_limits();
    let reason = || format!("it needs CAP_SYS_RESOURCE, or `sysctl -w fs.pipe-max-size={PIPE_BYTES}`");
    Ok((!is_enough).then(reason))
}

fn may_exceed_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask >> CAPABILITY_OF_LIMITS & 1 == 1)
}

impl Subject {
    /// Starts a parent of so much memory, with its files below a directory.
    pub(crate) fn start(micro: &Path, scratch: &Path, mib: u64, manner: Manner) -> Result<Self, BenchError> {
        let directory = scratch.join("criu");
        let payload = directory.join("payload");
        fs::create_dir_all(&directory)
            .and_then(|()| fs::write(&payload, TOUCH))
            .map_err(|cause| BenchError::File { path: payload.clone(), cause })?;
        let parent = Micro::start(micro, mib, manner, &payload, None)?;
        let stdout = fs::read_link(format!("/proc/{}/fd/1", parent.pid()))
            .map_err(|cause| BenchError::Program { program: MICRO.name, cause })?;
        let criu = Criu { pid: parent.pid(), stdout, images: directory.join("images") };
        Ok(Self { parent, criu, directory })
    }

    /// Clones the parent, which has written to all of its pages before, and runs on after it.
    pub(crate) async fn clone(&mut self, mode: Mode) -> Result<Cloned, BenchError> {
        self.parent.write_all()?;
        self.criu.make_directory()?;
        let output = self.directory.join("output");
        let cloned = match mode {
            Mode::Eager => self.clone_eagerly(&output).await,
            Mode::Lazy => self.clone_lazily(&output).await,
        };
        // They take as much memory as the parent.
        self.criu.remove_directory()?;
        cloned
    }

    async fn clone_eagerly(&self, output: &Path) -> Result<Cloned, BenchError> {
        let began = Instant::now();
        self.criu.dump()?.end().await?;
        let prepare_ms = elapsed_ms(began);
        let restored_unix_ns = now_unix_ns();
        self.criu.restore(output)?.end().await?;
        let child = said(output)?;
        Ok(Cloned {
            prepare_ms,
            resume_ms: ms(child.first_unix_ns - restored_unix_ns),
            pause_ms: prepare_ms,
            execution_ms: ms(child.touch_ns),
        })
    }

    async fn clone_lazily(&self, output: &Path) -> Result<Cloned, BenchError> {
        let port = process::free_port()?;
        let began = Instant::now();
        let mut dump = self.criu.dump_lazily(port)?;
        dump.ready().await?;
        let prepare_ms = elapsed_ms(began);
        let restored_unix_ns = now_unix_ns();
        let mut pages = self.criu.lazy_pages(port)?;
        pages.ready().await?;
        let restore = self.criu.restore_lazily(output)?;
        let dump = async {
            dump.end().await?;
            Ok(elapsed_ms(began))
        };
        let (pause_ms, (), ()) = tokio::try_join!(dump, pages.end(), restore.end())?;
        let child = said(output)?;
        Ok(Cloned {
            prepare_ms,
            resume_ms: ms(child.first_unix_ns - restored_unix_ns),
            pause_ms,
            execution_ms: ms(child.touch_ns),
        })
    }
}

fn said(output: &Path) -> Result<ChildReport, BenchError> {
    let said = fs::read_to_string(output).map_err(|cause| BenchError::File { path: output.to_owned(), cause })?;
    ChildReport::parse(&said)
}

fn elapsed_ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn now_unix_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64
}
