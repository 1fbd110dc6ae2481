//! Formats the sets of CPUs that threads may run on, for the details of seeds and children.

use std::collections::BTreeSet;

use farfork_sys::process::format_cpu_list;

/// Formats each distinct set once. Omits empty sets: those threads have no affinity of their own.
pub(crate) fn format_distinct_sets<'a>(sets: impl Iterator<Item = &'a [u32]>) -> Vec<String> {
    let distinct: BTreeSet<String> = sets.filter(|cpus| !cpus.is_empty()).map(format_cpu_list).collect();
    distinct.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_cpu_sets_are_listed_once() {
        let sets: [&[u32]; 4] = [&[2], &[], &[1], &[2]];
        assert_eq!(format_distinct_sets(sets.into_iter()), ["0", "1"]);
    }
}
