//! A peer of `farfork bench fork`: CRIU, which clones a process by dump and restore. `process` runs its commands.
//!
//! The clone has its parent's process id, so it runs in a new pid namespace on its parent's node. Its images are files
//! in memory.

pub(crate) mod error;
mod process;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::error::BenchError;
use crate::workload::micro::{ChildReport, MICRO, Micro, MicroOptions, PAYLOAD_TOUCH, ns_to_ms};
use process::CriuCommand;

/// The pipe size that CRIU needs to serve pages, in bytes. With a smaller pipe, it fails without an error text.
const PIPE_BYTES: u64 = 4 << 20;

/// The capability to exceed the system's pipe size limit (`CAP_SYS_RESOURCE`).
const CAP_SYS_RESOURCE: u32 = 24;

// eager   dump (all memory into images) ─▶ restore (all memory from the images) ─▶ the clone runs
// lazy    dump (all but memory) ─▶ page server; the parent is stopped until the last page is sent
//                                    ▲ TCP on the loopback
//                                  lazy-pages ◀─ userfaultfd ─ restore ─▶ the clone runs

/// How the clone gets its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CriuMode {
    /// The clone gets all memory before it runs.
    Eager,
    /// The clone gets a page when it touches the page, or later.
    Lazy,
}

/// The times of a clone that has touched its memory and exited. They correspond to farfork's figures. *prepare* is the
/// dump until a restore can begin. *resume* is the time from the end of *prepare* to the clone's first instruction.
/// *pause* is the whole dump, which is the maximum time that the parent is stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CriuTiming {
    pub(crate) prepare_ms: f64,
    pub(crate) resume_ms: f64,
    pub(crate) pause_ms: f64,
    pub(crate) execution_ms: f64,
}

/// A parent that CRIU clones. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct CriuSubject {
    parent: Micro,
    criu: CriuCommand,
    directory: PathBuf,
}

/// Checks that CRIU is installed and works. Returns why the lazy mode is not available, if so.
pub(crate) async fn check_criu() -> Result<Option<String>, BenchError> {
    process::check_installed().await?;
    let pipe_bytes = fs::read_to_string("/proc/sys/fs/pipe-max-size").ok().and_then(|text| text.trim().parse().ok());
    let is_enough = pipe_bytes.is_none_or(|bytes: u64| bytes >= PIPE_BYTES) || has_cap_sys_resource();
    let reason = || format!("it needs CAP_SYS_RESOURCE, or `sysctl -w fs.pipe-max-size={PIPE_BYTES}`");
    Ok((!is_enough).then(reason))
}

fn has_cap_sys_resource() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask >> CAP_SYS_RESOURCE & 1 == 1)
}

impl CriuSubject {
    /// Starts a parent with this much memory. Its files are in a directory below `scratch`.
    pub(crate) fn start(
        micro: &Path,
        scratch: &Path,
        mib: u64,
        micro_options: MicroOptions,
    ) -> Result<Self, BenchError> {
        let directory = scratch.join("criu");
        let payload = directory.join("payload");
        fs::create_dir_all(&directory)
            .and_then(|()| fs::write(&payload, PAYLOAD_TOUCH))
            .map_err(|cause| BenchError::File { path: payload.clone(), cause })?;
        let parent = Micro::start(micro, mib, micro_options, &payload, None)?;
        let stdout = fs::read_link(format!("/proc/{}/fd/1", parent.pid()))
            .map_err(|cause| BenchError::Program { program: MICRO.name, cause })?;
        let criu = CriuCommand { pid: parent.pid(), stdout, images: directory.join("images") };
        Ok(Self { parent, criu, directory })
    }

    /// Clones the parent, which first writes to all of its pages. The parent continues afterwards.
    pub(crate) async fn clone(&mut self, mode: CriuMode) -> Result<CriuTiming, BenchError> {
        self.parent.write_all()?;
        self.criu.make_directory()?;
        let output = self.directory.join("output");
        let cloned = match mode {
            CriuMode::Eager => self.clone_eagerly(&output).await,
            CriuMode::Lazy => self.clone_lazily(&output).await,
        };
        // Remove the images, which take as much memory as the parent.
        self.criu.remove_directory()?;
        cloned
    }

    async fn clone_eagerly(&self, output: &Path) -> Result<CriuTiming, BenchError> {
        let began = Instant::now();
        self.criu.dump()?.wait_success().await?;
        let prepare_ms = elapsed_ms(began);
        let restored_unix_ns = now_unix_ns();
        self.criu.restore(output)?.wait_success().await?;
        let child = read_child_report(output)?;
        Ok(CriuTiming {
            prepare_ms,
            resume_ms: ns_to_ms(child.first_unix_ns - restored_unix_ns),
            pause_ms: prepare_ms,
            execution_ms: ns_to_ms(child.touch_ns),
        })
    }

    async fn clone_lazily(&self, output: &Path) -> Result<CriuTiming, BenchError> {
        let port = process::free_port()?;
        let began = Instant::now();
        let mut dump = self.criu.dump_lazily(port)?;
        dump.wait_ready().await?;
        let prepare_ms = elapsed_ms(began);
        let restored_unix_ns = now_unix_ns();
        let mut pages = self.criu.serve_lazy_pages(port)?;
        pages.wait_ready().await?;
        let restore = self.criu.restore_lazily(output)?;
        let dump = async {
            dump.wait_success().await?;
            Ok(elapsed_ms(began))
        };
        let (pause_ms, (), ()) = tokio::try_join!(dump, pages.wait_success(), restore.wait_success())?;
        let child = read_child_report(output)?;
        Ok(CriuTiming {
            prepare_ms,
            resume_ms: ns_to_ms(child.first_unix_ns - restored_unix_ns),
            pause_ms,
            execution_ms: ns_to_ms(child.touch_ns),
        })
    }
}

fn read_child_report(output: &Path) -> Result<ChildReport, BenchError> {
    let text = fs::read_to_string(output).map_err(|cause| BenchError::File { path: output.to_owned(), cause })?;
    ChildReport::parse(&text)
}

fn elapsed_ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn now_unix_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64
}
