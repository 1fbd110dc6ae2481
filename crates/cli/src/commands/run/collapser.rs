//! `farfork tend`: collapses a process's memory into huge pages until the process ends. `farfork run --huge` starts it;
//! users do not.

use std::io;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::Args;
use farfork_fork::huge_pages::HugePageCollapser;
use farfork_sys::fork::close_all_except;
use farfork_sys::process_identity::ProcessIdentity;

/// Collapse the memory of a process into huge pages until the process ends. `farfork run --huge` starts this command.
#[derive(Args)]
pub(crate) struct CollapserProcess {
    /// The process, as PID@TICKS, where TICKS is its start time.
    process: ProcessIdentity,
    /// Do the work in this process. Without this option, start a process that does it, and exit.
    #[arg(long)]
    alone: bool,
}

impl CollapserProcess {
    /// Runs with one thread. First closes all inherited descriptors.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        // A process that waits for the end of a pipe that the program inherited must not wait for this one.
        close_all_except(&[]).context("descriptors")?;
        if self.alone {
            // A session of its own, so that signals to the program's session do not reach it. Fails if this process
            // leads one already.
            let _ = rustix::process::setsid();
            return self.collapse_until_exit().context(self.process.to_string());
        }
        let process = self.process.to_string();
        Command::new("/proc/self/exe").args(["tend", &process, "--alone"]).spawn().context("/proc/self/exe")?;
        Ok(ExitCode::SUCCESS)
    }

    fn collapse_until_exit(&self) -> io::Result<ExitCode> {
        if let Some(huge_page_collapser) = HugePageCollapser::open(self.process)? {
            huge_page_collapser.run()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
