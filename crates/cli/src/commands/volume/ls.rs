//! `farfork volume ls`: lists the volumes of the cluster.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::ListVolumesRequest;

use super::view::{VolumeView, volume_table};
use crate::GlobalArgs;
use crate::output::{print_json, print_line};

/// List the volumes of the cluster.
///
/// REPLICAS are the nodes that keep a replica. LIVE are those that currently get each change. WRITER is the node whose
/// programs write at present. A node that has died stays in LIVE until a program writes to the volume. A volume is `damaged`
/// if its record in the catalog cannot be read; the reason follows the table (`damage` of --json).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume ls
  farfork volume ls --json | jq -r '.volumes[] | select(.live != .replicas).volume'

Exit status: 0 success, 1 the node does not answer, 2 wrong usage.")]
pub(crate) struct ListVolumes {}

impl ListVolumes {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let listed = global.connection.open().await?.list_volumes(ListVolumesRequest {}).await;
        let listed = listed.map_err(|status| Failure::from_status("the volumes", &status))?.into_inner();
        let views: Vec<VolumeView> = listed.volumes.into_iter().map(VolumeView::new).collect();
        if global.json {
            print_json(&serde_json::json!({ "volumes": views }));
        } else {
            volume_table(&views).print();
            views.iter().filter_map(VolumeView::describe_damage).for_each(|text| print_line(&text));
        }
        Ok(ExitCode::SUCCESS)
    }
}
