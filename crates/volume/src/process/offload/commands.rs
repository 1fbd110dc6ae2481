//! Executes the commands of `farfork volume`: create, list, describe, check and drop volumes, and replace replicas.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use farfork_cluster::catalog::REPLICAS_MAX;
use farfork_cluster::catalog::{
    CatalogContents, CatalogError, VolumeName, VolumeRecord, VolumeState, import_volumes, update_volume,
};
use farfork_rpc::TypedCall;
use farfork_wire::NodeName;

use super::check;
use super::handlers::describe_replica;
use super::node::{OffloadNode, ReplicaError};
use crate::chain::calls::{CreateReplica, DescribeReplica, DropReplica, HasClient, ReplicaDescription, VolumeKey};
use crate::chain::{CALL_TIMEOUT, membership};
use crate::log::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use crate::process::channel::MessageChannel;
use crate::process::control::{
    CatalogImport, ControlAnswer, ControlRequest, ExportedCatalog, NewVolume, ReplicaReplacement, ReplicaStatus,
    VolumeList, VolumeStatus,
};
use crate::record::PAGE_BYTES;

/// Longest wait for the description of a replica. Without a description, the status has the error.
const DESCRIPTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait of `drop` for the end of a client: umount(8) returns before the client has ended. On a busy machine, its end
/// takes some seconds.
const CLIENT_END_LIMIT: Duration = Duration::from_secs(10);
const CLIENT_END_INTERVAL: Duration = Duration::from_millis(20);

