//! Requests about volumes. The offload process of this node handles each of them: it reads the catalog, and calls the nodes
//! of the replicas. So any node answers for any volume, also one without a replica.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_cluster::catalog::{CatalogContents, DamagedRecordPolicy, VolumeName};
use farfork_volume::process::{
    CatalogImport, ControlAnswer, ControlRequest, NewVolume, REPLICAS_MAX, ReplicaReplacement, VolumeCheck,
    check_volume,
};
use farfork_wire::NodeName;
use tokio::sync::mpsc::error::TrySendError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::stream::spawn_stream;
use super::volume_messages::{
    check_report_message, damaged_volume_messages, durability_of, status_message, volume_message,
};
use crate::auth::Caller;
use crate::node::Node;
use crate::volumes::{OffloadRequests, unexpected_answer};

/// Time limit for a node that has just started to become a member.
const MEMBERSHIP_LIMIT: Duration = Duration::from_secs(3);
/// Interval between two looks at the members.
const MEMBERSHIP_INTERVAL: Duration = Duration::from_millis(50);

/// The object of failures about all volumes.
const ALL_VOLUMES: &str = "the volumes";
/// The object of failures about the catalog.
const CATALOG: &str = "the catalog";

pub(super) async fn create(
    node: &Arc<Node>,
    request: v1::CreateVolumeRequest,
) -> Result<v1::CreateVolumeResponse, Failure> {
    let durability = durability_of(request.durability());
    let (name, object) = parse_volume(&request.name)?;
    if request.replicas.len() > REPLICAS_MAX {
        let cause = format!("a volume has 1 to {REPLICAS_MAX} replicas");
        return Err(Failure::new(Code::InvalidArgument, object, cause).with_next_step("name fewer nodes"));
    }
    let replicas = request.replicas.iter().map(|replica| parse_node(&object, replica));
    let replicas = replicas.collect::<Result<Vec<NodeName>, Failure>>()?;
    if let Some(repeated) = replicas.iter().enumerate().find_map(|(i, n)| replicas[..i].contains(n).then_some(n)) {
        let failure = Failure::new(Code::InvalidArgument, object, format!("node {repeated} is named twice"));
        return Err(failure.with_next_step("name each node once"));
    }
    require_members(node, &object, &replicas).await?;
    call_offload(node, move |offload| {
        offload.wait_for_nodes(&object, &replicas)?;
        let volume = NewVolume { name, replicas, log_bytes: request.log_bytes, durability };
        offload.request(&object, &ControlRequest::Create(volume)).map(|_| v1::CreateVolumeResponse {})
    })
    .await
}

/// Refuses nodes that are not members after [`MEMBERSHIP_LIMIT`]. Without this check, `wait_for_nodes` would wait for
/// them until its longer time limit.
async fn require_members(node: &Node, object: &str, replicas: &[NodeName]) -> Result<(), Failure> {
    let deadline = Instant::now() + MEMBERSHIP_LIMIT;
    loop {
        let members = node.peers.views();
        let is_unknown = |replica: &&NodeName| members.iter().all(|view| view.member.name != **replica);
        let Some(unknown) = replicas.iter().find(is_unknown) else { return Ok(()) };
        if Instant::now() >= deadline {
            let failure = Failure::new(Code::NotFound, object, format!("the cluster has no node {unknown}"));
            return Err(failure.with_next_step("list the nodes with `farfork nodes`"));
        }
        tokio::time::sleep(MEMBERSHIP_INTERVAL).await;
    }
}

pub(super) async fn list(node: &Arc<Node>) -> Result<v1::ListVolumesResponse, Failure> {
    call_offload(node, |offload| match offload.query(ALL_VOLUMES, &ControlRequest::List)? {
        ControlAnswer::Volumes(list) => {
            let volumes = list.volumes.iter().map(|(name, record)| volume_message(name, record));
            let mut volumes: Vec<v1::Volume> = volumes.chain(damaged_volume_messages(&list.damaged)).collect();
            volumes.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(v1::ListVolumesResponse { volumes })
        }
        answer => Err(unexpected_answer(ALL_VOLUMES, &answer)),
    })
    .await
}

pub(super) async fn get(node: &Arc<Node>, request: v1::GetVolumeRequest) -> Result<v1::VolumeStatus, Failure> {
    let (name, object) = parse_volume(&request.name)?;
    call_offload(node, move |offload| match offload.query(&object, &ControlRequest::Status(name))? {
        ControlAnswer::Status(status) => Ok(status_message(&status)),
        answer => Err(unexpected_answer(&object, &answer)),
    })
    .await
}

pub(super) fn check(
    node: &Arc<Node>,
    request: v1::CheckVolumeRequest,
) -> Result<ReceiverStream<Result<v1::CheckVolumeEvent, Status>>, Failure> {
    let (name, object) = parse_volume(&request.name)?;
    let good = Some(&request.good).filter(|good| !good.is_empty()).map(|good| parse_node(&object, good)).transpose()?;
    let check = VolumeCheck { name, should_repair: request.repair, good };
    let node = node.clone();
    Ok(spawn_stream(|sink| async move {
        let reports = sink.clone();
        let to_event = |event| v1::CheckVolumeEvent { event: Some(event) };
        // A slow caller misses progress, and does not delay the check.
        let report_progress = move |progress: farfork_volume::process::CheckProgress| {
            let (compared_bytes, data_bytes) = (progress.compared_bytes, progress.data_bytes);
            let progress = v1::VolumeCheckProgress { compared_bytes, data_bytes };
            let sent = reports.try_send(Ok(to_event(v1::check_volume_event::Event::Progress(progress))));
            !matches!(sent, Err(TrySendError::Closed(_)))
        };
        let checked = call_offload(&node, move |offload| {
            match offload.exchange(&object, |store| check_volume(store, check.clone(), &report_progress))? {
                ControlAnswer::Checked(report) => Ok(check_report_message(&object, *report)),
                answer => Err(unexpected_answer(&object, &answer)),
            }
        });
        // The caller may have disconnected.
        let _ = sink.send(Ok(to_event(v1::check_volume_event::Event::Report(checked.await?)))).await;
        Ok(())
    }))
}

