//! `farfork down`: stops the cluster that `farfork up` started on this machine.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::local::LocalCluster;
use farfork_terminal::privilege;
use farfork_volume::process::VolumeStore;
use tonic::Code;

use super::up::LocalClusterArgs;
use crate::process_names::ProcessNames;
use crate::{GlobalArgs, output};

/// Stop the cluster that `farfork up` started, and remove everything that it created.
///
/// Its children are killed, its seeds are dropped, and its volumes are removed. The command refuses a cluster with a mounted
/// volume. Parent processes keep running, and keep their names from `farfork run`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork down
  farfork down --run-dir /tmp/test

Exit status: 0 the cluster is removed, 1 failure or no cluster, 2 wrong usage.")]
pub(crate) struct Down {
    #[command(flatten)]
    cluster: LocalClusterArgs,
}

impl Down {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it stops daemons and removes network namespaces")?;
        let cluster = LocalCluster::load(&self.cluster.run_dir())?;
        if let Some(name) = &self.cluster.name {
            cluster.require_name(name)?;
        }
        refuse_mounted_volumes(&cluster)?;
        let names: Vec<String> = cluster.nodes().iter().map(|node| node.name.clone()).collect();
        ProcessNames::in_run_dir(&self.cluster.run_dir()).remove_ended();
        cluster.down()?;
        if global.json {
            output::print_json(&serde_json::json!({ "removed": names }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Programs may write to a mounted volume, and all of it would be lost.
fn refuse_mounted_volumes(cluster: &LocalCluster) -> anyhow::Result<()> {
    for node in cluster.nodes() {
        if let Some(volume) = VolumeStore::new(&node.volumes_dir()).mounted_volumes()?.first() {
            let cause = format!("volume {volume} is mounted on node {}", node.name);
            let failure = Failure::new(Code::FailedPrecondition, "the cluster", cause);
            let next_step = "unmount it with umount; `grep fuse.farfork /proc/mounts` lists the mounts";
            return Err(failure.with_next_step(next_step).into());
        }
    }
    Ok(())
}
