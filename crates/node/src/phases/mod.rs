//! Phases: the parts of a request's time. They are recorded while the request runs, if its caller wants a profile.
//!
//! A phase is a span of target [`TARGET`], in any crate. Its name is `noun.verb` of its subject: `prepare.stop`,
//! `resume.container`. Scripts depend on these names, so change none without need.

mod collector;
mod log;
mod recording;

use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

use collector::PhaseCollector;
use farfork_api::v1;
pub(crate) use recording::PhaseRecording;

//  request ─▶ PhaseRecording::start ─▶ root span ─┬─ span ─┬─ span     debug_span!(target: "farfork::phase", "noun.verb")
//                                                 │        └─ event    a phase of another process, with its own times
//  answer  ◀─ PhaseRecording::finish ◀─ log ◀─────┴─ span
//                                            PhaseCollector: sees spans begin and end
//
// A thread that works for a request enters the parent span first. Without a recording, no span is made: the check reads
// one counter. A phase of another process is added afterwards, by an event of the same target with the fields `phase`,
// `begun_ns` and `ended_ns` (CLOCK_REALTIME). A clone of a span may outlive the phase: the phase ends at the last exit
// from its span.
/// The target of the spans that are phases. Other crates repeat the literal, since they do not depend on this one.
pub const TARGET: &str = "farfork::phase";

/// The layer that collects phases, for a process's tracing subscriber. Without it, requests get no phases.
pub fn collector_layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let collector = PhaseCollector::default();
    let wanted = collector.filter();
    collector.with_filter(wanted)
}

/// Makes the times of phases relative to the request's arrival. Before the call, they are relative to a time that is
/// later by `by`.
pub(crate) fn shift_phases(phases: &mut [v1::Phase], by: Duration) {
    let by_us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    phases.iter_mut().for_each(|phase| phase.start_us = phase.start_us.saturating_add(by_us));
}
