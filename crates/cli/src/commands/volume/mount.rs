//! `farfork volume mount NAME DIR`: mounts a volume, and supervises its processes until it is unmounted.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use clap::Args;
use farfork_volume::process::{MountSupervisor, ProcessRole};

use super::{DurabilityArguments, StoreArguments, durability_argument};

/// Mount a volume. The command ends when the volume is unmounted with umount(8).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume mount data /mnt/data
  farfork volume mount data /mnt/data --durability disk

Exit status: 0 unmounted, 1 failure, 2 wrong usage.")]
pub(crate) struct MountCommand {
    /// Name of the volume.
    name: String,
    /// Where to mount it.
    directory: PathBuf,
    #[command(flatten)]
    durability: DurabilityArguments,
    #[command(flatten)]
    store: StoreArguments,
}

impl MountCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let Self { name, directory, durability, store } = self;
        let object = format!("volume {name}");
        let volume = store.open(&name)?;
        let directory = directory.canonicalize().with_context(|| format!("{object}: {}", directory.display()))?;
        let program = env::current_exe().with_context(|| object.clone())?;
        let command = |role: ProcessRole| {
            let mut command = Command::new(&program);
            command.args(["volume", role.name()]).arg(volume.path());
            if role == ProcessRole::Client {
                command.arg(&directory);
            }
            command.args(["--durability", durability_argument(durability.durability)]).stdin(Stdio::null());
            command
        };
        let mut supervisor = MountSupervisor::start(&directory, command).with_context(|| object.clone())?;
        println!("{name} is mounted at {}", directory.display());
        supervisor.run().context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}
