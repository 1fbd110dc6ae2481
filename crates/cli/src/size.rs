//! Parses amounts of memory: `512MiB`, `2GiB`, `0`.

/// Bytes in what a user wrote: a number, and KiB, MiB, GiB or TiB behind it.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let with_unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = with_unit.unwrap_or((text, 0));
    let number: Option<u64> = number.trim().parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "write it like 512MiB or 2GiB".to_owned())
}

/// The same of what must be something.
pub(crate) fn parse_nonzero_size(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("it must be 1 byte or more".to_owned()) })
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
}
