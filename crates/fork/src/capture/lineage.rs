//! A process that is a child itself, or was forked by one: what it never touched is still with the seeds that own it, and
//! only its pager knows which pages these are.
//!
//! ```text
//!  before the pause   which number will the clone's space have, at least?
//!  in the pause       clone ─ which space is it?          the kernel told the pager before the clone was complete
//!  after it           its map ─ leave it                  from now on the template is a process like any other
//!  then               map, less what the template has: what is inherited (`pages`)
//! ```
//!
//! Where anything of this goes wrong, areas of the template are still registered, and it is refused for that.

mod pages;

use std::net::SocketAddr;
use std::path::PathBuf;

use farfork_wire::ChildId;
use farfork_wire::descriptor::LAYERS_MAX;

pub(super) use pages::Inheritance;

use super::calls::lifeline::Lifeline;
use super::error::{CaptureError, Refusal};
use super::memory::AddressSpace;
use crate::pager::{ClientError, MemoryPlan, PagerClient, Segment};

/// Who serves the missing pages of a process.
#[derive(Debug, Clone)]
pub struct Lineage {
    /// What asks its pager.
    pub pager: PagerClient,
    /// The child that it is, or that forked it.
    pub child: ChildId,
    /// The child's directory, with the memory plan.
    pub directory: PathBuf,
    /// Where other nodes read the seeds of this one.
    pub address: SocketAddr,
}

/// The search for the template among the spaces of a child.
#[derive(Debug)]
pub(super) struct Search {
    lineage: Lineage,
    pid: i32,
    since: u32,
}

/// What a template was seen to lack, as its pager knows it.
#[derive(Debug)]
pub(super) struct Lack {
    plan: MemoryPlan,
    segments: Vec<Segment>,
    address: SocketAddr,
}

impl Lineage {
    /// Before the pause.
    pub(super) fn search(&self, pid: i32) -> Result<Search, CaptureError> {
        let since = self.pager.next_space(&self.child).map_err(silent(pid))?;
        Ok(Search { lineage: self.clone(), pid, since })
    }
}

impl Search {
    /// The clone of another process was found, which may look like this one's: it is an older space.
    pub(super) fn skip(&mut self, found: u32) {
        self.since = self.since.max(found + 1);
    }

    /// In the pause: the template's space; `None` where the process is not served, since it executes another program or has
    /// all of its pages.
    pub(super) fn find(&self, lifeline: &Lifeline) -> Result<Option<u32>, CaptureError> {
        let Lineage { pager, child, .. } = &self.lineage;
        match pager.find_space(child, self.since, lifeline.mapped().start) {
            Ok(space) => Ok(space),
            // Another process of the child forked at the same moment.
            Err(ClientError::Refused(what)) => Err(CaptureError::Unstable { pid: self.pid, what }),
            Err(error) => Err(silent(self.pid)(error)),
        }
    }

    /// After the pause: what the template of this space lacks. It is not served any more then.
    pub(super) fn take(&self, space: u32) -> Result<Lack, CaptureError> {
        let Lineage { pager, child, directory, address } = &self.lineage;
        let segments = pager.map_of(child, space).map_err(silent(self.pid))?;
        pager.leave(child, space).map_err(silent(self.pid))?;
        let plan = MemoryPlan::read(directory)
            .map_err(|source| CaptureError::Plan { pid: self.pid, source: source.into() })?;
        Ok(Lack { plan, segments, address: *address })
    }
}

impl Lack {
    /// What the template inherits: what it lacks and does not have.
    pub(super) fn inheritance(&self, pid: i32, space: &AddressSpace) -> Result<Inheritance, CaptureError> {
        let held: Vec<_> = space.held().collect();
        let inheritance = Inheritance::of(&self.plan, &self.segments, &held, self.address);
        let seeds = inheritance.layers().len();
        if seeds <= LAYERS_MAX {
            return Ok(inheritance);
        }
        let reason = format!(
            "it has pages of {seeds} seeds, {LAYERS_MAX} at most; have it take them all first (`farfork settle`)"
        );
        Err(CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}"), reason)]))
    }
}

fn silent(pid: i32) -> impl FnOnce(ClientError) -> CaptureError {
    move |source| CaptureError::Pager { pid, source: source.into() }
}
