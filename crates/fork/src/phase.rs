//! Phases: parts of a request's time that `--profile` tells, as spans of one target. The daemon gathers them; here they are
//! only made, which costs next to nothing where nobody asks.

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
