//! `farfork volume replace NAME OLD NEW`: moves a replica to another node.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::ReplaceReplicaRequest;
use farfork_cluster::catalog::VolumeName;
use farfork_wire::NodeName;

use super::parse_volume_name;
use crate::GlobalArgs;
use crate::output::{print_json, print_line, print_note};

/// Replace a replica by one on another node, for a machine that does not return.
///
/// The new node copies the volume from a live replica. The command returns before the copy is complete. When it is complete,
/// `farfork volume ls` lists the node in LIVE. If the old node does not answer, it keeps its files of the volume, and the
/// command says so (`remaining_files` of --json).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume replace data n3 n4

Exit status: 0 the new node copies the volume, 1 failure, 2 wrong usage.")]
pub(crate) struct ReplaceReplica {
    /// Name of the volume.
    #[arg(value_parser = parse_volume_name)]
    name: VolumeName,
    /// Node that loses its replica. It need not answer.
    old: NodeName,
    /// Node that gets a replica.
    new: NodeName,
}

impl ReplaceReplica {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let Self { name, old, new } = self;
        let request =
            ReplaceReplicaRequest { name: name.to_string(), old_node: old.to_string(), new_node: new.to_string() };
        let replaced = global.connection.open().await?.replace_replica(request).await;
        let replaced = replaced.map_err(|status| Failure::from_status(format!("volume {name}"), &status))?;
        let remaining = Some(replaced.into_inner().remaining_files).filter(|reason| !reason.is_empty());
        if global.json {
            print_json(&serde_json::json!({ "volume": name, "old": old, "new": new, "remaining_files": remaining }));
        } else {
            print_line(&format!("{new} replaces {old} as a replica of {name}, and copies it now"));
            remaining.iter().for_each(print_note);
        }
        Ok(ExitCode::SUCCESS)
    }
}
