//! `farfork call-timer`: the process that ends interrupted system calls when their time is over. The daemon starts it;
//! users do not.

use std::os::fd::AsFd as _;
use std::process::ExitCode;

use clap::Args;
use farfork_fork::call_timer;

/// End system calls of other processes when their time limits expire. The daemon starts this process, and sends the
/// calls to its standard input.
#[derive(Args)]
pub(crate) struct CallTimer {}

impl CallTimer {
    /// Runs until the daemon has ended, and no call is left.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // Starts a new session, so that a signal to the daemon's session does not end the timer. setsid(2) fails if
        // this process already leads a session.
        let _ = rustix::process::setsid();
        call_timer::run(&std::io::stdin().as_fd().try_clone_to_owned()?);
        Ok(ExitCode::SUCCESS)
    }
}
