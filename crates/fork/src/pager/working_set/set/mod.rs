//! `WorkingSet`: a seed's working set, as its owner keeps it. It has the pages in the order in which children touch
//! them, and the evidence for each. New reports update it; `shared_set` calls it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use farfork_wire::descriptor::ExtentId;

use super::codec::{decode_set, encode_set};
use super::{AccessReport, MarkedRun, SET_PAGES_MAX, TRIAL_FRACTION};

/// A page is removed when this many children in a row had it on trial and did not touch it. More than one, because a
/// child may end early.
const UNTOUCHED_TRIALS_MAX: u8 = 2;

/// Maximum number of faults that a trial risks for one child. Together they take half a millisecond.
const TRIAL_FAULTS_MAX: usize = 8;

/// Maximum number of neighbours that are on trial as one group: as many as readahead fetches at the second fault of a
/// region.
const TRIAL_GROUP_MAX: usize = 32;

/// Maximum number of pages that are on trial for one child.
const ON_TRIAL_MAX: usize = TRIAL_FAULTS_MAX * TRIAL_GROUP_MAX;

type ExtentPage = (ExtentId, u64);

/// A page of the set.
#[derive(Debug, Clone, Copy)]
struct SetEntry {
    page: ExtentPage,
    /// Whether a child has touched it. Otherwise it was only fetched.
    was_touched: bool,
    /// Value of `children_ended` when the page was last touched or fetched.
    last_seen: u64,
    /// Number of children since the last touch for which the page was on trial and not touched.
    untouched_trials: u8,
}

/// A seed's working set.
#[derive(Debug, Default)]
pub(super) struct WorkingSet {
    entries: Vec<SetEntry>,
    /// The index of each page in `entries`.
    index_by_page: HashMap<ExtentPage, usize>,
    children_ended: u64,
    /// The inherited set of another seed, until it is merged.
    inherited_parts: SetParts,
    /// The encoded set, as children read it; `None` if it must be encoded again.
    encoded: Option<EncodedSet>,
}

/// Pages that children have touched, and pages that were only fetched.
pub(super) type SetParts = [Vec<MarkedRun>; 2];

/// An encoded set, as children read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EncodedSet {
    pub(super) bytes: Arc<Vec<u8>>,
    /// Number of pages of the set.
    pub(super) pages: u64,
}

impl EncodedSet {
    pub(super) fn from_parts([mut touched, untouched]: SetParts) -> Self {
        if !untouched.is_empty() {
            touched.push(MarkedRun::SEPARATOR);
            touched.extend(untouched);
        }
        let pages = touched.iter().map(|run| u64::from(run.count)).sum();
        Self { bytes: Arc::new(encode_set(&touched)), pages }
    }

    pub(super) fn parts(&self) -> SetParts {
        let set = decode_set(&self.bytes);
        let [touched, untouched] = split_parts(&set);
        [touched.to_vec(), untouched.to_vec()]
    }
}

/// Splits a set into the pages that children have touched, and the pages that were only fetched.
pub(super) fn split_parts(set: &[MarkedRun]) -> [&[MarkedRun]; 2] {
    let border = set.iter().position(|run| *run == MarkedRun::SEPARATOR);
    border.map_or([set, &[]], |border| [&set[..border], &set[border + 1..]])
}

impl WorkingSet {
    /// Updates the set from a child's report. Ignores pages that the seed does not have (`has`).
    pub(super) fn apply_report(&mut self, report: &AccessReport, has: impl Fn(ExtentId, u64) -> bool) {
        self.merge_inherited(&has);
        let new = self.update_touched(MarkedRun::iter_pages(&report.pages), report.after, has);
        let is_changed = self.count_untouched_trials(report) || !new.is_empty();
        if is_changed {
            self.merge_entries(new);
        }
        self.children_ended += u64::from(report.is_last);
        self.encoded = None;
    }

    /// Stores the set of another seed. The first report merges it.
    pub(super) fn inherit(&mut self, known: SetParts) {
        self.inherited_parts = known;
    }

    fn merge_inherited(&mut self, has: impl Fn(ExtentId, u64) -> bool) {
        let known = std::mem::take(&mut self.inherited_parts);
        if known.iter().all(Vec::is_empty) {
            return;
        }
        let each = known.iter().zip([true, false]).flat_map(|(part, was_touched)| {
            MarkedRun::iter_pages(part).map(move |(extent, page, _)| (extent, page, was_touched))
        });
        let new = self.update_touched(each, None, has);
        self.merge_entries(new);
    }

    /// Loads a decoded set, in this order. Ignores pages that the seed does not have (`has`). Pages on trial count as
    /// only fetched.
    pub(super) fn restore(&mut self, saved: &[MarkedRun], has: impl Fn(ExtentId, u64) -> bool) {
        let each = split_parts(saved).into_iter().zip([true, false]).flat_map(|(part, was_touched)| {
            MarkedRun::iter_pages(part).map(move |(extent, page, on_trial)| (extent, page, was_touched && !on_trial))
        });
        let new = self.update_touched(each, None, has);
        self.merge_entries(new);
        self.encoded = None;
    }

    /// Encodes the set as children read it: touched pages in order, then pages that were only fetched. (In `entries`, a
    /// fetched page precedes the page that was touched after it.) Pages on trial are marked.
    pub(super) fn encode(&mut self) -> EncodedSet {
        if self.encoded.is_none() {
            let on_trial = self.choose_trials();
            let mut parts = SetParts::default();
            for (index, SetEntry { page: (extent, page), was_touched, .. }) in self.entries.iter().enumerate() {
                MarkedRun::push_page(&mut parts[usize::from(!was_touched)], *extent, *page, on_trial[index]);
            }
            self.encoded = Some(EncodedSet::from_parts(parts));
        }
        self.encoded.clone().unwrap_or_default()
    }

