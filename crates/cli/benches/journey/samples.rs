//! What is measured, and the numbers that came of it.

use std::collections::BTreeMap;

/// A figure. The order is that of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// How long the parent stood still, by the daemon's clock.
    Pause,
    /// The floor of that: `fork(2)` of the same process, by its own clock.
    LocalFork,
    /// Prepare as a whole, by the daemon's clock.
    Prepare,
    /// Prepare as its caller sees it.
    PrepareAnswer,
    /// Request sent to the child's first instruction, one after the other.
    Resume,
    /// The same after the nodes were idle.
    ResumeIdle,
    /// The same for the first child of a seed on a node.
    ResumeFirst,
    /// Request received by the child's node to the child's complete state, by the daemon's clock.
    Engine,
    /// Request sent to the child's own clock_gettime(2), which needs the first of its pages.
    Spoke,
    /// Request sent to the answer.
    Answer,
    /// Every page once, at random, in a child; per page.
    Touch,
    /// The floor of that: the same bytes over the same link; per page.
    LinkCopy,
    /// Every page written once, at random, after a local fork: copy-on-write; per page.
    LocalCopy,
}

impl Metric {
    /// Its name for scripts, with its unit.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Pause => "pause_us",
            Self::LocalFork => "local_fork_us",
            Self::Prepare => "prepare_us",
            Self::PrepareAnswer => "prepare_answer_us",
            Self::Resume => "resume_us",
            Self::ResumeIdle => "resume_idle_us",
            Self::ResumeFirst => "resume_first_us",
            Self::Engine => "engine_us",
            Self::Spoke => "spoke_us",
            Self::Answer => "answer_us",
            Self::Touch => "touch_page_us",
            Self::LinkCopy => "link_copy_page_us",
            Self::LocalCopy => "local_copy_page_us",
        }
    }
}

/// Samples of each figure.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    values: BTreeMap<Metric, Vec<f64>>,
}

/// The middle of some samples and how far they spread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    /// The median.
    pub(crate) median: f64,
    /// A tenth of the samples is smaller.
    pub(crate) low: f64,
    /// A tenth of the samples is larger.
    pub(crate) high: f64,
}

impl Samples {
    /// Takes a sample.
    pub(crate) fn add(&mut self, metric: Metric, value: f64) {
        self.values.entry(metric).or_default().push(value);
    }

    /// All of them, in the order of the report.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Metric, &[f64])> {
        self.values.iter().map(|(metric, values)| (*metric, values.as_slice()))
    }

    /// The spread of a figure, which was measured.
    pub(crate) fn spread(&self, metric: Metric) -> Spread {
        Spread::of(self.of(metric).to_vec())
    }

    /// The spread of the differences between two figures that were measured in pairs: what disturbs both disturbs it less.
    pub(crate) fn difference(&self, metric: Metric, floor: Metric) -> Spread {
        Spread::of(self.of(metric).iter().zip(self.of(floor)).map(|(value, floor)| value - floor).collect())
    }

    fn of(&self, metric: Metric) -> &[f64] {
        self.values.get(&metric).map_or(&[], Vec::as_slice)
    }
}

impl Spread {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (samples.len().saturating_sub(1) as f64 * part).round() as usize;
            samples.get(index).copied().unwrap_or(f64::NAN)
        };
        Self { median: at(0.5), low: at(0.1), high: at(0.9) }
    }
}
