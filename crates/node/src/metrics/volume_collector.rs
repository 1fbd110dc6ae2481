//! At each scrape, queries the node's offload process for the replication and publishing progress of the volumes' logs.
//! A node that serves no volumes has none of these metrics.

use std::fmt;
use std::path::Path;
use std::sync::Weak;
use std::time::{Duration, Instant};

use farfork_volume::process::{
    ControlAnswer, ControlRequest, LogStatus, ReplicaStatus, VolumeStatus, send_control_request_within,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::node::Node;

/// Time limit for all requests of one scrape. Prometheus itself waits 10 s by default.
const SCRAPE_LIMIT: Duration = Duration::from_secs(2);

/// Collects the metrics of a node's volumes.
#[derive(Debug)]
pub(super) struct VolumeCollector(pub(super) Weak<Node>);

impl Collector for VolumeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(node) = self.0.upgrade() else { return Ok(()) };
        let volumes = list_volumes(node.offload.store());
        if volumes.is_empty() {
            return Ok(());
        }
        REPLICA_METRICS.iter().try_for_each(|metric| encode_replicas(&mut encoder, metric, &volumes))?;
        encode_checks(&mut encoder, &volumes)?;
        encode_log_sizes(&mut encoder, &volumes)?;
        LOG_METRICS.iter().try_for_each(|metric| encode_logs(&mut encoder, metric, &volumes))
    }
}

/// A metric of each log.
struct LogMetric {
    name: &'static str,
    help: &'static str,
    bytes: fn(&LogStatus) -> u64,
}

const LOG_METRICS: [LogMetric; 6] = [
    LogMetric { name: "volume_logged", help: "Bytes of a client's log that a replica has.", bytes: |log| log.logged },
    LogMetric {
        name: "volume_committed",
        help: "Bytes of a client's log that each live replica has.",
        bytes: |log| log.committed,
    },
    LogMetric {
        name: "volume_published",
        help: "Bytes of a client's log that a replica has published to its shared tree.",
        bytes: |log| log.published,
    },
    LogMetric {
        name: "volume_coalesced",
        help: "Bytes of data that a replica did not copy to its shared tree, because later records overwrite or drop them.",
        bytes: |log| log.coalesced,
    },
    LogMetric {
        name: "volume_forwarded",
        help: "Bytes of a client's log that a replica has sent to the next one, before compression.",
        bytes: |log| log.forwarded,
    },
    LogMetric {
        name: "volume_compressed",
        help: "Bytes that a replica has sent to the next one in place of the forwarded bytes, after compression.",
        bytes: |log| log.compressed,
    },
];

/// A metric of each replica.
struct ReplicaMetric {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    /// Returns the metric's value for a replica; `None` while the value is unknown.
    value: fn(&ReplicaStatus) -> Option<i64>,
}

const REPLICA_METRICS: [ReplicaMetric; 3] = [
    ReplicaMetric {
        name: "volume_replica_up",
        help: "Whether a replica of a volume answers: 1, or 0.",
        unit: None,
        value: |replica| Some(i64::from(replica.failure.is_none())),
    },
    ReplicaMetric {
        name: "volume_replica_full",
        help: "Whether the disk of a replica of a volume is full, and writers get ENOSPC: 1, or 0.",
        unit: None,
        value: |replica| Some(i64::from(replica.is_full)),
    },
    ReplicaMetric {
        name: "volume_replica_free",
        help: "Free bytes of the file system of a replica of a volume.",
        unit: Some(Unit::Bytes),
        value: |replica| replica.free_bytes.map(u64::cast_signed),
    },
];

/// Returns the volumes with their replicas. Without a reply from the offload process in time, returns fewer or none.
fn list_volumes(store: &Path) -> Vec<VolumeStatus> {
    let deadline = Instant::now() + SCRAPE_LIMIT;
    let ask = |request: &ControlRequest| {
        let remaining = deadline.saturating_duration_since(Instant::now());
        (!remaining.is_zero()).then(|| send_control_request_within(store, request, remaining).ok()).flatten()
    };
    // The offload process runs only if there are volumes. Missing values appear as a gap.
    let Some(ControlAnswer::Volumes(list)) = ask(&ControlRequest::List) else { return Vec::new() };
    let statuses = list.volumes.into_keys().map(|name| match ask(&ControlRequest::Status(name)) {
        Some(ControlAnswer::Status(status)) => Some(*status),
        _ => None,
    });
    statuses.flatten().collect()
}

