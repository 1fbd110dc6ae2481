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
    /// Runs with one thread. Closes all inherited descriptors first.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        // Another process may wait for the end of a pipe that the program inherited. This process must not keep the
        // pipe open.
        close_all_except(&[]).context("cannot close inherited descriptors")?;
        if self.alone {
            // Starts a new session, so that signals to the program's session do not reach this process. setsid(2) fails
            // if this process already leads a session.
            let _ = rustix::process::setsid();
            return self.collapse_until_exit().context(self.process.to_string());
        }
        let process = self.process.to_string();
        Command::new("/proc/self/exe")
            .args(["tend", &process, "--alone"])
            .spawn()
            .context("cannot execute /proc/self/exe")?;
        Ok(ExitCode::SUCCESS)
    }

    fn collapse_until_exit(&self) -> io::Result<ExitCode> {
        if let Some(huge_page_collapser) = HugePageCollapser::open(self.process)? {
            huge_page_collapser.run()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
