//! How a pager begins: with everything that the registry and the journals say its predecessor served.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::time::Instant;

use farfork_sys::fork::close_all_but;

use super::registry::Registry;
use super::station::Station;
use crate::pager::child::settle::Settling;
use crate::pager::child::zygotes;
use crate::pager::child::{Child, ChildError, LOST_FILE};
use crate::pager::journal::Journal;
use crate::pager::plan::PlanError;
use crate::pager::server::Server;

/// Reads what was served, closes what nobody knows (the predecessor's own descriptors), and has every waiting thread
/// ask again.
///
/// # Errors
/// As readdir(3), close_range(2), epoll(7): a pager that cannot begin lets the next one try.
pub(in crate::pager) fn begin(station: &Station) -> io::Result<Server<'_>> {
    let started = Instant::now();
    let mut keep = station.descriptors();
    let mut children = Vec::new();
    for (id, dir) in station.registry().children()? {
        match Child::recover(id.clone(), &dir) {
            Ok(child) => {
                keep.extend(child.descriptors());
                children.push(child);
            }
            Err(error) if is_removed(&error) => station.registry().strike(&id),
            Err(error) => {
                // It cannot be served, but its threads must go on waiting: closing would have them read zeroes.
                tracing::error!("child {id} cannot be served and is left waiting: {error}");
                keep.extend(userfaultfds()?);
            }
        }
    }
    zygotes::leave_to_children(&mut children);
    close_all_but(&keep)?;
    // Children wait for every turn of it, and it waits for owners in between.
    if let Err(error) = farfork_sys::turn::set(farfork_sys::turn::SHORTEST) {
        tracing::debug!("the pager has turns as long as anybody's: {error}");
    }
    let mut server = Server::new(station)?;
    let count = children.len();
    for child in children {
        server.take_in(child)?;
    }
    server.children.values().flat_map(|served| served.child.spaces.values()).for_each(|space| space.wake_all());
    station.reserve_descriptors();
    tracing::info!("pager {} serves {count} children after {:?}", std::process::id(), started.elapsed());
    Ok(server)
}

/// Writes down, when a keeper begins, that children of an earlier one lost their memory: nobody held their
/// userfaultfds, so that missing pages have read as zeroes since.
pub(in crate::pager) fn write_off(registry: &Registry) {
    for (id, dir) in registry.children().unwrap_or_default() {
        // What a settled child misses is zero anyway.
        let is_settled = Settling::recover(&dir).is_settled();
        if !is_settled && Journal::open(&dir).is_ok_and(|(_, replay)| replay.is_running()) {
            let text = format!(
                "child {id} lost its memory: its pager and keeper were killed together, missing pages read as zeroes; end it and fork again"
            );
            tracing::error!("{text}");
            let _ = fs::write(dir.join(LOST_FILE), format!("{text}\n"));
        }
        registry.strike(&id);
    }
}

/// Whether the daemon removed the child's directory, which it does only after the child's end.
fn is_removed(error: &ChildError) -> bool {
    matches!(error, ChildError::Plan(PlanError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound)
}

/// All userfaultfds of the table, whoever they belong to.
fn userfaultfds() -> io::Result<Vec<RawFd>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_one = fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[userfaultfd]");
        numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()).filter(|_| is_one));
    }
    Ok(numbers)
}
