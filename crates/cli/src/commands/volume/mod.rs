//! `farfork volume`: creates and mounts volumes. Hidden until the daemon supervises them: `mount` does so itself.

mod create;
mod mount;
mod process;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use farfork_volume::process::VolumeDirectory;
use farfork_volume::publish::Durability;

use crate::GlobalArgs;

/// Longest path of a volume's directory: a Unix socket inside of it has 107 bytes at most.
const VOLUME_PATH_BYTES_MAX: usize = 90;

/// Create and mount volumes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume create data
  farfork volume mount data /mnt/data
  umount /mnt/data

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand)]
enum VolumeCommand {
    Create(create::CreateVolume),
    Mount(mount::MountCommand),
    #[command(hide = true)]
    Client(process::ClientArguments),
    #[command(hide = true)]
    Offload(process::OffloadArguments),
    #[command(hide = true)]
    Worker(process::WorkerArguments),
}

impl VolumeArguments {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self.command {
            VolumeCommand::Create(command) => command.run(global),
            VolumeCommand::Mount(command) => command.run(),
            VolumeCommand::Client(command) => command.run(),
            VolumeCommand::Offload(command) => command.run(),
            VolumeCommand::Worker(command) => command.run(),
        }
    }
}

/// Where the volumes of this machine are.
#[derive(Args)]
struct StoreArguments {
    /// Directory with the volumes of this machine.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/farfork/volumes", env = "FARFORK_VOLUMES")]
    store: PathBuf,
}

impl StoreArguments {
    /// The directory of a volume.
    fn path_of(&self, name: &str) -> anyhow::Result<PathBuf> {
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        ensure!(is_name, "volume {name}: a name has letters, digits, - and _");
        let path = self.store.join(name);
        let length = path.as_os_str().len();
        ensure!(
            length <= VOLUME_PATH_BYTES_MAX,
            "volume {name}: {} has {length} bytes, {VOLUME_PATH_BYTES_MAX} at most: choose a shorter --store",
            path.display()
        );
        Ok(path)
    }

    /// A volume that exists.
    fn open(&self, name: &str) -> anyhow::Result<VolumeDirectory> {
        let path = self.path_of(name)?;
        std::fs::metadata(&path).with_context(|| format!("volume {name}: {}", path.display()))?;
        Ok(VolumeDirectory::new(&path))
    }
}

/// The failures that an acknowledged change survives.
#[derive(Args, Clone, Copy)]
struct DurabilityArguments {
    /// Where fsync waits for the log to be: in memory, which survives the death of every process, or on disk.
    #[arg(long, value_name = "memory|disk", default_value = "memory", value_parser = parse_durability)]
    durability: Durability,
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "memory" => Ok(Durability::Memory),
        "disk" => Ok(Durability::Disk),
        _ => Err("memory or disk".to_owned()),
    }
}

/// The argument that `parse_durability` reads.
fn durability_argument(durability: Durability) -> &'static str {
    match durability {
        Durability::Memory => "memory",
        Durability::Disk => "disk",
    }
}
