//! Which parts of an area could become huge pages. Pure.

use farfork_sys::huge_page::HUGE_PAGE_BYTES;

/// The first addresses of the units of a huge page's size that lie wholly within `small`: ranges of pages that are there and
/// small, ascending.
pub(super) fn whole_units(small: impl IntoIterator<Item = (u64, u64)>) -> Vec<u64> {
    let mut units = Vec::new();
    let mut run = (0, 0);
    let mut end_run = |(start, end): (u64, u64)| {
        let mut unit = start.next_multiple_of(HUGE_PAGE_BYTES);
        while unit + HUGE_PAGE_BYTES <= end {
            units.push(unit);
            unit += HUGE_PAGE_BYTES;
        }
    };
    for (start, end) in small {
        if start == run.1 {
            run.1 = end;
        } else {
            end_run(run);
            run = (start, end);
        }
    }
    end_run(run);
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;
    const UNIT: u64 = HUGE_PAGE_BYTES;

    #[test]
    fn neighbours_count_as_one() {
        assert_eq!(whole_units([]), [0; 0]);
        assert_eq!(whole_units([(UNIT, 2 * UNIT - PAGE)]), [0; 0]);
        assert_eq!(whole_units([(UNIT, UNIT + PAGE), (UNIT + PAGE, 3 * UNIT)]), [UNIT, 2 * UNIT]);
        assert_eq!(whole_units([(UNIT - PAGE, 2 * UNIT), (2 * UNIT + PAGE, 3 * UNIT)]), [UNIT]);
    }

    proptest! {
        #[test]
        fn a_unit_has_no_page_that_is_missing(gaps in prop::collection::vec((0u64..3, 1u64..1500), 1..8)) {
            let mut at = UNIT;
            let mut runs = Vec::new();
            for (gap, pages) in gaps {
                let start = at + gap * PAGE;
                at = start + pages * PAGE;
                runs.push((start, at));
            }
            let is_there = |address: u64| runs.iter().any(|(start, end)| *start <= address && address < *end);
            let expected: Vec<u64> = (0..at.div_ceil(UNIT))
                .map(|unit| unit * UNIT)
                .filter(|unit| (0..UNIT / PAGE).all(|page| is_there(unit + page * PAGE)))
                .collect();
            prop_assert_eq!(whole_units(runs.iter().copied()), expected);
        }
    }
}
