//! Clock offsets of the child's time namespace (time_namespaces(7)).
//! CLOCK_MONOTONIC and CLOCK_BOOTTIME continue from the parent's values at capture. Wall time is the node's.

use farfork_sys::clock::Clocks;
use farfork_wire::descriptor::Origin;

const NS_PER_SECOND: i64 = 1_000_000_000;

/// Returns the text for /proc/self/timens_offsets that makes the clocks continue from the origin's values.
pub(super) fn format_timens_offsets(origin: &Origin, now: Clocks) -> String {
    let line = |name: &str, offset_ns: i64| {
        format!("{name} {} {}\n", offset_ns.div_euclid(NS_PER_SECOND), offset_ns.rem_euclid(NS_PER_SECOND))
    };
    line("monotonic", origin.monotonic_ns - now.monotonic_ns) + &line("boottime", origin.boottime_ns - now.boottime_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_offset_is_whole_seconds_and_nanoseconds() {
        let origin = Origin {
            node: "n1".parse().unwrap(),
            root: None,
            kernel_release: String::new(),
            parent_pid: 1,
            parent_start_ticks: 1,
            boot_id: String::new(),
            vdso_build_id: Vec::new(),
            vdso_image: Vec::new(),
            xcr0: 7,
            xstate_bytes: 832,
            cpu_features: Default::default(),
            monotonic_ns: 1_500_000_000,
            boottime_ns: 9_000_000_000,
        };
        let now = Clocks { monotonic_ns: 4_000_000_000, boottime_ns: 8_000_000_000 };
        assert_eq!(format_timens_offsets(&origin, now), "monotonic -3 500000000\nboottime 1 0\n");
    }
}
