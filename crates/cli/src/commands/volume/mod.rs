//! `farfork volume`: creates, lists, mounts, checks and drops replicated volumes. The commands send requests to any node,
//! except `mount` and `umount`, which act on this machine.

mod check;
mod create;
mod damaged_record;
mod drop;
mod export_catalog;
mod import_catalog;
mod ls;
mod mount;
mod mount_options;
mod process;
mod replace;
mod status;
mod umount;
mod view;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use farfork_cluster::catalog::VolumeName;

use crate::GlobalArgs;
use crate::connection::{ConnectionOption, block_on};

/// Create, list, mount, unmount, check and drop replicated volumes.
///
/// A volume is a file system that has a replica on each of several nodes. Each of them can mount it. When
/// fsync returns, every live replica has the data.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume create data --replicas n1,n2,n3
  farfork volume mount data /mnt/data
  umount /mnt/data
  farfork volume status data
  farfork volume check data
  farfork volume drop data

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand)]
enum VolumeCommand {
    Create(create::CreateVolume),
    Ls(ls::ListVolumes),
    Status(status::ShowVolumeStatus),
    Check(check::CheckVolume),
    Mount(mount::MountVolume),
    Replace(replace::ReplaceReplica),
    Drop(drop::DropVolume),
    #[command(alias = "unmount")]
    Umount(umount::UnmountVolume),
    ExportCatalog(export_catalog::ExportCatalog),
    ImportCatalog(import_catalog::ImportCatalog),
    #[command(hide = true)]
    Client(process::ClientArguments),
    #[command(hide = true)]
    Offload(process::OffloadArguments),
    #[command(hide = true)]
    Worker(process::WorkerArguments),
}

impl VolumeArguments {
    /// The options of the connection that the command uses. `mount` refuses `--node` by itself.
    pub(crate) fn connection_options(&self) -> &'static [ConnectionOption] {
        use ConnectionOption::{Node, RunDir, Socket, Trust};
        match self.command {
            VolumeCommand::Offload(_) => &[Trust],
            VolumeCommand::Umount(_) => &[],
            VolumeCommand::Mount(_) => &[Socket, RunDir, Node],
            _ => &[Socket, RunDir, Node, Trust],
        }
    }

    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self.command {
            VolumeCommand::Create(command) => block_on(command.run(global)),
            VolumeCommand::Ls(command) => block_on(command.run(global)),
            VolumeCommand::Status(command) => block_on(command.run(global)),
            VolumeCommand::Check(command) => block_on(command.run(global)),
            VolumeCommand::Mount(command) => command.run(global),
            VolumeCommand::Replace(command) => block_on(command.run(global)),
            VolumeCommand::Drop(command) => block_on(command.run(global)),
            VolumeCommand::Umount(command) => command.run(global),
            VolumeCommand::ExportCatalog(command) => block_on(command.run(global)),
            VolumeCommand::ImportCatalog(command) => block_on(command.run(global)),
            VolumeCommand::Client(command) => command.run(),
            VolumeCommand::Offload(command) => command.run(global),
            VolumeCommand::Worker(command) => command.run(),
        }
    }
}

/// Parses the name of a volume.
fn parse_volume_name(text: &str) -> Result<VolumeName, String> {
    VolumeName::new(text).map_err(|error| error.to_string())
}
