//! Phases: named parts of a request's time, shown by `--profile`. Each is a tracing span of one target. The daemon
//! collects them. A phase costs almost nothing while there is no subscriber.

/// Measures a phase: one piece of work, ``phase!("resume.plan", plan.write(directory))?``, or the time until the returned
/// value is dropped, ``let _phase = phase!("resume.plan");``. Its name is `noun.verb`; scripts read it.
#[macro_export]
macro_rules! phase {
    ($name:literal) => {
        ::tracing::debug_span!(target: "farfork::phase", $name).entered()
    };
    // For awaited work: the span is not entered while the work waits.
    (await $name:literal, $work:expr) => {
        ::tracing::Instrument::instrument($work, ::tracing::debug_span!(target: "farfork::phase", $name)).await
    };
    ($name:literal, $work:expr) => {{
        let _phase = $crate::phase!($name);
        $work
    }};
}
