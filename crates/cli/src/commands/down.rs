//! `farfork down`: stops the cluster that `farfork up` started on this machine.

use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::local::LocalCluster;
use farfork_terminal::privilege;
use farfork_volume::process::VolumeStore;
use tonic::Code;

use super::up::LocalClusterArgs;
use crate::process_names::ProcessNames;
use crate::{GlobalArgs, output};

/// Time limit for the client of a volume to end after umount(8). In this time, the client only frees its memory.
const CLIENT_END_LIMIT: Duration = Duration::from_secs(5);
const CLIENT_END_INTERVAL: Duration = Duration::from_millis(20);

/// Stop the cluster that `farfork up` started, and remove everything that it created.
///
/// Its children are killed, its seeds are dropped, and its volumes are removed. The command refuses a cluster with a mounted
/// volume, after it has waited up to 5 s for the end of an umount(8). Parent processes keep running, and keep their names
/// from `farfork run`.
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
        let cluster = LocalCluster::load(global.connection.run_dir())?;
        if let Some(name) = &self.cluster.name {
            cluster.require_name(name)?;
        }
        refuse_mounted_volumes(&cluster)?;
        let names: Vec<String> = cluster.nodes().iter().map(|node| node.name.clone()).collect();
        ProcessNames::in_run_dir(global.connection.run_dir()).remove_ended();
        cluster.down()?;
        if global.json {
            output::print_json(&serde_json::json!({ "removed": names }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses a cluster with a mounted volume, because programs may still write to the volume. umount(8) returns before
/// the client has ended, so this function waits up to [`CLIENT_END_LIMIT`].
fn refuse_mounted_volumes(cluster: &LocalCluster) -> anyhow::Result<()> {
    let deadline = Instant::now() + CLIENT_END_LIMIT;
    loop {
        let mounts = mounted_volumes(cluster)?;
        if mounts.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let failure = Failure::new(Code::FailedPrecondition, "the cluster", mounts.join(", "));
            let next_step = "unmount them with umount; `grep fuse.farfork /proc/mounts` lists the mounts, and one that \
                             was unmounted already while programs used it ends with these";
            return Err(failure.with_next_step(next_step).into());
        }
        thread::sleep(CLIENT_END_INTERVAL);
    }
}

/// Returns a sentence for each volume that has a client. It names the volume, and the node where it is mounted.
fn mounted_volumes(cluster: &LocalCluster) -> io::Result<Vec<String>> {
    let mut mounts = Vec::new();
    for node in cluster.nodes() {
        let volumes = VolumeStore::new(&node.volumes_dir()).mounted_volumes()?;
        mounts.extend(volumes.into_iter().map(|volume| format!("volume {volume} is mounted on node {}", node.name)));
    }
    Ok(mounts)
}
