//! Parses amounts of memory: `512MiB`, `2GiB`, `0`.

/// Units and their powers of two.
const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Parses a number of bytes: a whole number with the unit KiB, MiB, GiB or TiB, or `0`.
///
/// # Errors
/// The text is not a size. The message says what to write instead; clap adds the option and the value.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = unit.trim();
    if number.is_empty() || unit.starts_with(['.', ',']) {
        return Err("write a whole number and a unit, such as 512MiB or 2GiB".to_owned());
    }
    let too_large = || format!("{text} is more than 16777215TiB, the maximum");
    let count: u64 = number.parse().map_err(|_| too_large())?;
    if unit.is_empty() && count == 0 {
        return Ok(0);
    }
    let Some((_, shift)) = UNITS.iter().find(|(name, _)| *name == unit) else { return Err(unit_error(number, unit)) };
    count.checked_mul(1 << shift).ok_or_else(too_large)
}

/// Parses a number of bytes, as `parse_size` does, but refuses 0.
pub(crate) fn parse_nonzero_size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err("it must be more than 0: write a number and a unit, such as 512MiB or 2GiB".to_owned()),
        size => size,
    }
}

/// Makes the error for a number without a unit, or with a unit that is not in [`UNITS`]. The error says what to write.
fn unit_error(number: &str, unit: &str) -> String {
    if unit.is_empty() {
        return format!("{number} has no unit: write {number}KiB, {number}MiB or {number}GiB");
    }
    let initial = unit[..unit.chars().next().map_or(0, char::len_utf8)].to_uppercase();
    match UNITS.iter().find(|(name, _)| name.starts_with(&initial)) {
        Some((meant, _)) => format!("{unit} is not a unit: write {number}{meant}"),
        None => format!("{unit} is not a unit: write {number}KiB, {number}MiB or {number}GiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_nonzero_size, parse_size};

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert!(
            parse_nonzero_size("0").is_err()
                && parse_nonzero_size("0MiB").is_err()
                && parse_nonzero_size("1KiB") == Ok(1 << 10)
        );
        assert_eq!(parse_size("2 GiB"), Ok(2 << 30));
        assert!(parse_size("2GB").is_err() && parse_size("").is_err() && parse_size("99999999999TiB").is_err());
    }

    #[test]
    fn an_error_gives_an_example_of_correct_input() {
        let says = |text: &str, expected: &str| assert_eq!(parse_size(text), Err(expected.to_owned()));
        says("512", "512 has no unit: write 512KiB, 512MiB or 512GiB");
        says("512M", "M is not a unit: write 512MiB");
        says("2 gb", "gb is not a unit: write 2GiB");
        says("5bytes", "bytes is not a unit: write 5KiB, 5MiB or 5GiB");
        says("5µ", "µ is not a unit: write 5KiB, 5MiB or 5GiB");
        for wrong in ["", "much", "MiB", "1.5GiB", "-1MiB"] {
            says(wrong, "write a whole number and a unit, such as 512MiB or 2GiB");
        }
        for large in ["16777216TiB", "99999999999999999999999"] {
            says(large, &format!("{large} is more than 16777215TiB, the maximum"));
        }
        assert_eq!(parse_size("16777215TiB"), Ok(16_777_215 << 40));
    }
}
