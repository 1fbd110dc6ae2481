//! Prometheus metrics of a node: durations of its operations, its resources, and its pager's counters.
//!
//! Names are `farfork_WHAT_UNIT`. Dashboards depend on them, so change none without need. No label contains data of
//! users' programs: no id, no command, no name of a seed. Labels of volume metrics contain names of volumes and nodes.
//! The port has no authentication, so by default it is not opened.

mod node_collector;
mod server;
mod volume_collector;

use std::fmt;
use std::sync::Weak;
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;

use crate::node::Node;
use node_collector::NodeCollector;
pub(crate) use server::{serve, to_async_listener};
use volume_collector::VolumeCollector;

/// Upper bound of a histogram's first bucket, in seconds: a tenth of the time that a prepare or resume should take.
const BUCKET_SECONDS_MIN: f64 = 100e-6;

/// Number of buckets. Each bound is twice the previous one, up to 6.5 s, which is longer than a capture may take.
const BUCKETS: u16 = 17;

/// An operation of a node that may take long, and may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MeasuredOperation {
    /// A process becomes a seed.
    Prepare,
    /// A request for children is handled, on this or other nodes.
    Fork,
    /// A child starts here.
    Resume,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    request: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    work: &'static str,
    code: String,
}

/// Metrics that are recorded as events happen.
///
/// ```text
///  requests ──▶ Metrics: histograms and failures, as things happen ─┐
///                                                                   ├─ text ─▶ server ─▶ GET /metrics
///  node ──────▶ NodeCollector: counted at each scrape ──────────────┤
///  offload process ──▶ VolumeCollector: asked at each scrape ───────┘
/// ```
#[derive(Debug)]
pub(crate) struct Metrics {
    prepare: Histogram,
    pause: Histogram,
    resume: Histogram,
    answer: Family<RequestLabels, Histogram, fn() -> Histogram>,
    failures: Family<FailureLabels, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let answer: Family<RequestLabels, Histogram, fn() -> Histogram> = Family::new_with_constructor(histogram);
        // Create both series now, so that the first event appears as an increase from 0.
        for work in [MeasuredOperation::Prepare, MeasuredOperation::Fork] {
            drop(answer.get_or_create(&RequestLabels { request: work.name() }));
        }
        Self { prepare: histogram(), pause: histogram(), resume: histogram(), answer, failures: Family::default() }
    }

    /// Records that a process has become a seed.
    pub(crate) fn record_prepare(&self, seed: &v1::Seed) {
        self.prepare.observe(us_to_seconds(seed.prepare_us));
        self.pause.observe(us_to_seconds(seed.pause_us));
    }

    /// Records that a child has started here.
    pub(crate) fn record_resume(&self, resume_us: u64) {
        self.resume.observe(us_to_seconds(resume_us));
    }

    /// Records the duration of a request, whether it succeeded or failed.
    pub(crate) fn record_answer(&self, work: MeasuredOperation, took: Duration) {
        self.answer.get_or_create(&RequestLabels { request: work.name() }).observe(took.as_secs_f64());
    }

    /// Counts a failed operation.
    pub(crate) fn record_failure(&self, work: MeasuredOperation, failure: &Failure) {
        let kind = FailureLabels { work: work.name(), code: code_name(failure.code()) };
        self.failures.get_or_create(&kind).inc();
    }

    /// Formats all metrics as text. Blocks: sends requests to the pager and the offload process.
    pub(crate) fn render_text(&self, node: Weak<Node>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("farfork");
        let mut timed = |name: &str, help: &str, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        timed("prepare", "Time in which a process became a seed of this node", &self.prepare);
        timed("pause", "Time for which a process was stopped while it was prepared", &self.pause);
        timed("resume", "Time from a request for a child of this node to its first instruction", &self.resume);
        let help = "Time from the arrival of a request at this node to the end of its answer";
        registry.register_with_unit("answer", help, Unit::Seconds, self.answer.clone());
        let help = "Failed operations of this node, by operation and gRPC code";
        registry.register("failures", help, self.failures.clone());
        registry.register_collector(Box::new(NodeCollector(node.clone())));
        registry.register_collector(Box::new(VolumeCollector(node)));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl MeasuredOperation {
    fn name(self) -> &'static str {
        match self {
            MeasuredOperation::Prepare => "prepare",
            MeasuredOperation::Fork => "fork",
            MeasuredOperation::Resume => "resume",
        }
    }
}

fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(BUCKET_SECONDS_MIN, 2.0, BUCKETS))
}

fn us_to_seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// `FailedPrecondition` → `failed_precondition`, as in gRPC's own metrics.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{Code, Duration, Failure, MeasuredOperation, Metrics, Weak, code_name, v1};

    #[test]
    fn metrics_have_unit_type_and_help() {
        let metrics = Metrics::new();
        metrics.record_prepare(&v1::Seed { prepare_us: 1500, pause_us: 90, ..v1::Seed::default() });
        metrics.record_resume(700);
        metrics.record_answer(MeasuredOperation::Fork, Duration::from_millis(2));
        metrics.record_failure(MeasuredOperation::Resume, &Failure::new(Code::FailedPrecondition, "a child", "no"));
        let text = metrics.render_text(Weak::new()).unwrap();
        for line in [
            "# TYPE farfork_prepare_seconds histogram",
            "# UNIT farfork_prepare_seconds seconds",
            "farfork_prepare_seconds_sum 0.0015",
            "farfork_pause_seconds_bucket{le=\"0.0001\"} 1",
            "farfork_resume_seconds_count 1",
            "farfork_answer_seconds_count{request=\"fork\"} 1",
            "farfork_failures_total{work=\"resume\",code=\"failed_precondition\"} 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|text_line| text_line == line), "no `{line}` in\n{text}");
        }
    }

    #[test]
    fn status_codes_have_their_grpc_names() {
        assert_eq!(code_name(Code::NotFound), "not_found");
        assert_eq!(code_name(Code::Internal), "internal");
    }
}
