//! System V semaphores and message queues, which belong to a namespace, not to a process (sysvipc(7)).
//!
//! A semaphore set is carried if the process was the last to change one of its semaphores; a queue, if the process was the
//! last to send or receive. The kernel shows neither other users of an object nor the creating process. An object that was
//! never used is carried if the process's user created it. SEM_UNDO is not carried, as after fork(2).

use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use farfork_sys::system_v;
use farfork_wire::descriptor::{FileStatus, MessageQueue, SemaphoreSet};

use super::sysv_shm::{has_foreign_ipc_namespace, run_in_ipc_namespace};
use crate::capture::error::{CaptureError, Refusal};

/// Mode bits that are carried.
const PERMISSIONS: u32 = 0o777;

/// Attributes of an object that do not change.
#[derive(Debug, Clone, Copy)]
struct IpcIdentity {
    key: u32,
    id: u32,
    status: FileStatus,
}

/// The objects that a process uses, found before it is stopped.
#[derive(Debug, Default)]
pub(super) struct IpcSources {
    sets: Vec<(IpcIdentity, u32)>,
    queues: Vec<IpcIdentity>,
    /// Whether the objects are in another IPC namespace than this process.
    is_foreign_namespace: bool,
}

/// The contents of the objects, read while the process was stopped.
#[derive(Debug, Default)]
pub(super) struct IpcCopies {
    pub(super) sets: Vec<SemaphoreSet>,
    pub(super) queues: Vec<MessageQueue>,
}

impl IpcSources {
    /// Finds the objects of `pid`.
    pub(super) fn find(pid: i32) -> Result<Self, CaptureError> {
        let failed = CaptureError::reading(pid, "System V semaphores and message queues");
        let find = || -> io::Result<Self> {
            let is_elsewhere = has_foreign_ipc_namespace(pid)?;
            let found = run_in_ipc_namespace(pid, is_elsewhere, move || Self::list(pid))?;
            Ok(Self { is_foreign_namespace: is_elsewhere, ..found })
        };
        find().map_err(failed)
    }

    /// Adds the objects of another process of the tree, which has the same namespace.
    pub(super) fn merge(&mut self, others: Self) {
        for (set, count) in others.sets {
            if !self.sets.iter().any(|(known, _)| known.id == set.id) {
                self.sets.push((set, count));
            }
        }
        for queue in others.queues {
            if !self.queues.iter().any(|known| known.id == queue.id) {
                self.queues.push(queue);
            }
        }
    }

    /// Lists the objects in the namespace of the calling thread.
    fn list(pid: i32) -> io::Result<Self> {
        if !system_v::has_semaphores_or_queues()? {
            return Ok(Self::default());
        }
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let user = fs::metadata(format!("/proc/{pid}"))?.uid();
        let sets = fs::read_to_string("/proc/sysvipc/sem")?;
        let queues = list_own_queues(&fs::read_to_string("/proc/sysvipc/msg")?, pid, user);
        let mut found = Self { queues, ..Self::default() };
        for ListedSemaphoreSet { identity, count, creator_uid: maker, was_changed } in
            parse_semaphore_sets(&sets).ok_or_else(malformed)?
        {
            // A set that was removed since it was listed counts as unused by the process.
            let last = |number| system_v::semaphore_last_pid(identity.id, number).ok();
            let is_used = (0..count).any(|number| last(number) == Some(pid));
            let is_new = || maker == user && !was_changed && (0..count).all(|number| last(number) == Some(0));
            if is_used || is_new() {
                found.sets.push((identity, count));
            }
        }
        Ok(found)
    }

    /// Reads the contents. The process is stopped; others may run.
    pub(super) fn copy(self, pid: i32) -> Result<IpcCopies, CaptureError> {
        if self.sets.is_empty() && self.queues.is_empty() {
            return Ok(IpcCopies::default());
        }
        let copied = run_in_ipc_namespace(pid, self.is_foreign_namespace, move || self.read());
        copied.map_err(|error| match error.raw_os_error() {
            // The object was removed, or replaced by another one.
            Some(EINVAL | EIDRM) => {
                CaptureError::Unstable { pid, what: "its System V semaphores and message queues".to_owned() }
            }
            Some(E2BIG) => CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}"), FULL_QUEUE_REASON)]),
            _ => CaptureError::reading(pid, "System V semaphores and message queues")(error),
        })
    }

    fn read(&self) -> io::Result<IpcCopies> {
        let mut copies = IpcCopies::default();
        for (IpcIdentity { key, id, status }, count) in self.sets.iter().copied() {
            copies.sets.push(SemaphoreSet { key, id, status, values: system_v::read_semaphores(id, count)? });
        }
        for IpcIdentity { key, id, status } in self.queues.iter().copied() {
            let (bytes_max, mut messages) = (system_v::read_queue_limit(id)?, Vec::new());
            let room = usize::try_from(bytes_max).unwrap_or(usize::MAX);
            while let Some(message) = system_v::peek_message(id, messages.len() as u32, room)? {
                messages.push(message);
            }
            if messages.iter().map(|(_, text)| text.len()).sum::<usize>() > room {
                return Err(io::Error::from_raw_os_error(E2BIG));
            }
            copies.queues.push(MessageQueue { key, id, status, bytes_max, messages });
        }
        Ok(copies)
    }
}

