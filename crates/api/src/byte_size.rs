//! Formats byte counts for people, in binary units.

const BYTE_UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// `1536` → `1.5 KiB`.
pub fn format_bytes(count: u64) -> String {
    let mut figure = count as f64;
    let mut unit = 0;
    while figure >= 1024.0 && unit + 1 < BYTE_UNITS.len() {
        figure /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{figure:.1} {}", BYTE_UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::format_bytes;

    #[test]
    fn sizes_are_shown_in_the_largest_suitable_unit() {
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(256 << 20), "256.0 MiB");
    }
}
