//! A program whose children touch four pages each and compute a value from them. The value is unique to each child, and
//! `expected_value` computes it too. `sparse.h` has the same computation in C++.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::warm_function::splitmix64_mix;
use crate::error::BenchError;
use crate::machine::program::{EmbeddedProgram, parse_numbers};

/// The program.
pub(crate) const SPARSE: EmbeddedProgram =
    EmbeddedProgram { name: "sparse", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/sparse")) };

const PAGE_WORDS: u64 = 512;
const PAGES_TOUCHED: u64 = 4;

/// The value that the child with this number reports, for a parent of `mib`.
pub(crate) fn expected_value(number: u64, mib: u64) -> u64 {
    let pages = mib << 8;
    (0..PAGES_TOUCHED).fold(number, |value, i| {
        let index = splitmix64_mix(number.wrapping_mul(PAGES_TOUCHED).wrapping_add(i + 1)) % pages * PAGE_WORDS + i;
        splitmix64_mix(value ^ splitmix64_mix((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    })
}

/// Parses the output of the child with this number. Returns the time at which the child had its result.
///
/// # Errors
/// The output has another form, or the value is wrong.
pub(crate) fn parse_result_time(output: &str, number: u64, mib: u64) -> Result<SystemTime, BenchError> {
    let [reported_number, value, unix_ns] = parse_numbers(SPARSE.name, output, "result")?;
    check_value(reported_number, value, number, mib)?;
    Ok(UNIX_EPOCH + Duration::from_nanos(unix_ns.unsigned_abs()))
}

/// Checks the number and the value that a child has reported.
///
/// # Errors
/// One of them is wrong.
pub(crate) fn check_value(reported_number: i64, value: i64, number: u64, mib: u64) -> Result<(), BenchError> {
    if (reported_number.cast_unsigned(), value.cast_unsigned()) == (number, expected_value(number, mib)) {
        return Ok(());
    }
    Err(BenchError::WrongMemory { count: 1, what: "results of children" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{expected_value, parse_result_time};

    #[test]
    fn each_child_has_its_own_value_and_other_values_are_errors() {
        let values: BTreeSet<u64> = (0..1000).map(|number| expected_value(number, 1)).collect();
        assert_eq!(values.len(), 1000);
        let said = |value: u64| format!("result 7 {} 1000\n", value.cast_signed());
        assert!(parse_result_time(&said(expected_value(7, 1)), 7, 1).is_ok());
        for (said, number) in
            [(said(expected_value(7, 1) + 1), 7), (said(expected_value(7, 1)), 8), ("ready\n".to_owned(), 7)]
        {
            assert!(parse_result_time(&said, number, 1).is_err());
        }
    }
}
