//! `farfork pager`: the process that serves the page faults of children. The daemon starts it; users do not.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use farfork_fork::pager::{self, PagerConfig};
use farfork_trust::{Credentials, Encryption};

use crate::GlobalArgs;
use crate::log::{self, LogOptions};

/// Serve the page faults of a node's children. The daemon starts this process, which outlives the daemon.
#[derive(Args)]
pub(crate) struct Pager {
    /// Run directory of the node.
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,
    /// Encrypt memory transfers from other nodes. Without this option, other nodes are not authenticated.
    #[arg(long, value_name = "on|off")]
    encryption: Option<Encryption>,
    #[command(flatten)]
    log: LogOptions,
}

impl Pager {
    /// Must run in the only thread of this process, because the pager copies itself by clone(2).
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        // Starts a new session, so that a signal to the daemon's session does not end the pager. setsid(2) fails if
        // this process already leads a session.
        let _ = rustix::process::setsid();
        log::start_logging(&self.log)?;
        let object = format!("pager of {}", self.run_dir.display());
        let credentials = self.encryption.map(|encryption| Credentials::open(&global.trust(), encryption)).transpose();
        let credentials = credentials.with_context(|| object.clone())?;
        pager::run(&PagerConfig { run_dir: self.run_dir, credentials }).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}