fn encode_replicas(
    encoder: &mut DescriptorEncoder<'_>,
    ReplicaMetric { name, help, unit, value }: &ReplicaMetric,
    volumes: &[VolumeStatus],
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    for (volume, replica) in replicas_of(volumes) {
        let labels = [("volume", volume.name.as_str()), ("replica", replica.node.as_str())];
        if let Some(value) = value(replica) {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Encodes the size of each client's log. The part in use is the difference between logged and published bytes.
fn encode_log_sizes(encoder: &mut DescriptorEncoder<'_>, volumes: &[VolumeStatus]) -> fmt::Result {
    let help = "Size of the log that each client of a volume has.";
    let mut metric = encoder.encode_descriptor("volume_log_size", help, Some(&Unit::Bytes), MetricType::Gauge)?;
    for volume in volumes {
        let labels = [("volume", volume.name.as_str())];
        ConstGauge::new(volume.record.log_bytes.cast_signed()).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Encodes the result of the latest check that any replica has recorded. A volume that was never checked has no values.
fn encode_checks(encoder: &mut DescriptorEncoder<'_>, volumes: &[VolumeStatus]) -> fmt::Result {
    let checks: Vec<_> = volumes.iter().filter_map(|volume| Some((&volume.name, volume.last_check()?))).collect();
    let help = "When the replicas of a volume were compared last.";
    let seconds = Some(&Unit::Other("timestamp_seconds".to_owned()));
    let mut metric = encoder.encode_descriptor("volume_last_check", help, seconds, MetricType::Gauge)?;
    for (name, check) in &checks {
        let labels = [("volume", name.as_str())];
        ConstGauge::new(check.at_seconds as i64).encode(metric.encode_family(&labels)?)?;
    }
    let help = "Differences between the replicas of a volume that the last check found.";
    let mut metric = encoder.encode_descriptor("volume_last_check_differences", help, None, MetricType::Gauge)?;
    for (name, check) in &checks {
        let labels = [("volume", name.as_str())];
        ConstGauge::new(check.differences as i64).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode_logs(
    encoder: &mut DescriptorEncoder<'_>,
    LogMetric { name, help, bytes }: &LogMetric,
    volumes: &[VolumeStatus],
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Counter)?;
    for (volume, replica) in replicas_of(volumes) {
        for (client, log) in volume.record.clients.iter().zip(&replica.logs) {
            let labels =
                [("volume", volume.name.as_str()), ("client", client.as_str()), ("replica", replica.node.as_str())];
            ConstCounter::new(bytes(log)).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn replicas_of(volumes: &[VolumeStatus]) -> impl Iterator<Item = (&VolumeStatus, &ReplicaStatus)> {
    volumes.iter().flat_map(|volume| volume.replicas.iter().map(move |replica| (volume, replica)))
}

#[cfg(test)]
mod tests {
    use farfork_cluster::catalog::{Durability, VolumeName, VolumeRecord};
    use farfork_wire::NodeName;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct OneVolume(VolumeStatus);

    impl Collector for OneVolume {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let volumes = std::slice::from_ref(&self.0);
            REPLICA_METRICS.iter().try_for_each(|metric| encode_replicas(&mut encoder, metric, volumes))?;
            encode_log_sizes(&mut encoder, volumes)?;
            encode_logs(&mut encoder, &LOG_METRICS[0], volumes)
        }
    }

    #[test]
    fn each_log_of_each_replica_has_a_metric() {
        let [n1, n2] = ["n1", "n2"].map(|name| NodeName::new(name).unwrap());
        let mut record = VolumeRecord::new(1, vec![n1.clone(), n2.clone()], 8 << 20, Durability::Memory);
        record.clients = vec![n2.clone()];
        let log = LogStatus { logged: 4096, committed: 4096, ..LogStatus::default() };
        let unknown = ReplicaStatus::unknown(n2, "it is down".to_owned());
        let replicas = vec![
            ReplicaStatus { node: n1, failure: None, logs: vec![log], free_bytes: Some(4096), ..unknown.clone() },
            unknown,
        ];
        let name = VolumeName::new("data").unwrap();
        let volume = VolumeStatus { name, record, replicas, catalog_failure: None, catalog_alarm: None };
        let mut registry = Registry::with_prefix("farfork");
        registry.register_collector(Box::new(OneVolume(volume)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "farfork_volume_replica_up{volume=\"data\",replica=\"n1\"} 1",
            "farfork_volume_replica_up{volume=\"data\",replica=\"n2\"} 0",
            "farfork_volume_replica_full{volume=\"data\",replica=\"n1\"} 0",
            "farfork_volume_replica_free_bytes{volume=\"data\",replica=\"n1\"} 4096",
            "farfork_volume_log_size_bytes{volume=\"data\"} 8388608",
            "farfork_volume_logged_bytes_total{volume=\"data\",client=\"n2\",replica=\"n1\"} 4096",
        ] {
            assert!(text.lines().any(|text_line| text_line == line), "no `{line}` in\n{text}");
        }
    }

    #[test]
    fn a_node_without_volumes_has_no_volume_metrics() {
        assert!(list_volumes(Path::new("/nonexistent")).is_empty());
    }
}