pub(super) async fn replace(
    node: &Arc<Node>,
    request: v1::ReplaceReplicaRequest,
) -> Result<v1::ReplaceReplicaResponse, Failure> {
    let (name, object) = parse_volume(&request.name)?;
    let [old, new] = [&request.old_node, &request.new_node].map(|name| parse_node(&object, name));
    let replacement = ReplicaReplacement { name, old: old?, new: new? };
    require_members(node, &object, std::slice::from_ref(&replacement.new)).await?;
    call_offload(node, move |offload| {
        offload.wait_for_nodes(&object, std::slice::from_ref(&replacement.new))?;
        let remaining_files = remove_files(offload, &object, &ControlRequest::Replace(replacement))?;
        Ok(v1::ReplaceReplicaResponse { remaining_files })
    })
    .await
}

pub(super) async fn drop_volume(
    node: &Arc<Node>,
    request: v1::DropVolumeRequest,
) -> Result<v1::DropVolumeResponse, Failure> {
    let (name, object) = parse_volume(&request.name)?;
    let request = if request.force { ControlRequest::DropReachable(name) } else { ControlRequest::Drop(name) };
    call_offload(node, move |offload| {
        Ok(v1::DropVolumeResponse { remaining_files: remove_files(offload, &object, &request)? })
    })
    .await
}

/// Replaces a replica, or drops a volume. Returns why files remain; empty if none do.
fn remove_files(offload: &OffloadRequests, object: &str, request: &ControlRequest) -> Result<String, Failure> {
    match offload.request(object, request)? {
        ControlAnswer::DoneExceptFiles(reason) => Ok(reason),
        _ => Ok(String::new()),
    }
}

pub(super) async fn export_catalog(node: &Arc<Node>) -> Result<v1::ExportCatalogResponse, Failure> {
    call_offload(node, |offload| match offload.query(CATALOG, &ControlRequest::ExportCatalog)? {
        ControlAnswer::Catalog(exported) => {
            let contents = serde_json::to_vec(&exported.contents).map_err(catalog_failure)?;
            let damaged = damaged_volume_messages(&exported.damaged);
            Ok(v1::ExportCatalogResponse { contents, catalog_failure: exported.failure.unwrap_or_default(), damaged })
        }
        answer => Err(unexpected_answer(CATALOG, &answer)),
    })
    .await
}

pub(super) async fn import_catalog(
    node: &Arc<Node>,
    request: v1::ImportCatalogRequest,
) -> Result<v1::ImportCatalogResponse, Failure> {
    let contents: CatalogContents = serde_json::from_slice(&request.contents).map_err(catalog_failure)?;
    let damaged = if request.replaces_damaged { DamagedRecordPolicy::Replace } else { DamagedRecordPolicy::Keep };
    let request = ControlRequest::ImportCatalog(CatalogImport { contents, damaged });
    let to_names = |names: Vec<VolumeName>| names.into_iter().map(String::from).collect();
    call_offload(node, move |offload| match offload.request(CATALOG, &request)? {
        ControlAnswer::Imported(summary) => {
            let (written, present) = (to_names(summary.written), to_names(summary.present));
            let damaged = damaged_volume_messages(&summary.damaged);
            Ok(v1::ImportCatalogResponse { written, present, damaged })
        }
        answer => Err(unexpected_answer(CATALOG, &answer)),
    })
    .await
}

/// Returns the directory of the replicas of this node, for a process of this machine that mounts one of them.
pub(super) async fn locate(node: &Arc<Node>, caller: Option<&Caller>) -> Result<v1::VolumeLocation, Failure> {
    if caller != Some(&Caller::Socket) {
        let cause = "their directory is named at the Unix socket of the node only";
        let failure = Failure::new(Code::FailedPrecondition, ALL_VOLUMES, cause);
        return Err(failure.with_next_step("run the command on the machine of the node"));
    }
    call_offload(node, |offload| {
        offload.require_processes(ALL_VOLUMES)?;
        Ok(v1::VolumeLocation { store: offload.store().to_string_lossy().into_owned() })
    })
    .await
}

/// Makes requests to the offload process, on a thread that may block.
async fn call_offload<T: Send + 'static>(
    node: &Arc<Node>,
    work: impl FnOnce(&OffloadRequests) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (task_node, permit) = (node.clone(), node.offload.admit().await);
    node.run_blocking(move || {
        let result = work(&task_node.offload);
        drop(permit);
        result
    })
    .await
}

/// Parses the name of a volume. Also returns the object of failures about it.
fn parse_volume(name: &str) -> Result<(VolumeName, String), Failure> {
    let object = format!("volume {name}");
    match VolumeName::new(name) {
        Ok(name) => Ok((name, object)),
        Err(error) => Err(Failure::new(Code::InvalidArgument, object, error)
            .with_next_step("list the volumes with `farfork volume ls`")),
    }
}

fn parse_node(object: &str, name: &str) -> Result<NodeName, Failure> {
    NodeName::new(name).map_err(|error| {
        Failure::new(Code::InvalidArgument, object, error).with_next_step("list the nodes with `farfork nodes`")
    })
}

fn catalog_failure(cause: impl Display) -> Failure {
    Failure::new(Code::InvalidArgument, CATALOG, format!("its records are not valid: {cause}"))
}
