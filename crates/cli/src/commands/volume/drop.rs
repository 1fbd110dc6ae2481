//! `farfork volume drop NAME`: removes a volume.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::DropVolumeRequest;
use farfork_cluster::catalog::VolumeName;

use super::parse_volume_name;
use crate::GlobalArgs;
use crate::output::{print_json, print_line, print_note};

/// Remove a volume with all its replicas and files.
///
/// The command does not ask for confirmation. It refuses a volume that a node has mounted, after it has waited up to 10 s
/// for the end of an umount(8).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume drop data
  farfork volume drop data --force

Exit status: 0 the volume is removed, 1 it is mounted or cannot be removed, 2 wrong usage.")]
pub(crate) struct DropVolume {
    /// Name of the volume.
    #[arg(value_parser = parse_volume_name)]
    name: VolumeName,
    /// Drop the volume although nodes with a replica do not answer.
    ///
    /// These nodes keep their files. The command names them.
    #[arg(long)]
    force: bool,
}

impl DropVolume {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let request = DropVolumeRequest { name: self.name.to_string(), force: self.force };
        let dropped = global.connection.open().await?.drop_volume(request).await;
        let dropped = dropped.map_err(|status| Failure::from_status(format!("volume {}", self.name), &status))?;
        let remaining = Some(dropped.into_inner().remaining_files).filter(|reason| !reason.is_empty());
        if global.json {
            let mut document = serde_json::json!({ "volume": self.name });
            if let Some(reason) = remaining {
                document["remaining_files"] = reason.into();
            }
            print_json(&document);
        } else {
            print_line(&format!("{} is dropped", self.name));
            remaining.iter().for_each(print_note);
        }
        Ok(ExitCode::SUCCESS)
    }
}
