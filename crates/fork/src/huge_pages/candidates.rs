//! Finds the parts of a mapping that could become huge pages. Pure.

use std::ops::Range;

use farfork_sys::huge_page::HUGE_PAGE_BYTES;

/// Largest missing part of a huge page, in bytes. The missing part is filled with zeroes, so each huge page adds at
/// most this much memory to the program.
const MISSING_BYTES_MAX: u64 = HUGE_PAGE_BYTES / 8;

/// Returns the start addresses of huge-page-sized units that are completely within a mapping and almost completely
/// filled with small pages. `small` has the ranges of small pages, ascending.
pub(super) fn find_collapsible_units(mapping: Range<u64>, small: impl IntoIterator<Item = Range<u64>>) -> Vec<u64> {
    let mut units: Vec<(u64, u64)> = Vec::new();
    for range in small {
        let mut at = range.start;
        while at < range.end {
            let unit = at - at % HUGE_PAGE_BYTES;
            let end = range.end.min(unit + HUGE_PAGE_BYTES);
            match units.last_mut() {
                Some((last, bytes)) if *last == unit => *bytes += end - at,
                _ => units.push((unit, end - at)),
            }
            at = end;
        }
    }
    let is_inside = |unit: u64| mapping.start <= unit && unit + HUGE_PAGE_BYTES <= mapping.end;
    let is_ripe = |(unit, bytes): &(u64, u64)| is_inside(*unit) && bytes + MISSING_BYTES_MAX >= HUGE_PAGE_BYTES;
    units.into_iter().filter(is_ripe).map(|(unit, _)| unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;
    const UNIT: u64 = HUGE_PAGE_BYTES;
    const ALL: Range<u64> = 0..100 * UNIT;

    #[test]
    fn a_huge_page_needs_nearly_all_its_small_pages() {
        let of = |area: Range<u64>, small: &[(u64, u64)]| {
            find_collapsible_units(area, small.iter().map(|(start, end)| *start..*end))
        };
        assert_eq!(of(ALL, &[]), [0; 0]);
        assert_eq!(
            of(ALL, &[(UNIT, UNIT + PAGE), (UNIT + PAGE, 3 * UNIT)]),
            [UNIT, 2 * UNIT],
            "neighbours count as one"
        );
        let enough = UNIT - MISSING_BYTES_MAX;
        assert_eq!(of(ALL, &[(UNIT, UNIT + enough)]), [UNIT]);
        assert_eq!(of(ALL, &[(UNIT, UNIT + enough - PAGE)]), [0; 0]);
        assert_eq!(
            of(UNIT + PAGE..3 * UNIT, &[(UNIT + PAGE, 3 * UNIT)]),
            [2 * UNIT],
            "a unit must be within the mapping"
        );
        assert_eq!(of(UNIT..3 * UNIT - PAGE, &[(UNIT, 3 * UNIT - PAGE)]), [UNIT]);
    }

    proptest! {
        #[test]
        fn missing_small_pages_are_counted(gaps in prop::collection::vec((0u64..90, 1u64..1500), 1..8)) {
            let mut at = UNIT;
            let mut runs = Vec::new();
            for (gap, pages) in gaps {
                let start = at + gap * PAGE;
                at = start + pages * PAGE;
                runs.push(start..at);
            }
            let is_there = |address: u64| runs.iter().any(|run| run.contains(&address));
            let missing = |unit: u64| (0..UNIT / PAGE).filter(|page| !is_there(unit + page * PAGE)).count() as u64;
            let expected: Vec<u64> = (0..at.div_ceil(UNIT))
                .map(|unit| unit * UNIT)
                .filter(|unit| missing(*unit) * PAGE <= MISSING_BYTES_MAX)
                .collect();
            prop_assert_eq!(find_collapsible_units(ALL, runs.iter().cloned()), expected);
        }
    }
}
