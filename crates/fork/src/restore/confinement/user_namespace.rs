//! What a child in a user namespace of its own has otherwise in its descriptor: what is made for it before it enters is made by
//! the numbers that its users have outside.

use farfork_sys::user_namespace::IdRange;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{
    Credentials, FileStatus, OpenFile, Process, ProcessRelations, SharedObjectKind, Thread,
};

use super::super::RestoreError;

/// Numbers whom things belong to as the node sees it. Who it is itself stays: it becomes that inside.
pub(super) fn map_owner_ids(descriptor: &mut Descriptor, numbers: IdRange) -> Result<(), RestoreError> {
    check_id_mapping(descriptor, numbers)?;
    let outside = |number: &mut u32| {
        let found = numbers.to_host(*number).ok_or_else(|| unmapped_id_error(*number, numbers));
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
    for sender in sockets.flat_map(|socket| &mut socket.received_messages).filter_map(|message| message.sender.as_mut())
    {
        outside(&mut sender.uid)?;
        outside(&mut sender.gid)?;
    }
    Ok(())
}

/// The credentials that a process has before it enters, by the numbers outside.
pub(in super::super) fn map_credentials(credentials: &Credentials, numbers: IdRange) -> Credentials {
    let mut credentials = credentials.clone();
    let ids = credentials.uids.iter_mut().chain(&mut credentials.gids).chain(&mut credentials.groups);
    ids.for_each(|id| *id = numbers.to_host(*id).unwrap_or(*id));
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
    shared.chain(semaphores).chain(queues).chain(terminals).chain(sockets)
}

fn check_id_mapping(descriptor: &Descriptor, numbers: IdRange) -> Result<(), RestoreError> {
    let refuse = |cause: String| Err(RestoreError::UserNamespaceRefused { cause });
    if descriptor.process.pid == 1 {
        return refuse("it is pid 1 of a namespace of its own, which the kernel lets nobody begin there".to_owned());
    }
    let shares = |process_relations: &ProcessRelations| process_relations.shares_fs || process_relations.shares_memory;
    if let Some(member) = descriptor.descendants.iter().find(|member| shares(&member.relations)) {
        let pid = member.process.pid;
        return refuse(format!("its process {pid} shares its working directory or its memory with its parent"));
    }
    check_process_ids(&descriptor.process, &descriptor.threads, numbers)?;
    descriptor.descendants.iter().try_for_each(|member| check_process_ids(&member.process, &member.threads, numbers))
}

fn check_process_ids(process: &Process, threads: &[Thread], numbers: IdRange) -> Result<(), RestoreError> {
    let all = threads.iter().filter_map(|thread| thread.credentials.as_ref()).chain([&process.credentials]);
    let mut ids = all.flat_map(|all| all.uids.iter().chain(&all.gids).chain(&all.groups));
    ids.find(|id| numbers.to_host(**id).is_none()).map_or(Ok(()), |id| Err(unmapped_id_error(*id, numbers)))
}

fn unmapped_id_error(id: u32, numbers: IdRange) -> RestoreError {
    let cause = format!("user or group {id} is not among the {} that it may have, from 0 on", numbers.count);
    RestoreError::UserNamespaceRefused { cause }
}
