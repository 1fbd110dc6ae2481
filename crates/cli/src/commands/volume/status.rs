//! `farfork volume status NAME`: shows a volume and the progress of each replica.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::catalog::VolumeName;
use farfork_volume::process::{ControlRequest, VolumeStatus};
use serde_json::Value;
use tonic::Code;

use super::parse_volume_name;
use super::view::{LastCheckView, ReplicaView, VolumeView, backlog_table, replica_table, volume_table};
use super::volume_node::VolumeNode;
use super::watch::watch;
use crate::GlobalArgs;
use crate::output::{print_json, print_line};

/// Time between the two queries from which the rate of a replica is computed.
const RATE_INTERVAL: Duration = Duration::from_millis(500);
/// The state of a volume while the catalog cannot be read.
const WITHOUT_CATALOG: &str = "\
The tables are what this node knows. The writer continues to write and sync files that are open. Other writers wait, no
node leaves the volume, and open(2) waits and then fails with EIO. All continues when the catalog answers.";

/// Show a volume, its replicas, and how far each log is replicated and published.
///
/// Each node that has mounted the volume is a client, with a log of its own. LOGGED is how much of the log a replica
/// has. UNCOMMITTED is the part that not every live replica has: fsync waits for it. UNPUBLISHED is the committed part that
/// the shared tree of the replica does not have yet. FREE is the free space of the replica's file system.
///
/// A second table shows the replicas that lack a part of a log, as on a slow link. BACKLOG is the missing part, RATE is how
/// fast the replica takes it, and TIME LEFT is the time for the rest at this rate. The rate is measured for half a second.
///
/// If the catalog cannot be read, the command shows what this node knows, and why.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume status data
  farfork volume status data --watch
  farfork volume status data --json | jq -r '.replica_states[] | select(.failure != null).node'

Exit status: 0 success, 1 there is no such volume or this node does not answer, 2 wrong usage.")]
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
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let object = format!("volume {}", self.name);
        let read = || {
            let request = ControlRequest::Status(self.name.clone());
            let mut volumes = VolumeNode::find(global, &object)?.request(&object, &request)?;
            volumes.pop().ok_or_else(|| {
                let failure = Failure::new(Code::NotFound, &object, "there is none of this name");
                failure.with_next_step("list the volumes with `farfork volume ls`")
            })
        };
        let (mut status, taken) = (read()?, Instant::now());
        if self.watch {
            watch(read, document_of, global.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut replicas = ReplicaView::all(&status);
        if replicas.iter().any(ReplicaView::has_backlog) {
            thread::sleep(RATE_INTERVAL);
            status = read()?;
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
    let mut document = serde_json::to_value(VolumeView::new(status))?;
    document["replica_states"] = serde_json::to_value(replicas)?;
    document["catalog_failure"] = status.catalog_failure.clone().into();
    document["check_running"] = status.is_checked().into();
    document["last_check"] = serde_json::to_value(status.last_check().map(LastCheckView::new))?;
    Ok(document)
}

fn print_status(status: &VolumeStatus, replicas: &[ReplicaView]) {
    volume_table(&[VolumeView::new(status)]).print();
    print_line("");
    replica_table(replicas).print();
    if let Some(backlogs) = backlog_table(replicas) {
        print_line("");
        backlogs.print();
    }
    if let Some(failure) = &status.catalog_failure {
        print_line(&format!("{failure}\n{WITHOUT_CATALOG}"));
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
    let running = status.is_checked().then(|| "a check is running".to_owned());
    let last_check = status.last_check().map(|check| LastCheckView::new(check).describe());
    let checks: Vec<String> = running.into_iter().chain(last_check).collect();
    if !checks.is_empty() {
        print_line("");
        print_line(&checks.join("\n"));
    }
}
