//! The clone that the leader makes in the pause, and a second one if the first lacks MADV_DONTFORK memory.

use std::ops::Range;

use farfork_sys::ptrace;

use super::dontfork::{DontforkMemory, address_space_bytes};
use crate::capture::error::CaptureError;
use crate::capture::inheritance::TemplateSearch;
use crate::capture::injection::injector::Injector;
use crate::capture::injection::pages::{InjectionPages, ThreadScript};
use crate::capture::injection::script;
use crate::capture::injection::script_runner::{InjectionTarget, ScriptRunner};
use crate::capture::memory::hugetlb;
use crate::capture::pause::PreparedProcess;
use crate::capture::stop::stop_guard::ProcessSnapshot;
use crate::capture::survey::Survey;
use crate::capture::template::TemplateClone;
use crate::phase;

/// The clone, and the results of making it. Kill its clones only after all processes of the tree were paused: waiting for
/// the end of a clone consumes the reports of other processes.
pub(in crate::capture) struct CloneOutcome {
    /// `None` in freeze mode.
    pub(in crate::capture) clone: Option<TemplateClone>,
    /// An earlier clone, which lacks MADV_DONTFORK memory and must be killed.
    pub(in crate::capture) discarded: Option<TemplateClone>,
    /// The ranges that `discarded` lacks.
    pub(in crate::capture) dontfork_ranges: Result<Vec<Range<u64>>, CaptureError>,
    /// Contents of the process's slots before a second clone overwrote them.
    pub(in crate::capture) saved_slots: Option<Vec<u8>>,
    /// Id of the clone's address space at the pager, if a pager serves the process.
    pub(in crate::capture) address_space: Result<Option<u32>, CaptureError>,
}

impl CloneOutcome {
    /// Returns the outcome if no memory is missing. `clone` is `None` in freeze mode.
    pub(in crate::capture) fn without_dontfork(clone: Option<TemplateClone>) -> Self {
        Self { clone, discarded: None, dontfork_ranges: Ok(Vec::new()), saved_slots: None, address_space: Ok(None) }
    }

    /// Finishes the clone that the leader made with the last call of `leader_script`; `finished_script` holds its results.
    /// Makes another clone if that one lacks memory. Replaces the hugetlbfs memory of the clones.
    pub(in crate::capture) async fn finish_clone(
        leader_script: &ThreadScript,
        finished_script: &[u8],
        snapshot: &ProcessSnapshot,
        prepared: &mut PreparedProcess,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<Self, CaptureError> {
        let last = leader_script.calls.len() - 1;
        let result = script::result_of(finished_script, last);
        let inner_pid = leader_script.calls[last].check_result(prepared.survey.pid, result)?;
        let first = adopt_clone(inner_pid, &prepared.survey, runner.injector).await?;
        let mut outcome = Self::without_dontfork(Some(first));
        outcome.address_space = find_address_space(prepared, runner.pages);
        outcome.dontfork_ranges = match address_space_bytes(snapshot.pid) {
            Ok(mapped) => {
                let ranges = outcome.clone_again(snapshot, mapped, prepared, runner).await;
                let replaced = outcome.replace_hugetlb(mapped, prepared, runner).await;
                ranges.and_then(|areas| replaced.map(|()| areas))
            }
            Err(error) => Err(error),
        };
        Ok(outcome)
    }

    /// Makes a second clone, if needed. Returns the ranges that the first clone lacks.
    async fn clone_again(
        &mut self,
        snapshot: &ProcessSnapshot,
        mapped_bytes: u64,
        prepared: &mut PreparedProcess,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<Vec<Range<u64>>, CaptureError> {
        let Some(first) = &self.clone else { return Ok(Vec::new()) };
        let Some(dontfork_memory) = DontforkMemory::find(snapshot.pid, mapped_bytes, first.pid)? else {
            return Ok(Vec::new());
        };
        if let (Some(search), Ok(Some(space))) = (&mut prepared.template_search, &self.address_space) {
            search.skip_address_space(*space);
        }
        let leader = InjectionTarget::leader(snapshot, &prepared.survey, &prepared.mem);
        let made = dontfork_memory.clone_again(&leader, runner);
        let second = phase!(await "prepare.again", made)?;
        let clone = adopt_clone(second.inner_pid, &prepared.survey, runner.injector).await?;
        self.discarded = self.clone.replace(clone);
        self.saved_slots = Some(second.saved_slots);
        self.address_space = find_address_space(prepared, runner.pages);
        second.remark_result.map(|()| dontfork_memory.ranges)
    }

    /// Replaces hugetlbfs memory in all clones, even after an error in making them.
    async fn replace_hugetlb(
        &self,
        mapped_bytes: u64,
        prepared: &PreparedProcess,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<(), CaptureError> {
        let Some(clone) = &self.clone else { return Ok(()) };
        let discarded = self.discarded.as_ref();
        phase!(await "prepare.huge", hugetlb::replace_hugetlb(prepared, mapped_bytes, clone, discarded, runner))
    }
}

/// Finds the id of the last clone's address space at the pager.
fn find_address_space(
    prepared: &PreparedProcess,
    injection_pages: &InjectionPages,
) -> Result<Option<u32>, CaptureError> {
    let find = |search: &TemplateSearch| phase!("prepare.lineage", search.find_address_space(injection_pages));
    prepared.template_search.as_ref().map_or(Ok(None), find)
}

async fn adopt_clone(
    inner_pid: u64,
    survey: &Survey,
    injector: &mut Injector<'_>,
) -> Result<TemplateClone, CaptureError> {
    let is_filtered = survey.profiles.get(&survey.pid).is_some_and(|leader| leader.status.seccomp != 0);
    let options = if is_filtered { ptrace::OPTION_SUSPEND_SECCOMP } else { 0 };
    TemplateClone::adopt(inner_pid, survey.pid, survey.stat.start_ticks, options, injector).await
}
