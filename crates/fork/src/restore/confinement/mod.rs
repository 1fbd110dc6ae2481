//! Confines an untrusted child: changes its descriptor, so that the ordinary restore applies the limits. Each thread of
//! each process gets no capabilities, no way to gain any, and one more seccomp filter (`seccomp_filter`). For a child
//! in its own user namespace, `user_namespace` maps the owners of its objects. The container limits what the child can
//! see (`farfork_container`).

mod seccomp_filter;
mod user_namespace;

use farfork_container::OOM_SCORE_ADJUSTMENT;
use farfork_sys::user_namespace::IdRange;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Credentials, Process, SeccompFilter, Thread};

use super::RestoreError;

pub use seccomp_filter::encode_filter;
pub(super) use user_namespace::map_credentials;

/// Returns the descriptor of an untrusted child of a seed. With `id_map`, the child has its own user namespace.
pub(crate) fn confine_descriptor(descriptor: &Descriptor, id_map: Option<IdRange>) -> Result<Descriptor, RestoreError> {
    let mut descriptor = descriptor.clone();
    if let Some(id_map) = id_map {
        user_namespace::map_owner_ids(&mut descriptor, id_map)?;
    }
    confine_process(&mut descriptor.process, &mut descriptor.threads);
    for member in &mut descriptor.descendants {
        confine_process(&mut member.process, &mut member.threads);
    }
    Ok(descriptor)
}

/// Adds the filter as the first of each thread, because a filter of the parent may forbid installing more. The kernel
/// runs all filters and applies the strictest result, in any order. Every process of a tree installs the filter before
/// any of them runs (`seccomp_filters`).
fn confine_process(process: &mut Process, threads: &mut [Thread]) {
    // The container's processes already have this score, and the child cannot write another to /proc.
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
