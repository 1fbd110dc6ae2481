//! `farfork volume status NAME`: shows a volume and the progress of each replica.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::{GetVolumeRequest, VolumeStatus};
use farfork_cluster::catalog::VolumeName;
use serde_json::Value;

use super::parse_volume_name;
use super::view::{LastCheckView, ReplicaView, VolumeView, backlog_table, replica_table, volume_table};
use super::watch::watch;
use crate::GlobalArgs;
use crate::output::{print_json, print_line};

/// Time between the two queries from which the rate of a replica is computed.
const RATE_INTERVAL: Duration = Duration::from_millis(500);
/// The state of a volume while the catalog cannot be read.
const WITHOUT_CATALOG: &str = "\
The tables are what this node knows. The writer continues to write and sync files that are open, unless another node was
about to become the writer. Other writers wait, no node leaves the volume, and open(2) waits and then fails with EIO. All
continues when the catalog answers.";
/// The state of a volume while the catalog can only be read.
const WITHOUT_CHANGES: &str = "\
The writer continues to write and sync files that are open, unless another node was about to become the writer. Other
writers wait, and no node leaves the volume.";

/// Show a volume, its replicas, and how far each log is replicated and published.
///
/// Each node that has mounted the volume is a client, with a log of its own. LOGGED is how much of the log a replica
/// has. UNCOMMITTED is the part that not every live replica has: fsync waits for it. UNPUBLISHED is the committed part that
/// the shared tree of the replica does not have yet. FREE is the free space of the replica's file system.
///
/// A second table shows the replicas that lack a part of a log, as on a slow link. BACKLOG is the missing part, RATE is how
/// fast the replica takes it, and TIME LEFT is the time for the rest at this rate. The rate is measured for half a second.
///
/// If the catalog cannot be read, the command shows what this node knows, and why (`catalog_failure` of --json). It also shows
/// an alarm of etcd, with which etcd refuses changes (`catalog_alarm`).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume status data
  farfork volume status data --watch
  farfork volume status data --json | jq -r '.replica_states[] | select(.failure != null).node'

Exit status: 0 success, 1 there is no such volume or the node does not answer, 2 wrong usage.")]
pub(crate) struct ShowVolumeStatus {
    /// Name of the volume.
    #[arg(value_parser = parse_volume_name)]
    name: VolumeName,
    /// Show how fast each log is written, replicated and published, every second until interrupted.
    ///
    /// On a terminal, each table replaces the previous one. LOG IN USE is the part of the log that the replica has not
    /// published: a client waits when its log is full. With --json, each report is a document, with the key `rates`.
    #[arg(long)]
    watch: bool,
}

impl ShowVolumeStatus {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let client = global.connection.open().await?;
        let read = async || {
            let status = client.clone().get_volume(GetVolumeRequest { name: self.name.to_string() }).await;
            let failed = |status| Failure::from_status(format!("volume {}", self.name), &status);
            status.map(tonic::Response::into_inner).map_err(failed)
        };
        let (mut status, taken) = (read().await?, Instant::now());
        if self.watch {
            watch(read, document_of, global.json).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut replicas = ReplicaView::all(&status);
        if replicas.iter().any(ReplicaView::has_backlog) {
            tokio::time::sleep(RATE_INTERVAL).await;
            status = read().await?;
            let earlier = std::mem::replace(&mut replicas, ReplicaView::all(&status));
            ReplicaView::measure_rates(&mut replicas, &earlier, taken.elapsed());
        }
        if global.json {
            print_json(&document_of(&status, &replicas)?);
        } else {
            print_status(&status, &replicas);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn document_of(status: &VolumeStatus, replicas: &[ReplicaView]) -> anyhow::Result<Value> {
    let mut document = serde_json::to_value(VolumeView::of(status))?;
    document["replica_states"] = serde_json::to_value(replicas)?;
    document["catalog_failure"] = catalog_failure(status).into();
    document["catalog_alarm"] = catalog_alarm(status).into();
    document["check_running"] = is_checked(status).into();
    document["last_check"] = serde_json::to_value(LastCheckView::newest(status))?;
    Ok(document)
}

fn print_status(status: &VolumeStatus, replicas: &[ReplicaView]) {
    volume_table(&[VolumeView::of(status)]).print();
    print_line("");
    replica_table(replicas).print();
    if let Some(backlogs) = backlog_table(replicas) {
        print_line("");
        backlogs.print();
    }
    if let Some(failure) = catalog_failure(status) {
        print_line(&format!("{failure}\n{WITHOUT_CATALOG}"));
    }
    if let Some(alarm) = catalog_alarm(status) {
        print_line(&format!("the catalog refuses changes: {alarm}\n{WITHOUT_CHANGES}"));
    }
    for replica in replicas {
        if let Some(failure) = &replica.failure {
            print_line(&format!("{} does not answer: {failure}", replica.node));
        }
        if replica.full {
            let node = &replica.node;
            print_line(&format!("{node}: the disk is full, and writes get ENOSPC: free space there for the volume"));
        }
    }
    let running = is_checked(status).then(|| "a check is running".to_owned());
    let last_check = LastCheckView::newest(status).map(|check| check.describe());
    let checks: Vec<String> = running.into_iter().chain(last_check).collect();
    if !checks.is_empty() {
        print_line("");
        print_line(&checks.join("\n"));
    }
}

/// Why the catalog cannot be read; none if it can.
fn catalog_failure(status: &VolumeStatus) -> Option<&str> {
    Some(status.catalog_failure.as_str()).filter(|failure| !failure.is_empty())
}

/// Why the catalog refuses changes; none if it accepts them.
fn catalog_alarm(status: &VolumeStatus) -> Option<&str> {
    Some(status.catalog_alarm.as_str()).filter(|alarm| !alarm.is_empty())
}

/// Whether a check of the volume runs, on any node.
fn is_checked(status: &VolumeStatus) -> bool {
    status.replicas.iter().any(|replica| replica.is_checked)
}
