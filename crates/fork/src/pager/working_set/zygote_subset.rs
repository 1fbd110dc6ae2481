//! Selects the pages of a working set that a zygote gets. Each page of a zygote makes the fork and the exit of each
//! copy slower. So pages that were only fetched, mostly by readahead, are omitted, unless the set is small or a large
//! fraction of their part of the extent was touched. Pure.

use std::collections::HashMap;

use farfork_wire::descriptor::ExtentId;

use super::MarkedRun;
use super::set::split_parts;

/// A set of at most this many pages (4 MiB) is used as a whole. It costs a copy less than a few faults.
const SMALL_SET_PAGES: u64 = 1024;

/// Number of pages in a part of an extent: 2 MiB. Readahead may fetch this much at once, and then touches of the part
/// are not seen.
const PART_PAGES: u64 = 512;

/// A part of which at least this many pages (a quarter) were touched is used as a whole.
const DENSE_PAGES: u64 = PART_PAGES / 4;

/// Returns the pages of a set that a zygote gets: touched pages in order, then fetched ones; each with whether it is on
/// trial.
pub(super) fn select_zygote_pages(set: &[MarkedRun]) -> impl Iterator<Item = (ExtentId, u64, bool)> {
    let [touched, untouched] = split_parts(set);
    let mut touches: HashMap<(ExtentId, u64), u64> = HashMap::new();
    for (extent, page, _) in MarkedRun::iter_pages(touched) {
        *touches.entry((extent, page / PART_PAGES)).or_default() += 1;
    }
    let is_small = set.iter().map(|run| u64::from(run.count)).sum::<u64>() <= SMALL_SET_PAGES;
    let is_dense =
        move |extent, page| touches.get(&(extent, page / PART_PAGES)).is_some_and(|pages| *pages >= DENSE_PAGES);
    let along = MarkedRun::iter_pages(untouched).filter(move |(extent, page, _)| is_small || is_dense(*extent, *page));
    MarkedRun::iter_pages(touched).chain(along)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(extent: u32, first: u64, count: u32) -> MarkedRun {
        MarkedRun { extent: ExtentId(extent), first, count, mark: false }
    }

    fn pages(set: &[MarkedRun]) -> Vec<MarkedRun> {
        let mut pages = Vec::new();
        select_zygote_pages(set).for_each(|(extent, page, mark)| MarkedRun::push_page(&mut pages, extent, page, mark));
        pages
    }

    #[test]
    fn prefetched_pages_are_kept_only_next_to_many_touched_ones() {
        let sparse = [run(1, 0, 127), run(2, 600, 64), run(2, 500, 12)];
        let dense = [run(1, 512, 100), run(1, 900, 28)];
        let along = [run(1, 200, 700), run(2, 612, 400), run(3, 0, 512)];
        let set = [&sparse[..], &dense, &[MarkedRun::SEPARATOR], &along].concat();
        assert_eq!(pages(&set), [&sparse[..], &dense, &[run(1, 512, 388)]].concat(), "by extent, and by part");
    }

    #[test]
    fn touched_pages_and_small_sets_are_kept_whole() {
        assert_eq!(pages(&[run(1, 0, 1), MarkedRun::SEPARATOR, run(2, 0, 1023)]), [run(1, 0, 1), run(2, 0, 1023)]);
        assert_eq!(pages(&[run(1, 0, 1), MarkedRun::SEPARATOR, run(2, 0, 1024)]), [run(1, 0, 1)]);
        assert_eq!(pages(&[run(1, 0, 9000)]), [run(1, 0, 9000)]);
        assert_eq!(pages(&[MarkedRun::SEPARATOR, run(1, 0, 9000)]), []);
        assert_eq!(pages(&[]), []);
    }
}
