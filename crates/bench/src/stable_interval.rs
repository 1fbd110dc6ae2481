//! The stable interval of a throughput run: the start, in which clients and caches warm up, and the end, at which some
//! clients have stopped, are left out.

use std::ops::Range;

/// No sample of the interval differs by more than this part from the interval's mean.
const DEVIATION_MAX: f64 = 0.15;

/// Fewer samples are no interval.
const SAMPLES_MIN: usize = 3;

/// The longest run of samples that are all close to their mean; the first of the longest. None if nothing is stable.
pub(crate) fn find_stable_interval(samples: &[f64]) -> Option<Range<usize>> {
    (SAMPLES_MIN..=samples.len()).rev().find_map(|length| {
        let begin = samples.windows(length).position(is_stable)?;
        Some(begin..begin + length)
    })
}

/// The mean; NaN of no samples.
pub(crate) fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

fn is_stable(samples: &[f64]) -> bool {
    let mean = mean(samples);
    mean > 0.0 && samples.iter().all(|sample| (sample - mean).abs() <= mean * DEVIATION_MAX)
}

#[cfg(test)]
mod tests {
    use super::{find_stable_interval, mean};

    #[test]
    fn start_and_end_are_left_out() {
        let samples = [3.0, 60.0, 98.0, 101.0, 103.0, 99.0, 20.0];
        assert_eq!(find_stable_interval(&samples), Some(2..6));
        assert_eq!(mean(&samples[2..6]), 100.25);
    }

    #[test]
    fn all_of_a_steady_run_is_stable() {
        assert_eq!(find_stable_interval(&[10.0; 5]), Some(0..5));
    }

    #[test]
    fn noise_silence_and_short_runs_have_none() {
        for samples in [&[1.0, 9.0, 2.0, 30.0, 4.0][..], &[0.0; 6], &[5.0, 5.0], &[]] {
            assert_eq!(find_stable_interval(samples), None, "{samples:?}");
        }
    }
}
