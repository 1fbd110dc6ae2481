//! `StableInterval`: the longest part of a run in which the throughput hardly changes. Summaries of runs over time find
//! it, and `drawing` shades it.

use std::collections::VecDeque;

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
        // A part of a stable run is stable, so each rate ends the longest run that is stable with it. A long run has a
        // million rates, so each is examined only a few times.
        let mut window = RateWindow::default();
        let mut longest = 0..0;
        for next in 0..rates.len() {
            window.append(rates, next);
            while !window.is_stable(rates) {
                window.remove_first();
            }
            if next + 1 - window.from > longest.len() {
                longest = window.from..next + 1;
            }
        }
        if longest.len() < INTERVALS_MIN {
            return None;
        }
        let (from_s, until_s) = (longest.start as f64 * interval_s, longest.end as f64 * interval_s);
        let count = longest.len() as f64;
        Some(Self { from_s, until_s, mean: rates[longest].iter().sum::<f64>() / count })
    }
}

/// Successive rates, with the indexes of those that can become the lowest or the highest when earlier ones are removed: the
/// first of each is the present one.
#[derive(Debug, Default)]
struct RateWindow {
    from: usize,
    lowest: VecDeque<usize>,
    highest: VecDeque<usize>,
}

impl RateWindow {
    /// Appends the rate at the index `next`.
    fn append(&mut self, rates: &[f64], next: usize) {
        let rate = rates[next];
        while self.lowest.back().is_some_and(|last| rates[*last] > rate) {
            self.lowest.pop_back();
        }
        while self.highest.back().is_some_and(|last| rates[*last] < rate) {
            self.highest.pop_back();
        }
        self.lowest.push_back(next);
        self.highest.push_back(next);
    }

    fn remove_first(&mut self) {
        for queue in [&mut self.lowest, &mut self.highest] {
            if queue.front() == Some(&self.from) {
                queue.pop_front();
            }
        }
        self.from += 1;
    }

    /// Whether all rates are within a tenth of their middle. An empty window is stable.
    fn is_stable(&self, rates: &[f64]) -> bool {
        let (Some(lowest), Some(highest)) = (self.lowest.front(), self.highest.front()) else { return true };
        rates[*highest] <= rates[*lowest] * RATIO_MAX && rates[*highest] > 0.0
    }
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
        let two = [1.0, 1.1, 1.2, 9.0, 9.0, 9.1, 3.0];
        assert_eq!(StableInterval::find(&two, 1.0).map(|found| found.from_s), Some(0.0), "the first of equal length");
    }

    /// The rates of a run of a week, which rise slowly.
    #[test]
    fn a_million_rates_take_little_time() {
        let rates: Vec<f64> = (0..1_000_000).map(|index| 1.0 + f64::from(index) / 1e6).collect();
        let found = StableInterval::find(&rates, 1.0).unwrap();
        assert!(found.from_s > 636_000.0 && found.until_s > 999_990.0, "{found:?}");
    }

    #[test]
    fn a_run_that_never_settles_has_no_stable_interval() {
        assert_eq!(StableInterval::find(&[1.0, 2.0, 4.0, 8.0], 1.0), None);
        assert_eq!(StableInterval::find(&[0.0; 9], 1.0), None);
        assert_eq!(StableInterval::find(&[1.0, 1.0], 1.0), None);
        assert_eq!(StableInterval::find(&[], 1.0), None);
    }
}