/// Serves a connection in a thread of its own.
pub(super) fn start(node: &Arc<OffloadNode>, mut channel: MessageChannel) -> io::Result<()> {
    let node = Arc::clone(node);
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        while let Ok(request) = channel.receive::<ControlRequest>() {
            let answer = execute(&node, request, &mut channel).unwrap_or_else(ControlAnswer::Failed);
            if channel.send(&answer).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Executes a command. Sends the progress of a check to `channel`.
fn execute(
    node: &Arc<OffloadNode>,
    request: ControlRequest,
    channel: &mut MessageChannel,
) -> Result<ControlAnswer, String> {
    match request {
        ControlRequest::Create(new) => create(node, new).map(|()| ControlAnswer::Done),
        ControlRequest::List => {
            let contents = node.read_catalog()?;
            let (volumes, damaged) = (contents.volumes.clone(), contents.damaged.clone());
            Ok(ControlAnswer::Volumes(VolumeList { volumes, damaged }))
        }
        ControlRequest::Status(name) => status(node, name).map(|status| ControlAnswer::Status(Box::new(status))),
        ControlRequest::Replace(replacement) => replace(node, &replacement),
        ControlRequest::Check(request) => {
            let report_progress = |progress| channel.send(&ControlAnswer::Progress(progress)).is_ok();
            check::check(node, &request, report_progress).map(|report| ControlAnswer::Checked(Box::new(report)))
        }
        ControlRequest::Drop(name) => drop_volume(node, &name, &[]).map(|()| ControlAnswer::Done),
        ControlRequest::DropReachable(name) => drop_reachable(node, &name),
        ControlRequest::ListNodes => {
            let contents = node.read_catalog()?;
            Ok(ControlAnswer::Nodes(contents.nodes.keys().cloned().collect()))
        }
        ControlRequest::ExportCatalog => {
            let (contents, failure) = read_or_recall(node)?;
            let mut contents = (*contents).clone();
            let damaged = std::mem::take(&mut contents.damaged);
            Ok(ControlAnswer::Catalog(Box::new(ExportedCatalog { contents, damaged, failure })))
        }
        ControlRequest::ImportCatalog(CatalogImport { contents, damaged }) => {
            let imported = import_volumes(&*node.catalog, &contents, damaged);
            imported.map(ControlAnswer::Imported).map_err(|error| error.to_string())
        }
    }
}

fn create(node: &Arc<OffloadNode>, new: NewVolume) -> Result<(), String> {
    let NewVolume { name, replicas, log_bytes, durability } = new;
    check_new_volume(node, &name, &replicas, log_bytes)?;
    let id = getrandom::u64().map_err(|error| error.to_string())?;
    let record = VolumeRecord::new(id, replicas, log_bytes, durability);
    node.catalog.write_volume(&name, &record).map_err(|error| match error {
        CatalogError::Conflict(_) => format!("volume {name} exists already: drop it, or choose another name"),
        error => error.to_string(),
    })?;
    let key = VolumeKey { name: name.clone(), id };
    let created = record
        .replicas
        .iter()
        .try_for_each(|replica| call::<CreateReplica>(node, replica, &CreateReplica(key.clone())));
    if let Err(reason) = created {
        return Err(abandon_creation(node, &key, &record, reason));
    }
    set_state(node, &key, VolumeState::Ready).map(drop)
}

fn check_new_volume(
    node: &OffloadNode,
    name: &VolumeName,
    replicas: &[NodeName],
    log_bytes: u64,
) -> Result<(), String> {
    if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_bytes) || !log_bytes.is_multiple_of(PAGE_BYTES) {
        return Err(format!("volume {name}: a log has 8MiB to 2GiB, in whole pages"));
    }
    if !(1..=REPLICAS_MAX).contains(&replicas.len()) {
        return Err(format!("volume {name}: a volume has 1 to {REPLICAS_MAX} replicas"));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = replicas.iter().find(|replica| !seen.insert(*replica)) {
        return Err(format!("volume {name}: node {twice} is named twice"));
    }
    let contents = node.catalog.read().map_err(|error| error.to_string())?;
    match replicas.iter().find(|replica| !contents.nodes.contains_key(*replica)) {
        None => Ok(()),
        Some(unknown) => {
            let known: Vec<String> = contents.nodes.keys().map(ToString::to_string).collect();
            let known = known.join(", ");
            Err(format!("volume {name}: no node {unknown} serves volumes; these do: {known}"))
        }
    }
}

/// Removes the replicas that were created, and then the record. After an error, the record stays in the catalog, so that
/// `drop` can remove the rest.
fn abandon_creation(node: &Arc<OffloadNode>, key: &VolumeKey, record: &VolumeRecord, reason: String) -> String {
    match remove_replicas(node, key, &record.replicas) {
        Ok(()) => format!("volume {} is not created: {reason}", key.name),
        Err(rest) => {
            format!("volume {} is not created: {reason}; remove the rest with `farfork volume drop`: {rest}", key.name)
        }
    }
}

/// Reads the catalog. If this fails, returns what the node has read last, and the reason.
fn read_or_recall(node: &OffloadNode) -> Result<(Arc<CatalogContents>, Option<String>), String> {
    match node.read_catalog() {
        Ok(contents) => Ok((contents, None)),
        Err(failure) => match node.catalog.last_read() {
            Ok(contents) => Ok((contents, Some(failure))),
            Err(_) => Err(failure),
        },
    }
}

fn status(node: &Arc<OffloadNode>, name: VolumeName) -> Result<VolumeStatus, String> {
    let (contents, catalog_failure) = read_or_recall(node)?;
    let record = contents.volume(&name).map_err(|error| error.to_string())?.cloned();
    let record = record.ok_or_else(|| ReplicaError::UnknownVolume(name.clone()).to_string())?;
    let key = VolumeKey { name: name.clone(), id: record.id };
    let replicas = record.replicas.iter().map(|replica| {
        let described = if *replica == node.name {
            describe_replica(node, &key)
        } else {
            let request = DescribeReplica(key.clone());
            let described = node.peers.call::<DescribeReplica>(replica, &request, DESCRIPTION_TIMEOUT);
            described.map_err(|error| error.to_string())
        };
        match described {
            Ok(ReplicaDescription { logs, free_bytes, is_full, last_check, is_checked }) => {
                let (node, failure) = (replica.clone(), None);
                ReplicaStatus { node, failure, logs, free_bytes, is_full, last_check, is_checked }
            }
            Err(reason) => ReplicaStatus::unknown(replica.clone(), reason),
        }
    });
    let replicas = replicas.collect();
    let catalog_alarm = if catalog_failure.is_none() { node.catalog.alarm() } else { None };
    Ok(VolumeStatus { name, record, replicas, catalog_failure, catalog_alarm })
}

/// Gives the place of a replica to another node, which catches up by itself. The files on the node that then has no replica
/// are removed only if this node answers, because it may be lost.
fn replace(node: &Arc<OffloadNode>, replacement: &ReplicaReplacement) -> Result<ControlAnswer, String> {
    let ReplicaReplacement { name, old, new } = replacement;
    let record = node.record(name).map_err(|error| error.to_string())?;
    if !record.replicas.contains(old) {
        let others: Vec<&str> = record.replicas.iter().map(NodeName::as_str).collect();
        return Err(format!("volume {name}: node {old} has no replica of it; {} have", others.join(", ")));
    }
    if record.replicas.contains(new) {
        return Err(format!("volume {name}: node {new} has a replica of it already; name a node that has none"));
    }
    if record.chain == [old.clone()] {
        return Err(format!("volume {name}: node {old} has the last live replica; wait until another one is live"));
    }
    let key = VolumeKey { name: name.clone(), id: record.id };
    let replaced = create_and_register_replica(node, &key, replacement);
    // The new node refuses to drop its replica if the catalog names it, for example after the same command of another node.
    let unused = if replaced.is_ok() { old } else { new };
    let dropped = node.peers.call::<DropReplica>(unused, &DropReplica(key), DESCRIPTION_TIMEOUT);
    if let Err(error) = &dropped {
        tracing::warn!(%error, %name, node = %unused, "a replica is not removed after `replace`");
    }
    replaced?;
    Ok(match dropped {
        Ok(()) => ControlAnswer::Done,
        Err(error) => ControlAnswer::DoneExceptFiles(format!(
            "node {old} keeps its files of volume {name}: {error}; remove the directory `{name}` in the store of {old} when it returns"
        )),
    })
}

/// Creates the replica of the new node, and names this node in the catalog in place of the old one.
fn create_and_register_replica(
    node: &Arc<OffloadNode>,
    key: &VolumeKey,
    replacement: &ReplicaReplacement,
) -> Result<(), String> {
    let ReplicaReplacement { name, old, new } = replacement;
    call::<CreateReplica>(node, new, &CreateReplica(key.clone()))?;
    let named = update_volume(&*node.catalog, name, |current| {
        let is_usable = current.id == key.id && current.state == VolumeState::Ready;
        is_usable && membership::replace_replica(current, old, new)
    });
    let named = named.map_err(|error| error.to_string())?;
    let is_named = |record: VolumeRecord| record.replicas.contains(new) && !record.replicas.contains(old);
    if named.is_some_and(is_named) {
        return Ok(());
    }
    Err(format!("volume {name} has changed meanwhile: see `farfork volume status {name}`, and then try again"))
}

/// Drops a volume although nodes do not answer. These nodes keep their files.
fn drop_reachable(node: &Arc<OffloadNode>, name: &VolumeName) -> Result<ControlAnswer, String> {
    let record = node.record(name).map_err(|error| error.to_string())?;
    let request = DescribeReplica(VolumeKey { name: name.clone(), id: record.id });
    let is_silent = |replica: &NodeName| {
        let described = node.peers.call::<DescribeReplica>(replica, &request, DESCRIPTION_TIMEOUT);
        described.is_err_and(|error| !error.is_refusal())
    };
    let silent: Vec<NodeName> = record.replicas.into_iter().filter(is_silent).collect();
    drop_volume(node, name, &silent)?;
    if silent.is_empty() {
        return Ok(ControlAnswer::Done);
    }
    let nodes: Vec<&str> = silent.iter().map(NodeName::as_str).collect();
    Ok(ControlAnswer::DoneExceptFiles(format!(
        "files of volume {name} remain on {}, which do not answer; remove the directory `{name}` in their stores when they return",
        nodes.join(", ")
    )))
}

/// Drops a volume. `silent` are nodes that are not asked, and keep their replicas.
fn drop_volume(node: &Arc<OffloadNode>, name: &VolumeName, silent: &[NodeName]) -> Result<(), String> {
    let record = node.record(name).map_err(|error| error.to_string())?;
    let key = VolumeKey { name: name.clone(), id: record.id };
    match drop_record(node, &key, &record, silent) {
        // The command of another caller has dropped the volume meanwhile.
        Err(_) if is_gone(node, &key) => Ok(()),
        dropped => dropped,
    }
}

fn drop_record(
    node: &Arc<OffloadNode>,
    key: &VolumeKey,
    record: &VolumeRecord,
    silent: &[NodeName],
) -> Result<(), String> {
    let name = &key.name;
    wait_unmounted(node, key, record, silent)?;
    let StateChange { record, replaced } = set_state(node, key, VolumeState::Dropping)?;
    // A client may have begun to mount before this change. Later ones are refused.
    if let Err(reason) = wait_unmounted(node, key, &record, silent) {
        // The command of another caller that has made the change may remove the replicas already.
        if replaced == Some(VolumeState::Ready) {
            set_state(node, key, VolumeState::Ready)?;
        }
        return Err(reason);
    }
    let replicas: Vec<NodeName> = record.replicas.into_iter().filter(|replica| !silent.contains(replica)).collect();
    remove_replicas(node, key, &replicas).map_err(|reason| {
        format!("volume {name} is not dropped yet: {reason}; then run `farfork volume drop {name}` again")
    })
}

/// Whether the catalog has no such volume any more.
fn is_gone(node: &OffloadNode, key: &VolumeKey) -> bool {
    match node.record(&key.name) {
        Ok(record) => record.id != key.id,
        Err(error) => matches!(error, ReplicaError::UnknownVolume(_)),
    }
}

/// Waits until no node has a client of the volume. The mount of a silent node ends by itself.
fn wait_unmounted(
    node: &OffloadNode,
    key: &VolumeKey,
    record: &VolumeRecord,
    silent: &[NodeName],
) -> Result<(), String> {
    let deadline = Instant::now() + CLIENT_END_LIMIT;
    let mut mounted = Vec::new();
    // A node without a replica cannot have the volume mounted.
    let may_have_mount = |client: &&NodeName| record.replicas.contains(client) && !silent.contains(client);
    for client in record.clients.iter().filter(may_have_mount) {
        if !wait_without_client(node, client, key, deadline)? {
            mounted.push(client.as_str());
        }
    }
    if mounted.is_empty() {
        return Ok(());
    }
    let (name, mounted) = (&key.name, mounted.join(", "));
    Err(format!("volume {name} is mounted on {mounted}: unmount it there, and end children that use it"))
}

/// Waits until a node has no client of the volume. Returns false at the deadline.
fn wait_without_client(
    node: &OffloadNode,
    client: &NodeName,
    key: &VolumeKey,
    deadline: Instant,
) -> Result<bool, String> {
    while call::<HasClient>(node, client, &HasClient(key.clone()))? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(CLIENT_END_INTERVAL);
    }
    Ok(true)
}

/// Removes the replicas, then the record.
fn remove_replicas(node: &Arc<OffloadNode>, key: &VolumeKey, replicas: &[NodeName]) -> Result<(), String> {
    for replica in replicas {
        call::<DropReplica>(node, replica, &DropReplica(key.clone()))?;
    }
    loop {
        let revision = match node.record(&key.name) {
            Ok(record) if record.id == key.id => record.revision,
            _ => return Ok(()),
        };
        match node.catalog.remove_volume(&key.name, revision) {
            Ok(()) => return Ok(()),
            Err(CatalogError::Conflict(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// A record with a state.
struct StateChange {
    record: VolumeRecord,
    /// The state that was replaced; none if the record had the new one already.
    replaced: Option<VolumeState>,
}

fn set_state(node: &OffloadNode, key: &VolumeKey, state: VolumeState) -> Result<StateChange, String> {
    let mut replaced = None;
    let changed = update_volume(&*node.catalog, &key.name, |record| {
        let is_changed = record.id == key.id && record.state != state;
        replaced = is_changed.then(|| std::mem::replace(&mut record.state, state));
        is_changed
    });
    let record = changed.map_err(|error| error.to_string())?.filter(|record| record.id == key.id);
    let record = record.ok_or_else(|| ReplicaError::UnknownVolume(key.name.clone()).to_string())?;
    Ok(StateChange { record, replaced })
}

fn call<C: TypedCall>(node: &OffloadNode, to: &NodeName, request: &C::Request) -> Result<C::Reply, String> {
    node.peers.call::<C>(to, request, CALL_TIMEOUT).map_err(|error| error.to_string())
}
