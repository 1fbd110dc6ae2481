//! Phases: named parts of a request's time, shown by `--profile`. Each is a tracing span of one target.
//! The daemon collects them. A phase costs next to nothing while no subscriber listens.

/// A phase: of some work, ``phase!("resume.plan", plan.write(directory))?``, or until what this gives is dropped,
/// ``let _phase = phase!("resume.plan");``. Its name is `noun.verb`; scripts read it.
#[macro_export]
macro_rules! phase {
    ($name:literal) => {
        ::tracing::debug_span!(target: "farfork::phase", $name).entered()
    };
    // Of work that is awaited: while it waits, the phase is nobody else's.
    (await $name:literal, $work:expr) => {
        ::tracing::Instrument::instrument($work, ::tracing::debug_span!(target: "farfork::phase", $name)).await
    };
    ($name:literal, $work:expr) => {{
        let _phase = $crate::phase!($name);
        $work
    }};
}
