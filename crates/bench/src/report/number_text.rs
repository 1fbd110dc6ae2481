//! `format_value`: the text of a number in a report.

/// Formats a number with two decimals below 10, one below 100, and none from 100: further digits would be noise. Below 0.1
/// it has two significant digits, and from 1000 grouped thousands.
pub(crate) fn format_value(value: f64) -> String {
    let size = value.abs();
    if size > 0.0 && size < 0.1 {
        let decimals = (1.0 - size.log10().floor()).min(DECIMALS_MAX) as usize;
        return format!("{value:.decimals$}");
    }
    if !(1000.0..1e15).contains(&size) {
        return match size {
            0.0..10.0 => format!("{value:.2}"),
            10.0..100.0 => format!("{value:.1}"),
            _ => format!("{value:.0}"),
        };
    }
    let digits = format!("{size:.0}");
    let mut text = if value < 0.0 { "−".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Maximum number of decimals. Smaller values are shown as 0.
const DECIMALS_MAX: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::format_value;

    #[test]
    fn small_values_have_digits_and_thousands_have_groups() {
        let texts = [0.0, 0.0024, 0.05, 0.5, 999.4, 1000.0, 1_261_974.0, -12_345.0, f64::NAN].map(format_value);
        let expected = ["0.00", "0.0024", "0.050", "0.50", "999", "1,000", "1,261,974", "−12,345", "NaN"];
        assert_eq!(texts, expected);
    }
}
