//! Samples of a benchmark's figures, their spread, and the file to which they are written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::BenchError;
use crate::figure::Figure;
use crate::options::SamplesOption;
use crate::report::plot::{PERCENTILES, PlotPoint};
use crate::report::table::{ReportCell, ReportFigure};

/// Samples of a benchmark. `Case` has the conditions of a measurement, such as the size of the parent or the system that
/// was measured. Its fields are part of the results.
#[derive(Debug)]
pub(crate) struct FigureSamples<Case> {
    values: BTreeMap<SampleKey<Case>, Vec<f64>>,
    lines: Option<SampleFile>,
}

/// The key of samples.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct SampleKey<Case> {
    #[serde(flatten)]
    case: Case,
    figure: Figure,
}

/// A file with one line per sample.
#[derive(Debug)]
struct SampleFile {
    path: PathBuf,
    file: File,
}

/// The median and the spread of some samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// Number of samples.
    pub(crate) count: usize,
    /// The median. With an even number of samples, the mean of the middle two.
    pub(crate) median: f64,
    /// The 10th percentile (nearest rank): at least a tenth of the samples are equal to this sample or smaller.
    pub(crate) p10: f64,
    /// The 90th percentile (nearest rank).
    pub(crate) p90: f64,
}

impl<Case: Ord + Clone + Serialize> FigureSamples<Case> {
    /// Creates an empty set of samples. Each added sample is also written to the file of the option, if it is given.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn create(option: &SamplesOption) -> Result<Self, BenchError> {
        let lines = option.file.as_deref().map(SampleFile::create).transpose()?;
        Ok(Self { values: BTreeMap::new(), lines })
    }

    /// Adds a sample.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn add(&mut self, case: &Case, figure: Figure, value: f64) -> Result<(), BenchError> {
        let key = SampleKey { case: case.clone(), figure };
        if let Some(lines) = &mut self.lines {
            let run = self.values.get(&key).map_or(0, Vec::len);
            let mut line = json!({ "run": run, "value": value });
            merge_fields(&mut line, &key);
            lines.write(&line)?;
        }
        self.values.entry(key).or_default().push(value);
        Ok(())
    }

    /// The spread of a figure; `None` without samples.
    pub(crate) fn spread(&self, case: &Case, figure: Figure) -> Option<Spread> {
        Spread::from_samples(self.values(case, figure))
    }

    /// The median of a figure; `None` without samples.
    pub(crate) fn median(&self, case: &Case, figure: Figure) -> Option<f64> {
        self.spread(case, figure).map(|spread| spread.median)
    }

    /// A figure in the form of a report; `None` without samples.
    pub(crate) fn figure(&self, case: &Case, figure: Figure) -> Option<ReportFigure> {
        Some(ReportFigure::of(figure, self.spread(case, figure)?))
    }

    /// A cell with a figure.
    pub(crate) fn cell(&self, case: &Case, figure: Figure) -> ReportCell {
        self.figure(case, figure).into()
    }

    /// Removes the samples of a figure, so that it is not reported.
    pub(crate) fn remove(&mut self, case: &Case, figure: Figure) {
        self.values.remove(&SampleKey { case: case.clone(), figure });
    }

    /// A point of a plot.
    pub(crate) fn point(&self, x: f64, case: &Case, figure: Figure) -> Option<PlotPoint> {
        Some(PlotPoint::of_spread(x, self.spread(case, figure)?))
    }

    /// The list `figures` of a document for scripts: for each figure the fields of its case, the number of samples and
    /// percentiles. `unit` is appended to the names of the percentiles.
    pub(crate) fn to_json(&self, unit: Option<&str>) -> Value {
        self.to_json_with(unit, |_, _, document| Some(document))
    }

    /// As `to_json`. `extend` may add fields to the object of a figure, or omit the figure.
    pub(crate) fn to_json_with(
        &self,
        unit: Option<&str>,
        extend: impl Fn(&Case, Figure, Value) -> Option<Value>,
    ) -> Value {
        let figure = |(key, values): (&SampleKey<Case>, &Vec<f64>)| {
            extend(&key.case, key.figure, figure_json(key, Spread::from_samples(values)?, unit))
        };
        self.values.iter().filter_map(figure).collect()
    }

    /// All samples of a figure, in the order in which they were taken.
    pub(crate) fn values(&self, case: &Case, figure: Figure) -> &[f64] {
        self.values.get(&SampleKey { case: case.clone(), figure }).map_or(&[], Vec::as_slice)
    }

    /// A percentile of the samples of a figure (nearest rank). `part` is a fraction: 0.99 selects the 99th percentile.
    /// `None` without samples.
    pub(crate) fn percentile(&self, case: &Case, figure: Figure, part: f64) -> Option<f64> {
        let mut sorted = self.values(case, figure).to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
    }

    /// The points of a plot by percentiles.
    pub(crate) fn percentile_points(&self, case: &Case, figure: Figure) -> Vec<PlotPoint> {
        let point = |(index, (_, part)): (usize, (&str, f64))| {
            Some(PlotPoint::new(index as f64, self.percentile(case, figure, part)?))
        };
        PERCENTILES.into_iter().enumerate().filter_map(point).collect()
    }

    /// The median of farfork's figure divided by the median in another case.
    pub(crate) fn ratio(&self, case: &Case, other: &Case, figure: Figure) -> Option<f64> {
        Some(self.median(case, figure)? / self.median(other, figure)?)
    }
}

