//! `AxisScale`: the positions of values on an axis, and the labels of the axis. plotters queries both. Pure.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis of numbers or names.
#[derive(Debug, Clone)]
pub(super) struct AxisScale {
    spacing: ScaleSpacing,
    from: f64,
    until: f64,
}

/// The spacing of values on an axis.
#[derive(Debug, Clone)]
enum ScaleSpacing {
    /// Equal differences have equal lengths.
    Linear,
    /// Equal ratios have equal lengths. Labels are powers of the base. With base 10, twice and five times these powers
    /// are also labels.
    Logarithmic { base: f64 },
    /// Names at 0, 1, 2 …
    Categories(Vec<String>),
}

/// The minimum ratio between the ends of a logarithmic axis.
const LOGARITHMIC_RATIO_MIN: f64 = 2.0;

/// The smallest value of a logarithmic axis.
const LOGARITHMIC_MIN: f64 = 1e-6;

/// The largest value of a logarithmic axis. Only damaged files have larger ones, and an infinite axis has infinitely many
/// labels.
const LOGARITHMIC_MAX: f64 = 1e18;

impl AxisScale {
    /// A linear axis from 0 to the largest value.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let largest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let until = if largest > 0.0 { largest * 1.05 } else { 1.0 };
        Self { spacing: ScaleSpacing::Linear, from: 0.0, until }
    }

    /// A logarithmic axis from the smallest to the largest value. A value below [`LOGARITHMIC_MIN`] counts as
    /// [`LOGARITHMIC_MIN`], and one above [`LOGARITHMIC_MAX`] as that.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>, base: f64) -> Self {
        let positive =
            values.filter(|value| value.is_finite()).map(|value| value.clamp(LOGARITHMIC_MIN, LOGARITHMIC_MAX));
        let (from, until) =
            positive.fold((f64::INFINITY, 0.0), |(from, until): (f64, f64), value| (from.min(value), until.max(value)));
        let (from, until) = if from <= until { (from, until) } else { (1.0, 10.0) };
        let margin = (LOGARITHMIC_RATIO_MIN / (until / from)).max(1.3).sqrt();
        Self { spacing: ScaleSpacing::Logarithmic { base }, from: from / margin, until: until * margin }
    }

    /// An axis of names, with this margin at each end.
    pub(super) fn categories(names: &[String], margin: f64) -> Self {
        let until = names.len().max(1) as f64 - 1.0 + margin;
        Self { spacing: ScaleSpacing::Categories(names.to_vec()), from: -margin, until }
    }

    /// Reverses the direction of the axis.
    pub(super) fn reversed(self) -> Self {
        Self { from: self.until, until: self.from, ..self }
    }

    /// The end of the axis.
    pub(super) fn until(&self) -> f64 {
        self.until
    }

    /// The beginning of the axis.
    pub(super) fn from(&self) -> f64 {
        self.from
    }

    /// The position of a value: 0 at the beginning of the axis, 1 at the end.
    fn position(&self, value: f64) -> f64 {
        let position = match self.spacing {
            ScaleSpacing::Logarithmic { .. } => {
                (value.max(LOGARITHMIC_MIN) / self.from).ln() / (self.until / self.from).ln()
            }
            ScaleSpacing::Linear | ScaleSpacing::Categories(_) => (value - self.from) / (self.until - self.from),
        };
        if position.is_finite() { position.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The values that have labels.
    fn labelled_values(&self) -> Vec<f64> {
        match &self.spacing {
            ScaleSpacing::Categories(names) => (0..names.len()).map(|index| index as f64).collect(),
            ScaleSpacing::Linear => linear_steps(self.until),
            ScaleSpacing::Logarithmic { base } => logarithmic_steps(self.from, self.until, *base),
        }
    }
}

impl Ranged for AxisScale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.position(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.labelled_values()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.until
    }
}

impl ValueFormatter<f64> for AxisScale {
    fn format_ext(&self, value: &f64) -> String {
        match &self.spacing {
            ScaleSpacing::Categories(names) => names.get(*value as usize).cloned().unwrap_or_default(),
            ScaleSpacing::Linear | ScaleSpacing::Logarithmic { .. } => label_text(*value),
        }
    }
}

/// About five round values from 0.
fn linear_steps(until: f64) -> Vec<f64> {
    let rough = until / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..).map(|index| f64::from(index) * step).take_while(|value| *value <= until).take(12).collect()
}

/// Powers of the base, few enough to be readable. On a short axis with base 10, also twice and five times these powers.
fn logarithmic_steps(from: f64, until: f64, base: f64) -> Vec<f64> {
    let decades = (until / from).log10();
    let factors: &[f64] = if base == 10.0 && decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let (first, last) = (from.log(base).floor() as i32, until.log(base).ceil() as i32);
    let every = ((last - first) / 9).max(0) + 1;
    let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0).map(|power| base.powi(power));
    let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
    values.filter(|value| *value >= from && *value <= until).collect()
}

/// A short label: 0.05, 12, 40k, 1.2M.
fn label_text(value: f64) -> String {
    let trim = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value.abs() {
        0.0 => "0".to_owned(),
        1e9.. => format!("{}G", trim(format!("{:.1}", value / 1e9))),
        1e6.. => format!("{}M", trim(format!("{:.1}", value / 1e6))),
        1e4.. => format!("{}k", trim(format!("{:.1}", value / 1e3))),
        1.0.. => trim(format!("{value:.1}")),
        0.001.. => trim(format!("{value:.3}")),
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{AxisScale, label_text, linear_steps};

    #[test]
    fn labels_are_round_and_few() {
        assert_eq!(linear_steps(21.0), [0.0, 5.0, 10.0, 15.0, 20.0]);
        let sizes = AxisScale::logarithmic([1.0, 1024.0].into_iter(), 2.0);
        assert_eq!(sizes.labelled_values(), [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0]);
        let times = AxisScale::logarithmic([0.6, 20.0].into_iter(), 10.0);
        assert_eq!(times.labelled_values(), [1.0, 2.0, 5.0, 10.0, 20.0]);
        let labels = [0.0, 0.05, 0.5, 1.0, 12.5, 1024.0, 40_000.0, 1_250_000.0].map(label_text);
        assert_eq!(labels, ["0", "0.05", "0.5", "1", "12.5", "1024", "40k", "1.2M"]);
    }

    #[test]
    fn positions_are_within_the_axis() {
        let times = AxisScale::logarithmic([1.0, 100.0].into_iter(), 10.0);
        let middle = times.position(10.0);
        assert!((middle - 0.5).abs() < 1e-9 && times.position(1.0) > 0.0 && times.position(1e9) == 1.0, "{middle}");
        let names = AxisScale::categories(&["a".to_owned(), "b".to_owned()], 0.5);
        assert_eq!([names.position(0.0), names.position(1.0)], [0.25, 0.75]);
        assert_eq!(names.reversed().position(0.0), 0.75);
        assert_eq!(AxisScale::linear([f64::NAN].into_iter()).position(f64::NAN), 0.0);
    }
}
