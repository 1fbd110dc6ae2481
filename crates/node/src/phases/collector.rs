//! Tracing layer of a process: writes the spans below a recording's root span into the recording's `PhaseLog`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use super::TARGET;
use super::log::{PhaseIndex, PhaseLog, ROOT};

/// The layer of a process's tracing subscriber that collects phases.
#[derive(Debug, Clone, Default)]
pub(super) struct PhaseCollector(Arc<ActiveRecordings>);

/// The logs of all recordings in progress.
#[derive(Debug, Default)]
struct ActiveRecordings {
    /// Number of logs.
    count: AtomicUsize,
    logs: Mutex<RecordingTable>,
}

#[derive(Debug, Default)]
struct RecordingTable {
    next: u64,
    by_number: BTreeMap<u64, Arc<PhaseLog>>,
}

/// Enables spans while a recording is in progress.
#[derive(Debug)]
pub(super) struct RecordingFilter(Arc<ActiveRecordings>);

/// The log and phase of a span, stored with the span.
struct SpanPosition {
    log: Arc<PhaseLog>,
    index: PhaseIndex,
}

impl PhaseCollector {
    pub(super) fn filter(&self) -> RecordingFilter {
        RecordingFilter(self.0.clone())
    }

    /// Adds a log. Returns its number; the root span must have it in the field `recording`.
    pub(super) fn add_log(&self, log: Arc<PhaseLog>) -> u64 {
        let mut logs = self.logs();
        logs.next += 1;
        let number = logs.next;
        logs.by_number.insert(number, log);
        self.0.count.store(logs.by_number.len(), Ordering::Relaxed);
        number
    }

    /// Removes a log; later spans are not recorded in it.
    pub(super) fn remove_log(&self, number: u64) {
        let mut logs = self.logs();
        logs.by_number.remove(&number);
        self.0.count.store(logs.by_number.len(), Ordering::Relaxed);
    }

    fn logs(&self) -> MutexGuard<'_, RecordingTable> {
        self.0.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Filter<S> for RecordingFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        // Relaxed suffices: the thread that started the recording sees its own increment.
        metadata.target() == TARGET && self.0.count.load(Ordering::Relaxed) > 0
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target() == TARGET { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }
}

impl<S> Layer<S> for PhaseCollector
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = FieldVisitor::default();
        attributes.record(&mut fields);
        let root = fields.recording.and_then(|number| self.logs().by_number.get(&number).cloned());
        let position = match root {
            Some(log) => Some(SpanPosition { log, index: ROOT }),
            None => span.parent().and_then(|parent| {
                let extensions = parent.extensions();
                let SpanPosition { log, index } = extensions.get::<SpanPosition>()?;
                log.begin_phase(attributes.metadata().name(), *index)
                    .map(|index| SpanPosition { log: log.clone(), index })
            }),
        };
        if let Some(position) = position {
            span.extensions_mut().insert(position);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        with_position(id, &context, |position| position.log.end_phase(position.index));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        with_position(&id, &context, |position| position.log.close_phase(position.index));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = FieldVisitor::default();
        event.record(&mut fields);
        let FieldVisitor { phase: Some(name), started_ns: Some(started_ns), ended_ns: Some(ended_ns), .. } = fields
        else {
            return;
        };
        if let Some(span) = context.event_span(event)
            && let Some(SpanPosition { log, index }) = span.extensions().get::<SpanPosition>()
        {
            log.add_remote_phase(name, *index, started_ns, ended_ns);
        }
    }
}

fn with_position<S>(id: &Id, context: &Context<'_, S>, act: impl FnOnce(&SpanPosition))
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if let Some(span) = context.span(id)
        && let Some(position) = span.extensions().get::<SpanPosition>()
    {
        act(position);
    }
}

/// The span and event fields that this layer reads.
#[derive(Debug, Default)]
struct FieldVisitor {
    recording: Option<u64>,
    phase: Option<String>,
    started_ns: Option<u64>,
    ended_ns: Option<u64>,
}

impl Visit for FieldVisitor {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "recording" => self.recording = Some(value),
            "begun_ns" => self.started_ns = Some(value),
            "ended_ns" => self.ended_ns = Some(value),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "phase" {
            self.phase = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
