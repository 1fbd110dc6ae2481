//! System V semaphores and message queues, in the child's IPC namespace, with the parent's ids and keys.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{FileStatus, MessageQueue, SemaphoreSet};

use super::super::RestoreError;
use super::super::plan_layout::STEP_SYSTEM_V;
use super::shared_memory::{IPC_CREAT, IPC_EXCL, IPC_SET, set_next_ipc_id};
use super::{SyscallArgument, SyscallBuilder, abi, value};

pub(super) fn create_ipc_objects(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    for set in &descriptor.semaphore_sets {
        syscall_builder.set_step(STEP_SYSTEM_V, set.id);
        create_semaphore_set(syscall_builder, set)?;
    }
    for queue in &descriptor.message_queues {
        syscall_builder.set_step(STEP_SYSTEM_V, queue.id);
        create_message_queue(syscall_builder, queue)?;
    }
    Ok(())
}

fn create_semaphore_set(syscall_builder: &mut SyscallBuilder<'_>, set: &SemaphoreSet) -> Result<(), RestoreError> {
    const SETALL: u32 = 17;
    let SemaphoreSet { key, id, status, values } = set;
    set_next_ipc_id("/proc/sys/kernel/sem_next_id", *id, syscall_builder)?;
    let flags = status.mode | IPC_CREAT | IPC_EXCL;
    syscall_builder.call_expecting((*id).into(), abi::SEMGET, &[value(*key), value(values.len() as u64), value(flags)]);
    let values: Vec<u8> = values.iter().flat_map(|count| count.to_ne_bytes()).collect();
    let values = syscall_builder.bytes_argument(&values)?;
    syscall_builder.call_expecting(0, abi::SEMCTL, &[value(*id), value(0_u32), value(SETALL), values]);
    // Set the owner last: afterwards, the restorer may lack permission.
    let owner = syscall_builder.words_argument(&encode_ipc_ds(*status, None))?;
    syscall_builder.call_expecting(0, abi::SEMCTL, &[value(*id), value(0_u32), value(IPC_SET), owner]);
    Ok(())
}

fn create_message_queue(syscall_builder: &mut SyscallBuilder<'_>, queue: &MessageQueue) -> Result<(), RestoreError> {
    const IPC_NOWAIT: u32 = 0o4000;
    let MessageQueue { key, id, status, bytes_max, messages } = queue;
    set_next_ipc_id("/proc/sys/kernel/msg_next_id", *id, syscall_builder)?;
    let flags = status.mode | IPC_CREAT | IPC_EXCL;
    syscall_builder.call_expecting((*id).into(), abi::MSGGET, &[value(*key), value(flags)]);
    let owner = syscall_builder.words_argument(&encode_ipc_ds(*status, Some(*bytes_max)))?;
    syscall_builder.call_expecting(0, abi::MSGCTL, &[value(*id), value(IPC_SET), owner]);
    for (kind, text) in messages {
        let message: Vec<u8> = kind.to_ne_bytes().iter().chain(text).copied().collect();
        let sent: [SyscallArgument; 4] =
            [value(*id), syscall_builder.bytes_argument(&message)?, value(text.len() as u64), value(IPC_NOWAIT)];
        syscall_builder.call_expecting(0, abi::MSGSND, &sent);
    }
    Ok(())
}

/// Encodes the part of `struct semid64_ds` and `struct msqid64_ds` that IPC_SET reads. Both begin with key, uid, gid,
/// two creator ids and mode (32 bits each). For a queue, the twelfth word is its limit in bytes.
fn encode_ipc_ds(status: FileStatus, bytes_max: Option<u64>) -> [u64; 16] {
    let mut words = [0; 16];
    words[0] = u64::from(status.uid) << 32;
    words[1] = status.gid.into();
    words[2] = u64::from(status.mode) << 32;
    words[11] = bytes_max.unwrap_or(0);
    words
}
