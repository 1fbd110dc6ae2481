//! The processes of a mounted volume. `farfork volume mount` starts them; users do not.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use farfork_volume::mount::ClientOptions;
use farfork_volume::process::{VolumeDirectory, end_with_supervisor, run_client, run_offload, run_worker};

use super::DurabilityArguments;
use crate::log::{self, LogOptions};

/// Serve the mount of a volume. A line on standard output says when it is usable.
#[derive(Args)]
pub(crate) struct ClientArguments {
    /// Directory of the volume.
    volume: PathBuf,
    /// Where to mount it.
    directory: PathBuf,
    #[command(flatten)]
    durability: DurabilityArguments,
    #[command(flatten)]
    log: LogOptions,
}

/// Read the log of a volume, and order publishing.
#[derive(Args)]
pub(crate) struct OffloadArguments {
    /// Directory of the volume.
    volume: PathBuf,
    #[command(flatten)]
    durability: DurabilityArguments,
    #[command(flatten)]
    log: LogOptions,
}

/// Apply change sets to the shared tree of a volume.
#[derive(Args)]
pub(crate) struct WorkerArguments {
    /// Directory of the volume.
    volume: PathBuf,
    #[command(flatten)]
    durability: DurabilityArguments,
    #[command(flatten)]
    log: LogOptions,
}

impl ClientArguments {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        start(&self.log)?;
        let object = format!("client of {}", self.volume.display());
        let options = ClientOptions { durability: self.durability.durability };
        let ready = || {
            // Without a supervisor there is no reader.
            let mut output = std::io::stdout();
            let _ = output.write_all(b"mounted\n").and_then(|()| output.flush());
        };
        run_client(&VolumeDirectory::new(&self.volume), &self.directory, options, ready).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl OffloadArguments {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        start(&self.log)?;
        let object = format!("offload process of {}", self.volume.display());
        run_offload(&VolumeDirectory::new(&self.volume), self.durability.durability).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl WorkerArguments {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        start(&self.log)?;
        let object = format!("worker of {}", self.volume.display());
        run_worker(&VolumeDirectory::new(&self.volume), self.durability.durability).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn start(log: &LogOptions) -> anyhow::Result<()> {
    end_with_supervisor().context("prctl")?;
    log::start_logging(log)
}
