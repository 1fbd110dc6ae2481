//! `farfork volume create NAME`: creates a volume and its replicas.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::ListNodesRequest;
use farfork_cluster::catalog::{Durability, VolumeName};
use farfork_volume::log::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use farfork_volume::process::{ControlRequest, NewVolume};
use farfork_volume::record::PAGE_BYTES;
use farfork_wire::NodeName;
use tonic::Code;

use super::parse_volume_name;
use super::view::replicas_text;
use super::volume_node::VolumeNode;
use crate::GlobalArgs;
use crate::connection::block_on;
use crate::output::{print_json, print_line};
use crate::size::parse_nonzero_size;

/// Time limit for a node that has just started to become a member.
const MEMBERSHIP_LIMIT: Duration = Duration::from_secs(3);
/// Interval between two queries of the members.
const MEMBERSHIP_INTERVAL: Duration = Duration::from_millis(50);

/// Create a volume with a replica on each of several nodes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume create data --replicas n1,n2,n3
  farfork volume create scratch --replicas n1 --log-size 256MiB
  farfork volume create accounts --replicas n1,n2,n3 --durability disk

Exit status: 0 all replicas are created, 1 failure, 2 wrong usage.")]
pub(crate) struct CreateVolume {
    /// Name of the volume: 1 to 48 letters, digits, - and _.
    #[arg(value_parser = parse_volume_name)]
    name: VolumeName,
    /// Nodes that keep a replica, separated by commas. The loss of all but one loses no acknowledged data.
    #[arg(long, value_name = "NODE,...", value_delimiter = ',', required = true)]
    replicas: Vec<NodeName>,
    /// Size of the log that each node gets when it mounts the volume, from 8MiB to 2GiB.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_log_size)]
    log_size: u64,
    /// Storage that has the data on each replica when fsync returns.
    ///
    /// `memory` survives the death of every process. `disk` also survives a power failure of all nodes.
    #[arg(long, value_name = "memory|disk", default_value = "memory", value_parser = parse_durability)]
    durability: Durability,
}

impl CreateVolume {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let Self { name, replicas, log_size, durability } = self;
        let object = format!("volume {name}");
        let node = VolumeNode::find(global, &object)?;
        if let Some(repeated) = replicas.iter().enumerate().find_map(|(i, n)| replicas[..i].contains(n).then_some(n)) {
            let cause = format!("node {repeated} is named twice");
            return Err(Failure::new(Code::InvalidArgument, object, cause)
                .with_next_step("name each node once")
                .into());
        }
        check_membership(global, &object, &replicas)?;
        node.wait_for_nodes(&object, &replicas)?;
        let replica_names: Vec<String> = replicas.iter().map(NodeName::to_string).collect();
        let text = format!("{name} is created on {}", replicas_text(&replicas));
        let volume = NewVolume { name: name.clone(), replicas, log_bytes: log_size, durability };
        node.request(&object, &ControlRequest::Create(volume))?;
        if global.json {
            print_json(&serde_json::json!({ "volume": name, "replicas": replica_names }));
        } else {
            print_line(&text);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses nodes that are not members after [`MEMBERSHIP_LIMIT`]. Without this check, `wait_for_nodes` would wait for
/// them until its longer time limit.
fn check_membership(global: &GlobalArgs, object: &str, replicas: &[NodeName]) -> anyhow::Result<()> {
    let check = async {
        let mut client = global.connection.open().await?;
        let deadline = Instant::now() + MEMBERSHIP_LIMIT;
        loop {
            let answer = client.list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {})).await;
            let nodes = answer.map_err(|status| Failure::from_status("the node", &status))?.into_inner().nodes;
            let is_unknown = |replica: &&NodeName| nodes.iter().all(|node| node.name != replica.as_str());
            let Some(unknown) = replicas.iter().find(is_unknown) else { return Ok(ExitCode::SUCCESS) };
            if Instant::now() >= deadline {
                let failure = Failure::new(Code::NotFound, object, format!("the cluster has no node {unknown}"));
                return Err(failure.with_next_step("list the nodes with `farfork nodes`").into());
            }
            tokio::time::sleep(MEMBERSHIP_INTERVAL).await;
        }
    };
    block_on(check).map(drop)
}

fn parse_log_size(text: &str) -> Result<u64, String> {
    let bytes = parse_nonzero_size(text)?;
    let is_valid = (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(PAGE_BYTES);
    if is_valid { Ok(bytes) } else { Err("a log has 8MiB to 2GiB, in whole pages of 4KiB".to_owned()) }
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "memory" => Ok(Durability::Memory),
        "disk" => Ok(Durability::Disk),
        _ => Err("write memory or disk".to_owned()),
    }
}
