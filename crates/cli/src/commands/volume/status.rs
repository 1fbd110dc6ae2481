//! `farfork volume status NAME`: shows a volume and how far each replica is.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::catalog::VolumeName;
use farfork_volume::process::ControlRequest;
use tonic::Code;

use super::parse_volume_name;
use super::view::{LastCheckView, ReplicaView, VolumeView, replica_table, volume_table};
use super::volume_node::VolumeNode;
use crate::GlobalArgs;
use crate::output::{print_json, print_line};

/// Show a volume, its replicas, and how far each log is replicated and published.
///
/// Each node that has mounted the volume is a client, with a log of its own. LOGGED is how much of the log a replica
/// has. UNCOMMITTED is the part that not every live replica has: fsync waits for it. UNPUBLISHED is the part that the
/// shared tree of the replica does not have yet.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume status data
  farfork volume status data --json | jq -r '.replica_states[] | select(.failure != null).node'

Exit status: 0 success, 1 there is no such volume or this node does not answer, 2 wrong usage.")]
pub(crate) struct ShowVolumeStatus {
    /// Name of the volume.
    #[arg(value_parser = parse_volume_name)]
    name: VolumeName,
}

impl ShowVolumeStatus {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let object = format!("volume {}", self.name);
        let volumes = VolumeNode::find(global, &object)?.request(&object, &ControlRequest::Status(self.name))?;
        let Some(status) = volumes.first() else {
            let failure = Failure::new(Code::NotFound, object, "there is none of this name");
            return Err(failure.with_next_step("list the volumes with `farfork volume ls`").into());
        };
        let (volume, replicas) = (VolumeView::new(status), ReplicaView::all(status));
        let last_check = status.last_check().map(LastCheckView::new);
        if global.json {
            let mut document = serde_json::to_value(&volume)?;
            document["replica_states"] = serde_json::to_value(&replicas)?;
            document["check_running"] = status.is_checked().into();
            document["last_check"] = serde_json::to_value(&last_check)?;
            print_json(&document);
            return Ok(ExitCode::SUCCESS);
        }
        volume_table(&[volume]).print();
        print_line("");
        replica_table(&replicas).print();
        for replica in &replicas {
            if let Some(failure) = &replica.failure {
                print_line(&format!("{} does not answer: {failure}", replica.node));
            }
        }
        let running = status.is_checked().then(|| "a check is running".to_owned());
        let checks: Vec<String> = running.into_iter().chain(last_check.map(|check| check.describe())).collect();
        if !checks.is_empty() {
            print_line("");
            print_line(&checks.join("\n"));
        }
        Ok(ExitCode::SUCCESS)
    }
}
