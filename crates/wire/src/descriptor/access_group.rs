//! The access group of a seed: the seed's parent process, and the credentials that ptrace(2) compares before it permits
//! access to that process ("access mode checking").

use std::collections::BTreeSet;

use super::{Credentials, Descriptor, Origin, Process, Thread};
use crate::NodeName;

/// Values that the kernel compares when a process accesses a thread's memory, descriptors or root.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PtraceCredentials<'a> {
    credentials: &'a Credentials,
    /// PR_GET_DUMPABLE.
    dumpable: u32,
}

impl<'a> PtraceCredentials<'a> {
    fn from_thread(process: &'a Process, thread: &'a Thread) -> Self {
        let credentials = thread.credentials.as_ref().unwrap_or(&process.credentials);
        Self { credentials, dumpable: process.dumpable }
    }
}

impl Descriptor {
    /// Returns a key that is equal for seeds of the same parent with equal credentials. A process that ptrace(2) permits to
    /// access a child of one of these seeds may also access the children of the others.
    ///
    /// `owner` is the node that provided the descriptor. The key contains it instead of `Origin::node`, which a hostile
    /// descriptor may forge. The key is opaque.
    pub fn access_group_key(&self, owner: &NodeName) -> String {
        let Origin { boot_id, parent_pid, parent_start_ticks, .. } = &self.origin;
        let threads =
            self.process_views().flat_map(|part| part.threads.iter().map(move |thread| (part.process, thread)));
        let rights: BTreeSet<PtraceCredentials<'_>> =
            threads.map(|(process, thread)| PtraceCredentials::from_thread(process, thread)).collect();
        format!("{owner} {boot_id:?} {parent_pid}@{parent_start_ticks} {rights:?}")
    }
}