    /// Updates the entries of `pages` that are in the set. Ignores pages that the seed does not have (`has`), or that
    /// exceed the limit. Returns the new pages, by the index at which they must be inserted.
    fn update_touched(
        &mut self,
        pages: impl Iterator<Item = (ExtentId, u64, bool)>,
        after: Option<ExtentPage>,
        has: impl Fn(ExtentId, u64) -> bool,
    ) -> BTreeMap<usize, Vec<SetEntry>> {
        let mut new: BTreeMap<usize, Vec<SetEntry>> = BTreeMap::new();
        let mut known: HashMap<ExtentPage, (usize, usize)> = HashMap::new();
        let mut position = after.and_then(|page| self.index_by_page.get(&page)).map_or(0, |index| index + 1);
        for (extent, page, was_touched) in
            pages.take(SET_PAGES_MAX as usize).filter(|(extent, page, _)| has(*extent, *page))
        {
            let page = (extent, page);
            match self.index_by_page.get(&page) {
                Some(found) => {
                    let entry = &mut self.entries[*found];
                    entry.was_touched |= was_touched;
                    entry.last_seen = self.children_ended;
                    if was_touched {
                        entry.untouched_trials = 0;
                        position = found + 1;
                    }
                }
                None => {
                    let (position, offset) = *known.entry(page).or_insert_with(|| {
                        let entries: &mut Vec<SetEntry> = new.entry(position).or_default();
                        entries.push(SetEntry {
                            page,
                            was_touched,
                            last_seen: self.children_ended,
                            untouched_trials: 0,
                        });
                        (position, entries.len() - 1)
                    });
                    // The same report may list a page first as fetched, and then as touched.
                    new.entry(position).or_default()[offset].was_touched |= was_touched;
                }
            }
        }
        new
    }

    /// Counts a trial of each page that a child did not touch. Returns whether any page must be removed.
    fn count_untouched_trials(&mut self, report: &AccessReport) -> bool {
        let mut is_over = false;
        for (extent, page, _) in MarkedRun::iter_pages(&report.untouched_trials).take(SET_PAGES_MAX as usize) {
            if let Some(index) = self.index_by_page.get(&(extent, page)) {
                let entry = &mut self.entries[*index];
                entry.untouched_trials = entry.untouched_trials.saturating_add(1);
                is_over |= entry.untouched_trials >= UNTOUCHED_TRIALS_MAX;
            }
        }
        is_over
    }

    /// Inserts new pages, and removes pages after too many trials or above the limit.
    fn merge_entries(&mut self, mut new: BTreeMap<usize, Vec<SetEntry>>) {
        let mut entries = new.remove(&0).unwrap_or_default();
        for (index, entry) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            if entry.untouched_trials < UNTOUCHED_TRIALS_MAX {
                entries.push(entry);
            }
            entries.extend(new.remove(&(index + 1)).into_iter().flatten());
        }
        self.entries = entries;
        self.truncate();
        self.index_by_page = self.entries.iter().enumerate().map(|(index, entry)| (entry.page, index)).collect();
    }

    /// If there are too many pages, keeps touched pages before fetched ones, then recently seen ones, then those that
    /// are touched first.
    fn truncate(&mut self) {
        if self.entries.len() as u64 <= SET_PAGES_MAX {
            return;
        }
        let mut indices: Vec<usize> = (0..self.entries.len()).collect();
        indices.sort_by_key(|index| {
            let entry = &self.entries[*index];
            (!entry.was_touched, Reverse(entry.last_seen), *index)
        });
        indices.truncate(SET_PAGES_MAX as usize);
        indices.sort_unstable();
        self.entries = indices.into_iter().map(|index| self.entries[index]).collect();
    }

    /// Chooses the pages on trial, by index: fetched pages before touched ones, then the least recently seen first.
    /// Neighbours that were only fetched are on trial as a group, since the fault of one of them fetches the others,
    /// too.
    fn choose_trials(&self) -> Vec<bool> {
        let sure = self.entries.iter().filter(|entry| entry.was_touched).count();
        let mut faults_left = (sure / TRIAL_FRACTION).min(TRIAL_FAULTS_MAX);
        let mut indices: Vec<usize> = (0..self.entries.len()).collect();
        let least_known = |index: &usize| (self.entries[*index].was_touched, self.entries[*index].last_seen, *index);
        // This runs for each child's report, and few pages are chosen: do not sort the others.
        if indices.len() > ON_TRIAL_MAX {
            indices.select_nth_unstable_by_key(ON_TRIAL_MAX, least_known);
            indices.truncate(ON_TRIAL_MAX);
        }
        indices.sort_unstable_by_key(least_known);
        let (mut is_chosen, mut group) = (vec![false; self.entries.len()], 0..0);
        for index in indices {
            let goes_on = index == group.end && group.len() < TRIAL_GROUP_MAX && self.continues_fetched_run(index);
            if !goes_on && faults_left == 0 {
                break;
            }
            if goes_on {
                group.end += 1;
            } else {
                faults_left -= 1;
                group = index..index + 1;
            }
            is_chosen[index] = true;
        }
        is_chosen
    }

    /// Whether a page and the previous page of the set were both only fetched, and are adjacent in memory.
    fn continues_fetched_run(&self, index: usize) -> bool {
        let Some(before) = index.checked_sub(1).map(|before| &self.entries[before]) else { return false };
        let SetEntry { page: (extent, page), was_touched, .. } = self.entries[index];
        !was_touched && !before.was_touched && before.page == (extent, page.wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests;
