//! Converts the state of volumes, as the offload process reports it, to messages of the API.

use std::collections::BTreeMap;

use farfork_api::v1;
use farfork_cluster::catalog::{DamagedRecord, Durability, VolumeName, VolumeRecord, VolumeState};
use farfork_volume::process::{
    CheckReport, DifferenceSubject, LastCheck, LogStatus, ReplicaDifference, ReplicaStatus, VolumeStatus,
};
use farfork_wire::NodeName;

use crate::volumes::failure_of_text;

/// Converts the durability of a request. An unspecified one is the default of `farfork volume create`.
pub(super) fn durability_of(durability: v1::VolumeDurability) -> Durability {
    match durability {
        v1::VolumeDurability::Unspecified | v1::VolumeDurability::Memory => Durability::Memory,
        v1::VolumeDurability::Disk => Durability::Disk,
    }
}

pub(super) fn volume_message(name: &VolumeName, record: &VolumeRecord) -> v1::Volume {
    let state = match record.state {
        VolumeState::Creating => v1::VolumeState::Creating,
        VolumeState::Ready => v1::VolumeState::Ready,
        VolumeState::Dropping => v1::VolumeState::Dropping,
    };
    let durability = match record.durability {
        Durability::Memory => v1::VolumeDurability::Memory,
        Durability::Disk => v1::VolumeDurability::Disk,
    };
    let writer = record.writer.and_then(|client| record.clients.get(usize::from(client)));
    v1::Volume {
        name: name.to_string(),
        state: state.into(),
        replicas: to_texts(&record.replicas),
        live: to_texts(&record.chain),
        durability: durability.into(),
        log_bytes: record.log_bytes,
        clients: to_texts(&record.clients),
        writer: writer.map(NodeName::to_string).unwrap_or_default(),
        revision: record.revision,
        damage: String::new(),
    }
}

pub(super) fn damaged_volume_messages(damaged: &BTreeMap<VolumeName, DamagedRecord>) -> Vec<v1::Volume> {
    damaged.iter().map(|(name, record)| damaged_volume_message(name, record)).collect()
}

fn damaged_volume_message(name: &VolumeName, record: &DamagedRecord) -> v1::Volume {
    v1::Volume {
        name: name.to_string(),
        state: v1::VolumeState::Damaged.into(),
        revision: record.revision,
        damage: record.reason.clone(),
        ..v1::Volume::default()
    }
}

pub(super) fn status_message(status: &VolumeStatus) -> v1::VolumeStatus {
    v1::VolumeStatus {
        volume: Some(volume_message(&status.name, &status.record)),
        replicas: status.replicas.iter().map(replica_message).collect(),
        catalog_failure: status.catalog_failure.clone().unwrap_or_default(),
        catalog_alarm: status.catalog_alarm.clone().unwrap_or_default(),
    }
}

fn replica_message(replica: &ReplicaStatus) -> v1::VolumeReplica {
    v1::VolumeReplica {
        node: replica.node.to_string(),
        failure: replica.failure.clone().unwrap_or_default(),
        logs: replica.logs.iter().map(log_message).collect(),
        free_bytes: replica.free_bytes,
        is_full: replica.is_full,
        last_check: replica.last_check.as_ref().map(check_result_message),
        is_checked: replica.is_checked,
    }
}

fn log_message(log: &LogStatus) -> v1::VolumeLog {
    let LogStatus { logged, committed, published, coalesced, forwarded, compressed } = *log;
    v1::VolumeLog { logged, committed, published, coalesced, forwarded, compressed }
}

fn check_result_message(check: &LastCheck) -> v1::VolumeCheckResult {
    v1::VolumeCheckResult {
        ended_unix_ms: check.at_seconds * 1000,
        differences: check.differences,
        repaired: to_texts(&check.repaired),
    }
}

/// Converts the result of a check. `object` names the volume in the failure of a repair.
pub(super) fn check_report_message(object: &str, report: CheckReport) -> v1::VolumeCheckReport {
    v1::VolumeCheckReport {
        replicas: to_texts(&report.replicas),
        inodes: report.inodes,
        data_bytes: report.data_bytes,
        differences: report.differences.into_iter().map(difference_message).collect(),
        repaired: to_texts(&report.repaired),
        remounting: to_texts(&report.remounting),
        repair_failure: report.repair_failure.map(|text| failure_of_text(object, &text).into()),
    }
}

fn difference_message(difference: ReplicaDifference) -> v1::ReplicaDifference {
    let damaged = to_texts(&difference.damaged);
    let of_kind = |kind: &str| v1::ReplicaDifference { kind: kind.to_owned(), damaged, ..Default::default() };
    match difference.subject {
        DifferenceSubject::Tree { reason } => v1::ReplicaDifference { reason: Some(reason), ..of_kind("tree") },
        DifferenceSubject::Inode { inode, path } => {
            v1::ReplicaDifference { path, inode: Some(inode), ..of_kind("inode") }
        }
        DifferenceSubject::Data { inode, path, range } => {
            v1::ReplicaDifference { path, inode: Some(inode), offset: Some(range.start), ..of_kind("data") }
        }
        DifferenceSubject::Mark { client, reason } => {
            v1::ReplicaDifference { client: Some(client.to_string()), reason: Some(reason), ..of_kind("mark") }
        }
        DifferenceSubject::Log { client, position } => {
            v1::ReplicaDifference { client: Some(client.to_string()), offset: Some(position), ..of_kind("log") }
        }
    }
}

fn to_texts(nodes: &[NodeName]) -> Vec<String> {
    nodes.iter().map(NodeName::to_string).collect()
}
