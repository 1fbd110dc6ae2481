//! Changes the descriptor of a child in its own user namespace: maps the owners of its objects to ids outside of the
//! namespace, because the objects are created before the child enters it. The credentials of the child's processes are
//! not changed, because they become valid inside.

use farfork_sys::user_namespace::IdRange;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{
    Credentials, FileStatus, OpenFile, Process, ProcessRelations, SharedObjectKind, Thread,
};

use super::super::RestoreError;

/// Maps the owner ids of objects to ids outside of the namespace. Fails for a descriptor that the kernel does not allow
/// in a user namespace.
pub(super) fn map_owner_ids(descriptor: &mut Descriptor, id_map: IdRange) -> Result<(), RestoreError> {
    check_id_mapping(descriptor, id_map)?;
    let outside = |number: &mut u32| {
        let found = id_map.to_host(*number).ok_or_else(|| unmapped_id_error(*number, id_map));
        found.map(|found| *number = found)
    };
    for status in file_statuses_mut(descriptor) {
        outside(&mut status.uid)?;
        outside(&mut status.gid)?;
    }
    let sockets = descriptor.open_files.iter_mut().filter_map(|file| match file {
        OpenFile::Socket(socket) => Some(socket),
        _ => None,
    });
    for peer in descriptor.open_file_attributes.iter_mut().filter_map(|attributes| attributes.peer.as_mut()) {
        outside(&mut peer.uid)?;
        outside(&mut peer.gid)?;
        peer.groups.iter_mut().try_for_each(outside)?;
    }
    for sender in sockets.flat_map(|socket| &mut socket.received_messages).filter_map(|message| message.sender.as_mut())
    {
        outside(&mut sender.uid)?;
        outside(&mut sender.gid)?;
    }
    Ok(())
}

/// Returns the credentials of a process before it enters its namespace, with ids outside.
pub(in super::super) fn map_credentials(credentials: &Credentials, id_map: IdRange) -> Credentials {
    let mut credentials = credentials.clone();
    let ids = credentials.uids.iter_mut().chain(&mut credentials.gids).chain(&mut credentials.groups);
    ids.for_each(|id| *id = id_map.to_host(*id).unwrap_or(*id));
    credentials
}

fn file_statuses_mut(descriptor: &mut Descriptor) -> impl Iterator<Item = &mut FileStatus> {
    let shared = descriptor.shared_objects.iter_mut().filter_map(|object| match &mut object.kind {
        SharedObjectKind::Anonymous => None,
        SharedObjectKind::MemFd(status)
        | SharedObjectKind::DeletedFile(status)
        | SharedObjectKind::PosixShm { status, .. }
        | SharedObjectKind::SystemV { status, .. } => Some(status),
    });
    let semaphores = descriptor.semaphore_sets.iter_mut().map(|set| &mut set.status);
    let queues = descriptor.message_queues.iter_mut().map(|queue| &mut queue.status);
    let terminals = descriptor.terminals.iter_mut().filter_map(|terminal| terminal.status.as_mut());
    let sockets = descriptor.open_files.iter_mut().filter_map(|file| match file {
        OpenFile::Socket(socket) => socket.file.as_mut().map(|file| &mut file.status),
        _ => None,
    });
    let unnamed = descriptor.open_file_attributes.iter_mut().filter_map(|attributes| attributes.status.as_mut());
    shared.chain(semaphores).chain(queues).chain(terminals).chain(sockets).chain(unnamed)
}

fn check_id_mapping(descriptor: &Descriptor, id_map: IdRange) -> Result<(), RestoreError> {
    let refuse = |cause: String| Err(RestoreError::UserNamespaceRefused { cause });
    if descriptor.process.pid == 1 {
        return refuse(
            "it is pid 1 of its own pid namespace, which the kernel does not allow in a user namespace".to_owned(),
        );
    }
    let shares = |process_relations: &ProcessRelations| process_relations.shares_fs || process_relations.shares_memory;
    if let Some(member) = descriptor.descendants.iter().find(|member| shares(&member.relations)) {
        let pid = member.process.pid;
        return refuse(format!("its process {pid} shares its working directory or its memory with its parent"));
    }
    check_process_ids(&descriptor.process, &descriptor.threads, id_map)?;
    descriptor.descendants.iter().try_for_each(|member| check_process_ids(&member.process, &member.threads, id_map))
}

fn check_process_ids(process: &Process, threads: &[Thread], id_map: IdRange) -> Result<(), RestoreError> {
    let all = threads.iter().filter_map(|thread| thread.credentials.as_ref()).chain([&process.credentials]);
    let mut ids = all.flat_map(|all| all.uids.iter().chain(&all.gids).chain(&all.groups));
    ids.find(|id| id_map.to_host(**id).is_none()).map_or(Ok(()), |id| Err(unmapped_id_error(*id, id_map)))
}

fn unmapped_id_error(id: u32, id_map: IdRange) -> RestoreError {
    let cause = format!("user or group {id} is not among the {} that it may have, from 0 on", id_map.count);
    RestoreError::UserNamespaceRefused { cause }
}
