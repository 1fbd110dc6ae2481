//! What an untrusted child has less of than its parent: it is its descriptor that is changed, so that whatever restores any child
//! does the rest. What its container shows it no more is the container's business.
//!
//! Each thread of each process gets, on top of what the parent had, no capabilities, no way to new ones, and a filter of system
//! calls. The filter is the first of a thread's: the kernel asks all of them and goes by the strictest answer, whatever the
//! order, and one of the parent's may forbid to install further ones. All are installed by the last steps of a thread's
//! restoring (`restorer/threads.c`), when nothing of it needs a right any more.

mod seccomp_filter;
mod user_namespace;

use farfork_container::OOM_SCORE_ADJUSTMENT;
use farfork_sys::user_namespace::IdRange;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Credentials, Process, SeccompFilter, Thread};

use super::RestoreError;

pub(super) use user_namespace::map_credentials;

/// The seed's state as an untrusted child is to have it; `numbers`: its users are its own.
pub(crate) fn confine_descriptor(
    descriptor: &Descriptor,
    numbers: Option<IdRange>,
) -> Result<Descriptor, RestoreError> {
    let mut descriptor = descriptor.clone();
    if let Some(numbers) = numbers {
        user_namespace::map_owner_ids(&mut descriptor, numbers)?;
    }
    confine_process(&mut descriptor.process, &mut descriptor.threads);
    for member in &mut descriptor.descendants {
        confine_process(&mut member.process, &mut member.threads);
    }
    Ok(descriptor)
}

fn confine_process(process: &mut Process, threads: &mut [Thread]) {
    // A container's place is what it has anyway; nothing of /proc can be written there.
    process.oom_score_adj = process.oom_score_adj.min(OOM_SCORE_ADJUSTMENT);
    drop_capabilities(&mut process.credentials);
    let ours = process.seccomp_filters.len() as u32;
    process.seccomp_filters.push(SeccompFilter { flags: 0, instructions: seccomp_filter::encode_filter() });
    for thread in threads {
        if let Some(credentials) = &mut thread.credentials {
            drop_capabilities(credentials);
        }
        thread.seccomp_filters.insert(0, ours);
    }
}

fn drop_capabilities(credentials: &mut Credentials) {
    credentials.capabilities_inheritable = 0;
    credentials.capabilities_permitted = 0;
    credentials.capabilities_effective = 0;
    credentials.capabilities_bounding = 0;
    credentials.capabilities_ambient = 0;
    credentials.no_new_privileges = true;
}
