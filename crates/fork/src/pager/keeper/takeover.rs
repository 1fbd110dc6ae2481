//! The start of a pager: recovers all children that the previous pager served, from the registry and the journals.

use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use farfork_sys::fork::close_all_except;
use farfork_sys::userfaultfd::Userfaultfd;

use super::context::KeeperContext;
use super::registry::ChildRegistry;
use crate::pager::child::zygotes;
use crate::pager::child::{Child, ChildError};
use crate::pager::plan::PlanError;
use crate::pager::server::PagerServer;

/// Recovers the children, closes the unknown descriptors, which belonged to the previous pager, and wakes every waiting
/// thread, so that it faults again.
///
/// # Errors
/// As readdir(3), close_range(2), epoll(7). If a pager cannot start, the keeper starts another.
pub(in crate::pager) fn start_server(keeper_context: &KeeperContext) -> io::Result<PagerServer<'_>> {
    let started = Instant::now();
    let mut keep = keeper_context.descriptors();
    let mut children = Vec::new();
    for (id, dir) in keeper_context.registry().children()? {
        match Child::recover(id.clone(), &dir) {
            Ok(child) => {
                keep.extend(child.descriptors());
                children.push(child);
            }
            Err(error) if is_child_dir_removed(&error) => keeper_context.registry().remove(&id),
            Err(error) => {
                // The child cannot be served, but its userfaultfds must stay open: after a close its threads would read
                // zeroes.
                tracing::error!("child {id} cannot be served, its threads keep waiting: {error}");
                keep.extend(list_userfaultfds()?);
            }
        }
    }
    zygotes::resolve_transferred_spaces(&mut children);
    let unclaimed = find_unclaimed_userfaultfds(&keep)?;
    keep.extend(unclaimed.iter().map(|uffd| uffd.as_raw_fd()));
    close_all_except(&keep)?;
    keeper_context.set_pager_ready();
    // Shorten the time that the pager waits to be scheduled after each sleep: children wait for it.
    if let Err(error) = farfork_sys::sched_slice::set_slice(farfork_sys::sched_slice::SLICE_MIN) {
        tracing::debug!("the pager's scheduler slice cannot be shortened: {error}");
    }
    let mut server = PagerServer::new(keeper_context)?;
    server.unclaimed = unclaimed;
    let count = children.len();
    for child in children {
        server.serve_child(child)?;
    }
    server
        .children
        .values()
        .flat_map(|served| served.child.spaces.values())
        .for_each(|address_space| address_space.wake_all());
    keeper_context.reserve_fds();
    tracing::info!("pager {} serves {count} children after {:?}", std::process::id(), started.elapsed());
    Ok(server)
}

/// Removes the children of an earlier keeper when a keeper starts. The daemon adds again the children whose stubs hold
/// their userfaultfds (`PagerRequest::Reclaim`).
pub(in crate::pager) fn clear_registry(registry: &ChildRegistry) {
    for (id, _) in registry.children().unwrap_or_default() {
        registry.remove(&id);
    }
}

/// Whether the child's directory does not exist. The daemon removes it only after the child has ended.
fn is_child_dir_removed(error: &ChildError) -> bool {
    matches!(error, ChildError::Plan(PlanError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound)
}

impl PagerServer<'_> {
    /// Closes unclaimed userfaultfds whose processes have ended.
    pub(in crate::pager) fn close_unclaimed(&mut self) {
        self.unclaimed
            .extract_if(.., |uffd| uffd.is_process_gone())
            .for_each(|uffd| drop(ManuallyDrop::into_inner(uffd)));
    }

    /// Closes the pidfds of ended holders, if there is a new holder since the last call.
    pub(in crate::pager) fn close_dead_holder_pidfds(&mut self) {
        let holder = self.context.fd_holder_pidfd();
        if std::mem::replace(&mut self.fd_holder_pidfd, holder) != holder
            && let Err(error) = self.context.close_dead_pidfds()
        {
            tracing::debug!("pidfds of earlier holders stay open: {error}");
        }
    }
}

/// Finds userfaultfds of live processes that no journal lists, because a pager was killed just before it recorded them.
/// They must stay open: otherwise the processes would read zeroes.
fn find_unclaimed_userfaultfds(claimed: &[RawFd]) -> io::Result<Vec<ManuallyDrop<Userfaultfd>>> {
    let unknown = list_userfaultfds()?.into_iter().filter(|number| !claimed.contains(number));
    // Userfaultfds of ended processes are closed along with the other unknown descriptors.
    let known = unknown.filter_map(|number| Userfaultfd::from_number(number).ok().map(ManuallyDrop::new));
    let alive: Vec<_> = known.filter(|uffd| !uffd.is_process_gone()).collect();
    if !alive.is_empty() {
        tracing::error!(
            "{} processes are not served and keep waiting: no journal lists their userfaultfds",
            alive.len()
        );
    }
    Ok(alive)
}

/// Lists all userfaultfds of the shared descriptor table.
fn list_userfaultfds() -> io::Result<Vec<RawFd>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_one = fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[userfaultfd]");
        numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()).filter(|_| is_one));
    }
    Ok(numbers)
}
