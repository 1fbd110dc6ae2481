//! A peer of `farfork bench fork`: CRIU, which clones a process by dump and restore. `process` runs its commands.
//!
//! The clone has its parent's process id, so it runs in a new pid namespace on its parent's node. Its images are files
//! in memory.

mod process;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::endpoint::clock::now_unix_ns;
use crate::error::BenchError;
use crate::machine::Machine;
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

/// Why CRIU cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CriuError {
    /// CRIU is not installed.
    #[error("criu is not installed: on Debian, `apt-get install criu`, as root")]
    Missing,
    /// CRIU does not work with this kernel.
    #[error(
        "criu does not work here, says `criu check`: {output}; a newer one may (Linux 6.13 and later need CRIU 4.1, which \
         Debian 13 has): put its directory first in PATH"
    )]
    Unusable {
        /// The output of `criu check`.
        output: String,
    },
    /// A command of CRIU failed.
    #[error("criu {command}: {output}")]
    Command {
        /// `dump`, `restore` …
        command: &'static str,
        /// The first error of the command's log.
        output: String,
    },
}

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
    /// The file with the output of the clone.
    output: PathBuf,
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
    /// Starts a parent with this much memory, the installed [`MICRO`]. Its files are in a directory of the machine.
    pub(crate) fn start(machine: &dyn Machine, mib: u64, micro_options: MicroOptions) -> Result<Self, BenchError> {
        let payload = machine.write_file("criu/payload", "644", PAYLOAD_TOUCH.as_bytes())?;
        let parent = Micro::start(machine, mib, micro_options, &payload, None)?;
        let stdout = format!("/proc/{}/fd/1", parent.pid());
        let stdout = machine.run(MICRO.name, Command::new("readlink").arg(stdout), &[])?;
        let stdout = String::from_utf8_lossy(&stdout).trim().to_owned();
        let directory = machine.scratch().join("criu");
        let criu = CriuCommand { pid: parent.pid(), stdout, images: directory.join("images") };
        Ok(Self { parent, criu, output: directory.join("output") })
    }

    /// Clones the parent on its machine. It first writes to all of its pages, and continues afterwards.
    pub(crate) async fn clone(&mut self, machine: &dyn Machine, mode: CriuMode) -> Result<CriuTiming, BenchError> {
        self.parent.write_all()?;
        self.criu.make_directory(machine)?;
        let cloned = match mode {
            CriuMode::Eager => self.clone_eagerly(machine).await,
            CriuMode::Lazy => self.clone_lazily(machine).await,
        };
        // Remove the images, which take as much memory as the parent.
        self.criu.remove_directory(machine)?;
        cloned
    }

    async fn clone_eagerly(&self, machine: &dyn Machine) -> Result<CriuTiming, BenchError> {
        let began = Instant::now();
        self.criu.dump(machine)?.wait_success(machine).await?;
        let prepare_ms = elapsed_ms(began);
        let restored_unix_ns = now_unix_ns();
        self.criu.restore(machine, &self.output)?.wait_success(machine).await?;
        let child = self.read_child_report(machine)?;
        Ok(CriuTiming {
            prepare_ms,
            resume_ms: ns_to_ms(child.first_unix_ns - restored_unix_ns),
            pause_ms: prepare_ms,
            execution_ms: ns_to_ms(child.touch_ns),
        })
    }

    async fn clone_lazily(&self, machine: &dyn Machine) -> Result<CriuTiming, BenchError> {
        let began = Instant::now();
        let mut dump = self.criu.dump_lazily(machine)?;
        dump.wait_ready(machine).await?;
        let prepare_ms = elapsed_ms(began);
        let restored_unix_ns = now_unix_ns();
        let mut pages = self.criu.serve_lazy_pages(machine)?;
        pages.wait_ready(machine).await?;
        let restore = self.criu.restore_lazily(machine, &self.output)?;
        let dump = async {
            dump.wait_success(machine).await?;
            Ok(elapsed_ms(began))
        };
        let (pause_ms, (), ()) = tokio::try_join!(dump, pages.wait_success(machine), restore.wait_success(machine))?;
        let child = self.read_child_report(machine)?;
        Ok(CriuTiming {
            prepare_ms,
            resume_ms: ns_to_ms(child.first_unix_ns - restored_unix_ns),
            pause_ms,
            execution_ms: ns_to_ms(child.touch_ns),
        })
    }

    fn read_child_report(&self, machine: &dyn Machine) -> Result<ChildReport, BenchError> {
        ChildReport::parse(&String::from_utf8_lossy(&machine.read_file(&self.output)?))
    }
}

fn elapsed_ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
