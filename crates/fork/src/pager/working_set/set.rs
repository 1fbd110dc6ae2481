//! A seed's working set, as its owner keeps it: pages in the order in which children touch them, what is known of each,
//! and what new reports make of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use farfork_wire::descriptor::ExtentId;

use super::message::{decode, encode};
use super::{Pages, Report, SET_PAGES_MAX, TRIAL_PART};

/// A page on trial that so many children in a row did not touch leaves the set: one may have ended early.
const DOUBTS_MAX: u8 = 2;

/// Most faults that are risked for one child: half a millisecond in all. Readahead may need hardly more for a whole set
/// that was recorded page by page.
const TRIAL_FAULTS_MAX: usize = 8;

/// Most neighbours that are on trial together: as many as the readahead fetches at the second fault of a region.
const TRIAL_GROUP_MAX: usize = 32;

/// Most pages that are on trial together.
const ON_TRIAL_MAX: usize = TRIAL_FAULTS_MAX * TRIAL_GROUP_MAX;

type PageId = (ExtentId, u64);

/// A page of the set.
#[derive(Debug, Clone, Copy)]
struct Entry {
    page: PageId,
    /// A child was seen to touch it; else it was only fetched.
    is_sure: bool,
    /// How many children had ended when it was last seen to be touched, or fetched together with such a page.
    seen: u64,
    /// How many children did not touch it since, of those for which it was on trial.
    doubts: u8,
}

/// A seed's working set.
#[derive(Debug, Default)]
pub(super) struct WorkingSet {
    entries: Vec<Entry>,
    /// Where in `entries` a page stands.
    places: HashMap<PageId, usize>,
    children_ended: u64,
    /// Of another seed, and not sorted in yet.
    known_before: Parts,
    /// As children read it; made when one does.
    encoded: Option<Encoded>,
}

/// Pages that children were seen to touch, and those that only came along.
pub(super) type Parts = [Vec<Pages>; 2];

/// A set as children read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) bytes: Arc<Vec<u8>>,
    /// How many pages it has.
    pub(super) pages: u64,
}

impl Encoded {
    pub(super) fn of([mut touched, came_along]: Parts) -> Self {
        if !came_along.is_empty() {
            touched.push(Pages::BORDER);
            touched.extend(came_along);
        }
        let pages = touched.iter().map(|run| u64::from(run.count)).sum();
        Self { bytes: Arc::new(encode(&touched)), pages }
    }

    pub(super) fn parts(&self) -> Parts {
        let set = decode(&self.bytes);
        let [touched, came_along] = parts_of(&set);
        [touched.to_vec(), came_along.to_vec()]
    }
}

/// The pages of a set that children were seen to touch, and those that only came along.
pub(super) fn parts_of(set: &[Pages]) -> [&[Pages]; 2] {
    let border = set.iter().position(|run| *run == Pages::BORDER);
    border.map_or([set, &[]], |border| [&set[..border], &set[border + 1..]])
}

impl WorkingSet {
    /// Takes what was seen of a child, as far as the seed `has` the pages.
    pub(super) fn learn(&mut self, report: &Report, has: impl Fn(ExtentId, u64) -> bool) {
        self.sort_in_known(&has);
        let new = self.note_touches(Pages::each(&report.pages), report.behind, has);
        let is_changed = self.note_doubts(report) || !new.is_empty();
        if is_changed {
            self.rebuild(new);
        }
        self.children_ended += u64::from(report.is_last);
        self.encoded = None;
    }

    /// Takes the pages of a set of another seed; they are sorted in when the first report comes.
    pub(super) fn begin_with(&mut self, known: Parts) {
        self.known_before = known;
    }

    fn sort_in_known(&mut self, has: impl Fn(ExtentId, u64) -> bool) {
        let known = std::mem::take(&mut self.known_before);
        if known.iter().all(Vec::is_empty) {
            return;
        }
        let each = known
            .iter()
            .zip([true, false])
            .flat_map(|(part, is_sure)| Pages::each(part).map(move |(extent, page, _)| (extent, page, is_sure)));
        let new = self.note_touches(each, None, has);
        self.rebuild(new);
    }

    /// Takes the pages of a set as children read it, in this order, as far as the seed `has` them. Those that came along, or were on trial
    /// then, are the ones of which least was known.
    pub(super) fn recall(&mut self, kept: &[Pages], has: impl Fn(ExtentId, u64) -> bool) {
        let each = parts_of(kept).into_iter().zip([true, false]).flat_map(|(part, was_touched)| {
            Pages::each(part).map(move |(extent, page, on_trial)| (extent, page, was_touched && !on_trial))
        });
        let new = self.note_touches(each, None, has);
        self.rebuild(new);
        self.encoded = None;
    }

    /// As children read it: the pages that were touched, in order, then those that only came along, which else stand between them and
    /// come before who is touched next; those marked that are on trial.
    pub(super) fn encoded(&mut self) -> Encoded {
        if self.encoded.is_none() {
            let on_trial = self.on_trial();
            let mut parts = Parts::default();
            for (place, Entry { page: (extent, page), is_sure, .. }) in self.entries.iter().enumerate() {
                Pages::push(&mut parts[usize::from(!is_sure)], *extent, *page, on_trial[place]);
            }
            self.encoded = Some(Encoded::of(parts));
        }
        self.encoded.clone().unwrap_or_default()
    }

