//! `StableInterval`: the longest part of a run in which the throughput hardly changes. Summaries of runs over time find
//! it, and `drawing` shades it.

use serde::{Deserialize, Serialize};

/// Maximum ratio of the highest to the lowest rate of a stable interval: all rates are within a tenth of their middle.
const RATIO_MAX: f64 = 1.1 / 0.9;

/// Minimum number of rates in a stable interval.
const INTERVALS_MIN: usize = 3;

/// A part of a run, in seconds since its start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct StableInterval {
    pub(crate) from_s: f64,
    pub(crate) until_s: f64,
    /// The mean rate.
    pub(crate) mean: f64,
}

impl StableInterval {
    /// Finds the longest run of successive rates that are all within a tenth of their middle. If several runs are equally
    /// long, finds the first one. `None` if no run has three rates.
    pub(crate) fn find(rates: &[f64], interval_s: f64) -> Option<Self> {
        let mut longest: &[f64] = &[];
        let mut longest_from = 0;
        for from in 0..rates.len() {
            let mut until = from + INTERVALS_MIN.max(longest.len() + 1);
            while until <= rates.len() && is_stable(&rates[from..until]) {
                (longest, longest_from) = (&rates[from..until], from);
                until += 1;
            }
        }
        let (from, count) = (longest_from as f64, longest.len() as f64);
        let (from_s, until_s) = (from * interval_s, (from + count) * interval_s);
        (count > 0.0).then(|| Self { from_s, until_s, mean: longest.iter().sum::<f64>() / count })
    }
}

fn is_stable(rates: &[f64]) -> bool {
    let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    highest <= lowest * RATIO_MAX && highest > 0.0
}

#[cfg(test)]
mod tests {
    use super::StableInterval;

    #[test]
    fn the_longest_stable_part_is_found() {
        let rates = [10.0, 80.0, 100.0, 101.0, 99.0, 104.0, 40.0, 100.0, 100.0, 100.0];
        let found = StableInterval::find(&rates, 0.5);
        assert_eq!(found, Some(StableInterval { from_s: 1.0, until_s: 3.0, mean: 101.0 }));
        assert_eq!(StableInterval::find(&[5.0; 40], 1.0).map(|found| found.until_s), Some(40.0));
    }

    #[test]
    fn a_run_that_never_settles_has_no_stable_interval() {
        assert_eq!(StableInterval::find(&[1.0, 2.0, 4.0, 8.0], 1.0), None);
        assert_eq!(StableInterval::find(&[0.0; 9], 1.0), None);
        assert_eq!(StableInterval::find(&[1.0, 1.0], 1.0), None);
        assert_eq!(StableInterval::find(&[], 1.0), None);
    }
}
