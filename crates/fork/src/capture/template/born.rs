//! The clone that the leader makes in the pause; a second one where the first lacks what the process keeps from fork(2).

use std::ops::Range;

use farfork_sys::ptrace;

use super::unforked::{Unforked, mapped_bytes};
use crate::capture::calls::inject::Injector;
use crate::capture::calls::lifeline::{Lifeline, Task};
use crate::capture::calls::script;
use crate::capture::error::CaptureError;
use crate::capture::lineage::Search;
use crate::capture::memory::huge;
use crate::capture::pause::Prepared;
use crate::capture::stop::stopped::StoppedThread;
use crate::capture::survey::Survey;
use crate::capture::template::Clone;
use crate::phase;

/// The clone, and what came of making it. Who has it ends its clones when all processes of the tree have gone through the pause:
/// to wait for an end takes others' reports.
pub(in crate::capture) struct Born {
    /// `None` in freeze mode.
    pub(in crate::capture) clone: Option<Clone>,
    /// One before it, which lacked what a fork does not hand down; to be ended.
    pub(in crate::capture) outdone: Option<Clone>,
    /// What that is.
    pub(in crate::capture) unforked: Result<Vec<Range<u64>>, CaptureError>,
    /// What the desks hold in the process, where more was written to them for a second clone.
    pub(in crate::capture) desks_before: Option<Vec<u8>>,
    /// The number that the process's pager has for the clone, where it has one.
    pub(in crate::capture) template_space: Result<Option<u32>, CaptureError>,
}

impl Born {
    /// Nothing lacks in what there is: in freeze mode, no clone.
    pub(in crate::capture) fn complete(clone: Option<Clone>) -> Self {
        Self { clone, outdone: None, unforked: Ok(Vec::new()), desks_before: None, template_space: Ok(None) }
    }

    /// The clone that the leader made with the last call of its task, and another where that lacks something.
    pub(in crate::capture) async fn of(
        (task, script): (&Task, &[u8]),
        leader: &StoppedThread,
        prepared: &mut Prepared,
        lifeline: &Lifeline,
        injector: &mut Injector<'_>,
    ) -> Result<Self, CaptureError> {
        let last = task.calls.len() - 1;
        let inner_pid = task.calls[last].checked(prepared.survey.pid, script::result(script, last))?;
        let first = clone_of(inner_pid, &prepared.survey, injector).await?;
        let mut born = Self::complete(Some(first));
        born.template_space = space(prepared, lifeline);
        born.unforked = match mapped_bytes(leader.tid) {
            Ok(mapped) => {
                let unforked = born.again((leader, mapped), prepared, lifeline, injector).await;
                let replaced = born.replace_huge((mapped, lifeline), prepared, injector).await;
                unforked.and_then(|areas| replaced.map(|()| areas))
            }
            Err(error) => Err(error),
        };
        Ok(born)
    }

    /// Makes the second clone, where it takes one: what it has that the first lacks.
    async fn again(
        &mut self,
        (leader, mapped_bytes): (&StoppedThread, u64),
        prepared: &mut Prepared,
        lifeline: &Lifeline,
        injector: &mut Injector<'_>,
    ) -> Result<Vec<Range<u64>>, CaptureError> {
        let Some(first) = &self.clone else { return Ok(Vec::new()) };
        let Some(unforked) = Unforked::of((leader.tid, mapped_bytes), first.pid)? else { return Ok(Vec::new()) };
        if let (Some(search), Ok(Some(space))) = (&mut prepared.search, &self.template_space) {
            search.skip(*space);
        }
        let whose = (leader, prepared.survey.inner_id());
        let made = unforked.clone_with(whose, (lifeline, &prepared.mem), injector);
        let second = phase!(await "prepare.again", made)?;
        let clone = clone_of(second.inner_pid, &prepared.survey, injector).await?;
        self.outdone = self.clone.replace(clone);
        self.desks_before = Some(second.desks_before);
        self.template_space = space(prepared, lifeline);
        second.marked.map(|()| unforked.areas)
    }

    /// What no clone may keep is replaced in all there are, whatever came of making them.
    async fn replace_huge(
        &self,
        (mapped_bytes, lifeline): (u64, &Lifeline),
        prepared: &Prepared,
        injector: &mut Injector<'_>,
    ) -> Result<(), CaptureError> {
        let Some(clone) = &self.clone else { return Ok(()) };
        let (mapped, clones) = ((mapped_bytes, lifeline.mapped()), (clone, self.outdone.as_ref()));
        phase!(await "prepare.huge", huge::replace((&prepared.survey, &prepared.mem), mapped, clones, injector))
    }
}

/// Which space the process's pager has for the clone that was made last.
fn space(prepared: &Prepared, lifeline: &Lifeline) -> Result<Option<u32>, CaptureError> {
    let find = |search: &Search| phase!("prepare.lineage", search.find(lifeline));
    prepared.search.as_ref().map_or(Ok(None), find)
}

async fn clone_of(inner_pid: u64, survey: &Survey, injector: &mut Injector<'_>) -> Result<Clone, CaptureError> {
    let is_filtered = survey.profiles.get(&survey.pid).is_some_and(|leader| leader.status.seccomp != 0);
    let options = if is_filtered { ptrace::OPTION_SUSPEND_SECCOMP } else { 0 };
    Clone::born(inner_pid, survey.pid, survey.stat.start_ticks, options, injector).await
}
