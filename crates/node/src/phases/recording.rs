//! Records the phases of one request on this node, from its arrival to its reply.

use std::sync::Arc;

use farfork_api::v1;
use farfork_wire::NodeName;
use tracing::Span;

use super::TARGET;
use super::collector::PhaseCollector;
use super::log::PhaseLog;

/// The recording of a request's phases; empty if its caller wants none. Dropping it ends the recording.
#[derive(Debug, Default)]
pub(crate) struct PhaseRecording(Option<ActiveRecording>);

#[derive(Debug)]
struct ActiveRecording {
    collector: PhaseCollector,
    number: u64,
    log: Arc<PhaseLog>,
    root: Span,
}

impl PhaseRecording {
    /// Starts a recording with a root phase of this name. Does nothing without `is_wanted`, or if the process has no
    /// [`collector_layer`](super::collector_layer).
    pub(crate) fn start(is_wanted: bool, node: &NodeName, name: &'static str) -> Self {
        let collector =
            || tracing::dispatcher::get_default(|dispatch| dispatch.downcast_ref::<PhaseCollector>().cloned());
        let Some(collector) = is_wanted.then(collector).flatten() else { return Self(None) };
        let log = Arc::new(PhaseLog::new(node.to_string(), name));
        let number = collector.add_log(log.clone());
        let root = tracing::debug_span!(target: TARGET, parent: None, "request", recording = number);
        Self(Some(ActiveRecording { collector, number, log, root }))
    }

    /// Returns the span in which the request's work must run.
    pub(crate) fn span(&self) -> Span {
        self.0.as_ref().map_or_else(Span::none, |running| running.root.clone())
    }

    /// Ends the recording. Returns its phases in the order of the API; none if they were not requested.
    pub(crate) fn finish(self) -> Vec<v1::Phase> {
        self.0.as_ref().map_or_else(Vec::new, |running| running.log.list())
    }
}

impl Drop for ActiveRecording {
    fn drop(&mut self) {
        self.collector.remove_log(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::{PhaseRecording, TARGET};
    use tracing_subscriber::layer::SubscriberExt as _;

    /// tracing caches for each callsite whether a subscriber is interested, for all threads. If one test reached a
    /// callsite first while another test starts to record, the cache could keep "not interested".
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn work() {
        let _outer = tracing::debug_span!(target: TARGET, "work.do").entered();
        let (span, dispatch) = (tracing::Span::current(), tracing::dispatcher::get_default(Clone::clone));
        let elsewhere = move || {
            let _entered = span.enter();
            tracing::debug!(target: TARGET, phase = "work.tell", begun_ns = 1_u64, ended_ns = 2_u64);
            tracing::debug_span!(target: TARGET, "work.elsewhere").in_scope(|| {});
        };
        std::thread::spawn(move || tracing::dispatcher::with_default(&dispatch, elsewhere)).join().unwrap();
        tracing::debug_span!("work.other").in_scope(|| {});
        tracing::debug_span!(target: TARGET, "work.part").in_scope(|| {});
    }

    #[test]
    fn only_recorded_requests_report_phases() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let subscriber = tracing_subscriber::registry().with(super::super::collector_layer());
        tracing::subscriber::with_default(subscriber, || {
            let node = "n1".parse().unwrap();
            let (recorded, unrecorded) =
                (PhaseRecording::start(true, &node, "prepare"), PhaseRecording::start(false, &node, "prepare"));
            recorded.span().in_scope(work);
            unrecorded.span().in_scope(work);
            work();
            let listed = recorded.finish();
            let names: Vec<_> = listed.iter().map(|phase| (phase.depth, phase.name.as_str())).collect();
            let expected = [(0, "prepare"), (1, "work.do"), (2, "work.tell"), (2, "work.elsewhere"), (2, "work.part")];
            assert_eq!(names, expected);
            assert!(unrecorded.finish().is_empty());
        });
    }

    #[test]
    fn a_recording_without_a_collector_is_empty() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let recording = PhaseRecording::start(true, &"n1".parse().unwrap(), "prepare");
        recording.span().in_scope(work);
        assert!(recording.finish().is_empty());
    }
}
