//! `farfork volume ls`: lists the volumes of the cluster.

use std::process::ExitCode;

use clap::Args;
use farfork_volume::process::ControlRequest;

use super::view::{VolumeView, volume_table};
use super::volume_node::VolumeNode;
use crate::GlobalArgs;
use crate::output::print_json;

/// List the volumes of the cluster.
///
/// REPLICAS are the nodes that keep a replica. LIVE are those that currently get each change. WRITER is the node whose
/// programs write at present. A node that has died stays in LIVE until a program writes to the volume.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume ls
  farfork volume ls --json | jq -r '.volumes[] | select(.live != .replicas).volume'

Exit status: 0 success, 1 this node does not answer, 2 wrong usage.")]
pub(crate) struct ListVolumes {}

impl ListVolumes {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        const OBJECT: &str = "the volumes";
        let volumes = VolumeNode::find(global, OBJECT)?.request(OBJECT, &ControlRequest::List)?;
        let views: Vec<VolumeView> = volumes.iter().map(VolumeView::new).collect();
        if global.json {
            print_json(&serde_json::json!({ "volumes": views }));
        } else {
            volume_table(&views).print();
        }
        Ok(ExitCode::SUCCESS)
    }
}