const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const EIDRM: i32 = rustix::io::Errno::IDRM.raw_os_error();
const E2BIG: i32 = rustix::io::Errno::TOOBIG.raw_os_error();

/// A child could not send the messages to its queue again.
const FULL_QUEUE_REASON: &str = "a System V message queue that it has used holds more bytes than its limit (msg_qbytes), which \
     was lowered since: not carried; let the process receive the messages first, or raise the limit (msgctl(2))";

/// A semaphore set, as `/proc/sysvipc/sem` lists it.
#[derive(Debug)]
struct ListedSemaphoreSet {
    identity: IpcIdentity,
    count: u32,
    /// The user that created it.
    creator_uid: u32,
    /// Whether semop(2) has changed it.
    was_changed: bool,
}

/// Columns: key, id, mode in octal, count, uid, gid, uid and gid of the creator, time of the last change, and more.
fn parse_semaphore_sets(text: &str) -> Option<Vec<ListedSemaphoreSet>> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let (count, maker, was_changed) = (number(3)? as u32, number(6)? as u32, number(8)? != 0);
        Some(ListedSemaphoreSet { identity: parse_identity(&words, 4)?, count, creator_uid: maker, was_changed })
    };
    text.lines().skip(1).map(line).collect()
}

/// Lists queues that the process was the last to send to or receive from, and unused ones that its user created. Columns:
/// key, id, mode in octal, bytes, messages, last sender, last receiver, uid, gid, uid and gid of the creator, times sent and
/// received, and more.
fn list_own_queues(text: &str, pid: i32, user: u32) -> Vec<IpcIdentity> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_own = words.get(5..7)?.iter().any(|word| word.parse() == Ok(pid));
        let unused = [4, 5, 6, 11, 12].map(|at| words.get(at).copied());
        let is_new = || words.get(9)?.parse().ok().filter(|maker: &u32| *maker == user && unused == [Some("0"); 5]);
        if is_own || is_new().is_some() { parse_identity(&words, 7) } else { None }
    };
    text.lines().skip(1).filter_map(line).collect()
}

fn parse_identity(words: &[&str], owner_at: usize) -> Option<IpcIdentity> {
    let number = |at: usize| words.get(at)?.parse::<u32>().ok();
    let mode = u32::from_str_radix(words.get(2)?, 8).ok()? & PERMISSIONS;
    let status = FileStatus { mode, uid: number(owner_at)?, gid: number(owner_at + 1)? };
    Some(IpcIdentity { key: words.first()?.parse::<i32>().ok()?.cast_unsigned(), id: number(1)?, status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_semaphore_sets_and_message_queues_are_parsed() {
        let sets = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n\
                    -559038737      32769   600          3  1000   100  1000   100 1700000000 1700000000\n";
        let parsed = parse_semaphore_sets(sets).unwrap();
        let [ListedSemaphoreSet { identity: set, count: 3, creator_uid: 1000, was_changed: true }] = &parsed[..] else {
            panic!("{parsed:?}")
        };
        assert_eq!((set.key, set.id, set.status.mode, set.status.gid), (0xdead_beef, 32769, 0o600, 100));
        let queues = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n\
                      5  0  640  12  1  77  78  1000  100  1000  100  1  1  1\n\
                      6  1  600  0  0  0  0  1000  100  7  100  0  0  1\n";
        assert_eq!(list_own_queues(queues, 78, 0)[0].status, FileStatus { mode: 0o640, uid: 1000, gid: 100 });
        assert_eq!(list_own_queues(queues, 79, 7)[0].key, 6);
        assert!(list_own_queues(queues, 79, 1000).is_empty() && parse_semaphore_sets("header\n1 2\n").is_none());
    }
}