impl SampleFile {
    fn create(path: &Path) -> Result<Self, BenchError> {
        let path = path.to_owned();
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(cause) => Err(BenchError::File { path, cause }),
        }
    }

    fn write(&mut self, line: &Value) -> Result<(), BenchError> {
        // One call for a line, so that a killed run leaves whole lines.
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|cause| BenchError::File { path: self.path.clone(), cause })
    }
}

impl Spread {
    /// Computes the spread; `None` without samples.
    pub(crate) fn from_samples(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let last = count.checked_sub(1)?;
        let rank = |part: f64| sorted[((count as f64 * part).ceil() as usize).clamp(1, count) - 1];
        let median = (sorted[last / 2] + sorted[count / 2]) / 2.0;
        Some(Self { count, median, p10: rank(0.1), p90: rank(0.9) })
    }

    /// Converts the spread to another unit.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        let Self { count, median, p10, p90 } = self;
        Self { count, median: median * factor, p10: p10 * factor, p90: p90 * factor }
    }
}

/// Returns a figure for scripts: its key, the number of samples, and percentiles. `unit` is appended to the names of
/// the percentiles; `None` if the key names the unit.
fn figure_json(key: &impl Serialize, spread: Spread, unit: Option<&str>) -> Value {
    let mut document = json!({ "samples": spread.count });
    for (name, value) in [("p10", spread.p10), ("p50", spread.median), ("p90", spread.p90)] {
        let name = unit.map_or(name.to_owned(), |unit| format!("{name}_{unit}"));
        document[name] = json!(value);
    }
    merge_fields(&mut document, key);
    document
}

/// Adds the fields of a key to an object.
fn merge_fields(object: &mut Value, key: &impl Serialize) {
    let fields = serde_json::to_value(key).expect("a key serialises");
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        object.extend(fields);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::{Figure, FigureSamples, SamplesOption, Spread};

    #[derive(serde::Serialize, Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct SizeCase {
        mib: u64,
    }

    #[test]
    fn a_median_is_in_the_middle_and_percentiles_are_samples() {
        let twenty: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!(Spread::from_samples(&twenty), Some(Spread { count: 20, median: 10.5, p10: 2.0, p90: 18.0 }));
        assert_eq!(Spread::from_samples(&[7.0]), Some(Spread { count: 1, median: 7.0, p10: 7.0, p90: 7.0 }));
        assert_eq!(Spread::from_samples(&[3.0, 1.0, 2.0]), Some(Spread { count: 3, median: 2.0, p10: 1.0, p90: 3.0 }));
        assert_eq!(Spread::from_samples(&[]), None);
    }

    #[test]
    fn one_outlier_moves_neither_median_nor_percentiles() {
        let mut samples = vec![1.0; 19];
        samples.push(1e9);
        assert_eq!(Spread::from_samples(&samples), Some(Spread { count: 20, median: 1.0, p10: 1.0, p90: 1.0 }));
    }

    #[test]
    fn each_sample_is_a_line_with_its_key_and_run() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut samples = FigureSamples::create(&SamplesOption { file: Some(file.path().to_owned()) }).unwrap();
        let (case, pause) = (SizeCase { mib: 4 }, Figure::lower("pause", "pause", "ms"));
        samples.add(&case, pause, 1.5).unwrap();
        samples.add(&case, pause, 2.5).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = [
            serde_json::json!({ "figure": "pause", "mib": 4, "run": 0, "value": 1.5 }),
            serde_json::json!({ "figure": "pause", "mib": 4, "run": 1, "value": 2.5 }),
        ];
        assert_eq!(lines, expected);
    }
}
