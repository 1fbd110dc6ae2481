//! Latencies of calls, as a histogram in ns. A client process prints all of them, so that the percentiles of several clients are
//! those of all calls.

use std::io;

use hdrhistogram::Histogram;

use super::print_line;
use crate::error::BenchError;
use crate::machine::program::RunningProgram;

/// Maximum recorded latency, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The first word of the line of a client.
const LATENCIES: &str = "latencies";

/// Latencies of one thread, or of several.
pub(crate) type Latencies = Histogram<u64>;

/// Creates an empty histogram with two significant digits, for latencies up to a minute. It is small enough for the processor's
/// caches.
pub(crate) fn new_latencies() -> Latencies {
    with_digits(2)
}

/// The same with three significant digits, for operations that take milliseconds, and for sums.
pub(crate) fn new_exact_latencies() -> Latencies {
    with_digits(3)
}

fn with_digits(digits: u8) -> Latencies {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, digits).expect("the bounds are valid")
}

/// Prints latencies: pairs of a time in ns and a count.
///
/// # Errors
/// Standard output failed.
pub(crate) fn print_latencies(latencies: &Latencies) -> io::Result<()> {
    print_line(&to_line(latencies))
}

/// Reads the latencies that a client has printed.
///
/// # Errors
/// As [`RunningProgram::read_line`], or [`BenchError::UnexpectedAnswer`].
pub(crate) fn read_latencies(client: &mut RunningProgram) -> Result<Latencies, BenchError> {
    let line = client.read_line()?;
    let unexpected = || {
        let output = line.chars().take(80).collect();
        BenchError::UnexpectedAnswer { program: "client", output, expected: LATENCIES }
    };
    parse_line(&line).ok_or_else(unexpected)
}

/// Adds up the latencies of clients.
pub(crate) fn merge_latencies<'a>(all: impl IntoIterator<Item = &'a Latencies>) -> Latencies {
    let mut merged = new_exact_latencies();
    all.into_iter().for_each(|one| merged.add(one).expect("the bounds are equal"));
    merged
}

/// A quantile, in µs; 0 without latencies.
pub(crate) fn quantile_us(latencies: &Latencies, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1e3
}

fn to_line(latencies: &Latencies) -> String {
    let pair = |value: u64, count: u64| format!(" {value} {count}");
    let recorded = latencies.iter_recorded().map(|step| pair(step.value_iterated_to(), step.count_at_value()));
    LATENCIES.to_owned() + &recorded.collect::<String>()
}

fn parse_line(line: &str) -> Option<Latencies> {
    let mut latencies = new_exact_latencies();
    let mut numbers = line.strip_prefix(LATENCIES)?.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    while let Some(value) = numbers.next() {
        latencies.saturating_record_n(value?, numbers.next()??);
    }
    Some(latencies)
}

#[cfg(test)]
mod tests {
    use super::{merge_latencies, new_exact_latencies, new_latencies, parse_line, quantile_us, to_line};

    #[test]
    fn percentiles_are_those_of_all_calls() {
        let (mut many, mut few) = (new_latencies(), new_exact_latencies());
        many.record_n(1_000_000, 98).unwrap();
        few.record_n(40_000_000, 2).unwrap();
        let read = [many, few].map(|latencies| parse_line(&to_line(&latencies)).unwrap());
        let all = merge_latencies(&read);
        let near = |us: f64, expected: f64| (us / expected - 1.0).abs() < 0.01;
        assert_eq!(all.len(), 100);
        assert!(near(quantile_us(&all, 0.5), 1e3) && near(quantile_us(&all, 0.99), 4e4), "{all:?}");
        assert!(["", "done 1", "latencies 1", "latencies 1 x"].iter().all(|line| parse_line(line).is_none()));
        assert_eq!(quantile_us(&parse_line("latencies").unwrap(), 0.5), 0.0);
    }
}
