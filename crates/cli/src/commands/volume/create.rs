//! `farfork volume create NAME`: creates a volume and its replicas.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::{CreateVolumeRequest, VolumeDurability};
use farfork_cluster::catalog::VolumeName;
use farfork_volume::log::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use farfork_volume::record::PAGE_BYTES;
use farfork_wire::NodeName;

use super::parse_volume_name;
use crate::GlobalArgs;
use crate::output::{print_json, print_line};
use crate::size::parse_nonzero_size;

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
    durability: VolumeDurability,
}

impl CreateVolume {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let replicas: Vec<String> = self.replicas.iter().map(NodeName::to_string).collect();
        let request = CreateVolumeRequest {
            name: self.name.to_string(),
            replicas: replicas.clone(),
            log_bytes: self.log_size,
            durability: self.durability.into(),
        };
        let created = global.connection.open().await?.create_volume(request).await;
        created.map_err(|status| Failure::from_status(format!("volume {}", self.name), &status))?;
        if global.json {
            print_json(&serde_json::json!({ "volume": self.name, "replicas": replicas }));
        } else {
            print_line(&format!("{} is created on {}", self.name, replicas.join(",")));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn parse_log_size(text: &str) -> Result<u64, String> {
    let bytes = parse_nonzero_size(text)?;
    let is_valid = (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(PAGE_BYTES);
    if is_valid { Ok(bytes) } else { Err("a log has 8MiB to 2GiB, in whole pages of 4KiB".to_owned()) }
}

fn parse_durability(text: &str) -> Result<VolumeDurability, String> {
    match text {
        "memory" => Ok(VolumeDurability::Memory),
        "disk" => Ok(VolumeDurability::Disk),
        _ => Err("write memory or disk".to_owned()),
    }
}
