//! Hears of the spans of a process, and writes those below a recording's root into its log.

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
use super::log::{Index, Log, ROOT};

/// Part of a process's subscriber.
#[derive(Debug, Clone, Default)]
pub(super) struct Collector(Arc<Recorded>);

/// What is recorded at the moment.
#[derive(Debug, Default)]
struct Recorded {
    /// How many logs there are.
    count: AtomicUsize,
    logs: Mutex<Logs>,
}

#[derive(Debug, Default)]
struct Logs {
    next: u64,
    by_number: BTreeMap<u64, Arc<Log>>,
}

/// Has spans made while anything is recorded.
#[derive(Debug)]
pub(super) struct Wanted(Arc<Recorded>);

/// Where a span stands in a log; kept with the span.
struct Place {
    log: Arc<Log>,
    index: Index,
}

impl Collector {
    pub(super) fn wanted(&self) -> Wanted {
        Wanted(self.0.clone())
    }

    /// Takes a log on; gives its number, which the root span has as its field `recording`.
    pub(super) fn begin(&self, log: Arc<Log>) -> u64 {
        let mut logs = self.logs();
        logs.next += 1;
        let number = logs.next;
        logs.by_number.insert(number, log);
        self.0.count.store(logs.by_number.len(), Ordering::Relaxed);
        number
    }

    /// Spans to come are not for this log.
    pub(super) fn end(&self, number: u64) {
        let mut logs = self.logs();
        logs.by_number.remove(&number);
        self.0.count.store(logs.by_number.len(), Ordering::Relaxed);
    }

    fn logs(&self) -> MutexGuard<'_, Logs> {
        self.0.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Filter<S> for Wanted {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        // Who asked for the recording sees its own count.
        metadata.target() == TARGET && self.0.count.load(Ordering::Relaxed) > 0
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target() == TARGET { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }
}

impl<S> Layer<S> for Collector
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let root = fields.recording.and_then(|number| self.logs().by_number.get(&number).cloned());
        let place = match root {
            Some(log) => Some(Place { log, index: ROOT }),
            None => span.parent().and_then(|parent| {
                let extensions = parent.extensions();
                let Place { log, index } = extensions.get::<Place>()?;
                log.enter(attributes.metadata().name(), *index).map(|index| Place { log: log.clone(), index })
            }),
        };
        if let Some(place) = place {
            span.extensions_mut().insert(place);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        at_place(id, &context, |place| place.log.leave(place.index));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        at_place(&id, &context, |place| place.log.close(place.index));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { phase: Some(name), begun_ns: Some(begun_ns), ended_ns: Some(ended_ns), .. } = fields else {
            return;
        };
        if let Some(span) = context.event_span(event)
            && let Some(Place { log, index }) = span.extensions().get::<Place>()
        {
            log.tell(name, *index, begun_ns, ended_ns);
        }
    }
}

fn at_place<S>(id: &Id, context: &Context<'_, S>, act: impl FnOnce(&Place))
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if let Some(span) = context.span(id)
        && let Some(place) = span.extensions().get::<Place>()
    {
        act(place);
    }
}

/// The fields that mean something here.
#[derive(Debug, Default)]
struct Fields {
    recording: Option<u64>,
    phase: Option<String>,
    begun_ns: Option<u64>,
    ended_ns: Option<u64>,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "recording" => self.recording = Some(value),
            "begun_ns" => self.begun_ns = Some(value),
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