    /// Notes pages that are in the set already, as far as the seed `has` them, and no more than a set may have. Gives the others, by
    /// the place in the set behind which they belong.
    fn note_touches(
        &mut self,
        pages: impl Iterator<Item = (ExtentId, u64, bool)>,
        behind: Option<PageId>,
        has: impl Fn(ExtentId, u64) -> bool,
    ) -> BTreeMap<usize, Vec<Entry>> {
        let mut new: BTreeMap<usize, Vec<Entry>> = BTreeMap::new();
        let mut known: HashMap<PageId, (usize, usize)> = HashMap::new();
        let mut place = behind.and_then(|page| self.places.get(&page)).map_or(0, |place| place + 1);
        for (extent, page, is_sure) in
            pages.take(SET_PAGES_MAX as usize).filter(|(extent, page, _)| has(*extent, *page))
        {
            let page = (extent, page);
            match self.places.get(&page) {
                Some(found) => {
                    let entry = &mut self.entries[*found];
                    entry.is_sure |= is_sure;
                    entry.seen = self.children_ended;
                    if is_sure {
                        entry.doubts = 0;
                        place = found + 1;
                    }
                }
                None => {
                    let (place, index) = *known.entry(page).or_insert_with(|| {
                        let entries: &mut Vec<Entry> = new.entry(place).or_default();
                        entries.push(Entry { page, is_sure, seen: self.children_ended, doubts: 0 });
                        (place, entries.len() - 1)
                    });
                    // It may have been fetched first, and touched then.
                    new.entry(place).or_default()[index].is_sure |= is_sure;
                }
            }
        }
        new
    }

    /// Notes what a child did not touch; tells whether anything is to leave.
    fn note_doubts(&mut self, report: &Report) -> bool {
        let mut is_over = false;
        for (extent, page, _) in Pages::each(&report.unwanted).take(SET_PAGES_MAX as usize) {
            if let Some(place) = self.places.get(&(extent, page)) {
                let entry = &mut self.entries[*place];
                entry.doubts = entry.doubts.saturating_add(1);
                is_over |= entry.doubts >= DOUBTS_MAX;
            }
        }
        is_over
    }

    /// Lets new pages in, and others out.
    fn rebuild(&mut self, mut new: BTreeMap<usize, Vec<Entry>>) {
        let mut entries = new.remove(&0).unwrap_or_default();
        for (place, entry) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            if entry.doubts < DOUBTS_MAX {
                entries.push(entry);
            }
            entries.extend(new.remove(&(place + 1)).into_iter().flatten());
        }
        self.entries = entries;
        self.bound();
        self.places = self.entries.iter().enumerate().map(|(place, entry)| (entry.page, place)).collect();
    }

    /// Where there are too many, those stay that are surest to be touched, and touched first.
    fn bound(&mut self) {
        if self.entries.len() as u64 <= SET_PAGES_MAX {
            return;
        }
        let mut places: Vec<usize> = (0..self.entries.len()).collect();
        places.sort_by_key(|place| {
            let entry = &self.entries[*place];
            (!entry.is_sure, Reverse(entry.seen), *place)
        });
        places.truncate(SET_PAGES_MAX as usize);
        places.sort_unstable();
        self.entries = places.into_iter().map(|place| self.entries[place]).collect();
    }

    /// Which pages are on trial, by place: those of which least is known. Neighbours that were only fetched are on trial
    /// together, as the fault that one of them costs brings the others.
    fn on_trial(&self) -> Vec<bool> {
        let sure = self.entries.iter().filter(|entry| entry.is_sure).count();
        let mut faults_left = (sure / TRIAL_PART).min(TRIAL_FAULTS_MAX);
        let mut places: Vec<usize> = (0..self.entries.len()).collect();
        let least_known = |place: &usize| (self.entries[*place].is_sure, self.entries[*place].seen, *place);
        // Each child's report leads here, and few are chosen: the others need no order.
        if places.len() > ON_TRIAL_MAX {
            places.select_nth_unstable_by_key(ON_TRIAL_MAX, least_known);
            places.truncate(ON_TRIAL_MAX);
        }
        places.sort_unstable_by_key(least_known);
        let (mut is_chosen, mut group) = (vec![false; self.entries.len()], 0..0);
        for place in places {
            let goes_on = place == group.end && group.len() < TRIAL_GROUP_MAX && self.is_neighbour_fetched(place);
            if !goes_on && faults_left == 0 {
                break;
            }
            if goes_on {
                group.end += 1;
            } else {
                faults_left -= 1;
                group = place..place + 1;
            }
            is_chosen[place] = true;
        }
        is_chosen
    }

    /// Whether a page and the one before it in the set were only fetched, and are neighbours in memory.
    fn is_neighbour_fetched(&self, place: usize) -> bool {
        let Some(before) = place.checked_sub(1).map(|before| &self.entries[before]) else { return false };
        let Entry { page: (extent, page), is_sure, .. } = self.entries[place];
        !is_sure && !before.is_sure && before.page == (extent, page.wrapping_sub(1))
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
