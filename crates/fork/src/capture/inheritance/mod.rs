//! Pages that a process inherits from other seeds: the process is a child of a seed, or was forked by such a child.
//!
//! A page that the process never touched exists only in the seed that owns it, and only the pager knows these pages.
//! `attempt`, `pause` and `template` call this module. If a step fails, mappings of the template are still registered with
//! the pager, and the capture refuses such a template.

mod pages;

use std::net::SocketAddr;
use std::path::PathBuf;

use farfork_wire::ChildId;
use farfork_wire::descriptor::LAYERS_MAX;

pub(super) use pages::InheritedPages;

use super::error::{CaptureError, Refusal};
use super::injection::pages::InjectionPages;
use super::memory::TemplateMemory;
use crate::pager::{ClientError, MapSegment, MemoryPlan, PagerClient};

/// The pager that serves the missing pages of a process.
#[derive(Debug, Clone)]
pub struct ServingPager {
    /// Client of the pager.
    pub pager: PagerClient,
    /// The child that this process belongs to.
    pub child: ChildId,
    /// The child's directory, with the memory plan.
    pub directory: PathBuf,
    /// The directory of the node that is the child's root, if it is not the node's root.
    pub root: Option<String>,
    /// Address at which other nodes read the seeds of this node.
    pub address: SocketAddr,
}

//  before the pause   start_search: the lowest number that the clone's address space can get at the pager
//  in the pause       clone ─ find_address_space: the kernel reports a clone to the pager before it is complete
//  after it           release_address_space: its map. From now on the template is a process like any other.
/// The search for the template among the address spaces of a child.
#[derive(Debug)]
pub(super) struct TemplateSearch {
    pager: ServingPager,
    pid: i32,
    first_number: u32,
}

/// The pages that a template lacks, as its pager knows them.
#[derive(Debug)]
pub(super) struct MissingPages {
    plan: MemoryPlan,
    segments: Vec<MapSegment>,
    address: SocketAddr,
}

impl ServingPager {
    /// Starts the search, before the pause.
    pub(super) fn start_search(&self, pid: i32) -> Result<TemplateSearch, CaptureError> {
        let since = self.pager.next_space_id(&self.child).map_err(pager_error(pid))?;
        Ok(TemplateSearch { pager: self.clone(), pid, first_number: since })
    }
}

impl TemplateSearch {
    /// Skips the address space of another process's clone, which may have its injection pages at the same address.
    pub(super) fn skip_address_space(&mut self, found: u32) {
        self.first_number = self.first_number.max(found + 1);
    }

    /// Finds the template's address space in the pause. `None` if the pager does not serve the process: it executes another
    /// program, or has all of its pages.
    pub(super) fn find_address_space(&self, injection_pages: &InjectionPages) -> Result<Option<u32>, CaptureError> {
        let ServingPager { pager, child, .. } = &self.pager;
        match pager.find_space(child, self.first_number, injection_pages.mapped_range().start) {
            Ok(space) => Ok(space),
            // Another process of the child has forked at the same time.
            Err(ClientError::Refused(what)) => Err(CaptureError::Unstable { pid: self.pid, what }),
            Err(error) => Err(pager_error(self.pid)(error)),
        }
    }

    /// Reads which pages the template lacks, and makes the pager close the template's address space. Called after the pause.
    pub(super) fn release_address_space(&self, space: u32) -> Result<MissingPages, CaptureError> {
        let ServingPager { pager, child, directory, address, .. } = &self.pager;
        let segments = pager.list_segments(child, space).map_err(pager_error(self.pid))?;
        pager.close_space(child, space).map_err(pager_error(self.pid))?;
        let plan = MemoryPlan::read(directory)
            .map_err(|source| CaptureError::Plan { pid: self.pid, source: source.into() })?;
        Ok(MissingPages { plan, segments, address: *address })
    }
}

impl MissingPages {
    /// Returns the pages that the template inherits: listed by the pager, and not present in the template.
    pub(super) fn inherited_pages(&self, pid: i32, space: &TemplateMemory) -> Result<InheritedPages, CaptureError> {
        let populated: Vec<_> = space.populated_ranges().collect();
        let inherited = InheritedPages::from_plan(&self.plan, &self.segments, &populated, self.address);
        let seeds = inherited.layers().len();
        if seeds <= LAYERS_MAX {
            return Ok(inherited);
        }
        let reason = format!("it has pages of {seeds} seeds, {LAYERS_MAX} at most; settle it first (`farfork settle`)");
        Err(CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}"), reason)]))
    }
}

fn pager_error(pid: i32) -> impl FnOnce(ClientError) -> CaptureError {
    move |source| CaptureError::Pager { pid, source: source.into() }
}
