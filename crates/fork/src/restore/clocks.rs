//! The clocks of a child: CLOCK_MONOTONIC and CLOCK_BOOTTIME go on from where the parent's stood at capture
//! (time_namespaces(7)); wall time is the node's.

use farfork_wire::descriptor::Origin;

const SECOND_NS: i64 = 1_000_000_000;

/// This node's clocks now, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) monotonic_ns: i64,
    pub(super) boottime_ns: i64,
}

impl Now {
    pub(super) fn read() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        let read = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec * SECOND_NS + time.tv_nsec
        };
        Self { monotonic_ns: read(ClockId::Monotonic), boottime_ns: read(ClockId::Boottime) }
    }
}

/// The text for /proc/self/timens_offsets that makes the clocks go on from the origin's.
pub(super) fn offsets(origin: &Origin, now: Now) -> String {
    let line = |name: &str, offset_ns: i64| {
        format!("{name} {} {}\n", offset_ns.div_euclid(SECOND_NS), offset_ns.rem_euclid(SECOND_NS))
    };
    line("monotonic", origin.monotonic_ns - now.monotonic_ns) + &line("boottime", origin.boottime_ns - now.boottime_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_is_set_back_by_whole_seconds_and_a_rest() {
        let origin = Origin {
            node: "n1".parse().unwrap(),
            kernel_release: String::new(),
            boot_id: String::new(),
            xcr0: 7,
            xstate_bytes: 832,
            monotonic_ns: 1_500_000_000,
            boottime_ns: 9_000_000_000,
        };
        let now = Now { monotonic_ns: 4_000_000_000, boottime_ns: 8_000_000_000 };
        assert_eq!(offsets(&origin, now), "monotonic -3 500000000\nboottime 1 0\n");
    }
}
