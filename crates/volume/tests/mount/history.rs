//! The history of the programs that read and write a file, and whether it is linearizable: whether each operation can have
//! taken effect at one instant between its begin and its end.

use std::collections::BTreeMap;

/// Tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("histories_in_some_order_are_linearizable", histories_in_some_order_are_linearizable),
    ("reads_during_a_write_of_the_same_node_do_not_count", reads_during_a_write_of_the_same_node_do_not_count),
    ("histories_without_an_order_are_not_linearizable", histories_without_an_order_are_not_linearizable),
];

/// The value of a file that was never written.
pub(crate) const INITIAL: u64 = 0;
/// The last effect of a value that no operation with a known effect has.
const NEVER: u64 = u64::MAX;

/// One read or write of a whole file, with the times of its begin and its end in any unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOperation {
    pub(crate) node: usize,
    pub(crate) is_write: bool,
    /// A write that has failed may take effect later. There are no reads that have failed.
    pub(crate) has_failed: bool,
    pub(crate) value: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl FileOperation {
    /// The time until which the operation takes effect.
    fn effect_end(&self) -> u64 {
        if self.has_failed { NEVER } else { self.end }
    }

    /// Whether this read sees only the page cache of the node on which `write` was executed.
    fn is_during(&self, write: &Self) -> bool {
        !self.is_write && self.node == write.node && self.end < write.end
    }
}

/// The operations with one value.
struct Zone {
    value: u64,
    write: Option<FileOperation>,
    first_end: u64,
    last_begin: u64,
    is_read: bool,
}

impl Zone {
    fn new(value: u64, write: Option<FileOperation>) -> Self {
        let (first_end, last_begin) = write.map_or((NEVER, 0), |write| (write.effect_end(), write.begin));
        Self { value, write, first_end, last_begin, is_read: false }
    }

    /// Whether the value was in the file during the whole zone. Otherwise, it was there at one instant of the zone or later.
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }

    fn interval(&self) -> (u64, u64) {
        (self.first_end.min(self.last_begin), self.first_end.max(self.last_begin))
    }
}

/// Checks the history of one file. The error names the values that have no order.
///
/// Each write writes another value. Then the test of P. Gibbons and E. Korach, "Testing Shared Memories", SIAM J. Comput. 26
/// (1997), section 4, needs only the *zone* of each value: from the first end to the last begin of the operations with this
/// value.
///
/// A read sees a write of the same node that has not returned yet: the kernel answers it from the page that the write has
/// filled. Other nodes see the write when it has returned. Such reads are no part of the history.
pub(crate) fn check_linearizable(operations: &[FileOperation]) -> Result<(), String> {
    let zones = zones_of(operations);
    for zone in &zones {
        if zone.write.is_none_or(|write| write.begin > zone.first_end) {
            return Err(format!("{} was read before it was written, or was never written", zone.value));
        }
    }
    // The values of failed writes that no operation has read had no effect.
    let zones = zones.iter().filter(|zone| zone.is_read || zone.first_end != NEVER);
    let (mut forward, backward): (Vec<&Zone>, Vec<&Zone>) = zones.partition(|zone| zone.is_forward());
    forward.sort_by_key(|zone| zone.interval());
    for pair in forward.windows(2) {
        if pair[1].interval().0 < pair[0].interval().1 {
            return Err(format!("{} and {} replace each other", pair[0].value, pair[1].value));
        }
    }
    for zone in backward {
        let (begin, end) = zone.interval();
        let before = forward.partition_point(|other| other.interval().0 < begin);
        if let Some(other) = forward[..before].last().filter(|other| end < other.interval().1) {
            return Err(format!("{} was written and replaced while {} was in the file", zone.value, other.value));
        }
    }
    Ok(())
}

fn zones_of(operations: &[FileOperation]) -> Vec<Zone> {
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    let (writes, reads): (Vec<FileOperation>, Vec<FileOperation>) =
        operations.iter().partition(|operation| operation.is_write);
    for write in [write(INITIAL, 0, 0)].into_iter().chain(writes) {
        let zone = Zone::new(write.value, Some(write));
        assert!(zones.insert(write.value, zone).is_none(), "two writes of {}", write.value);
    }
    for read in reads {
        let zone = zones.entry(read.value).or_insert_with(|| Zone::new(read.value, None));
        if zone.write.is_none_or(|write| !read.is_during(&write)) {
            zone.first_end = zone.first_end.min(read.end);
            zone.last_begin = zone.last_begin.max(read.begin);
            zone.is_read = true;
        }
    }
    zones.into_values().collect()
}

fn write(value: u64, begin: u64, end: u64) -> FileOperation {
    FileOperation { node: 0, is_write: true, has_failed: false, value, begin, end }
}

fn failed_write(value: u64, begin: u64, end: u64) -> FileOperation {
    FileOperation { has_failed: true, ..write(value, begin, end) }
}

fn read(value: u64, begin: u64, end: u64) -> FileOperation {
    FileOperation { node: 1, is_write: false, ..write(value, begin, end) }
}

fn histories_in_some_order_are_linearizable() {
    for history in [
        vec![],
        vec![read(INITIAL, 1, 2), write(1, 3, 4), read(1, 5, 6)],
        // Reads during a write have the old or the new value.
        vec![write(1, 1, 10), read(INITIAL, 2, 3), read(1, 4, 5), write(2, 11, 12), read(2, 13, 14)],
        // Two writes at the same time take effect in either order.
        vec![write(1, 1, 10), write(2, 1, 10), read(2, 11, 12)],
        vec![write(1, 1, 10), write(2, 1, 10), read(1, 2, 3), read(2, 11, 12)],
        // A write that failed takes effect never, or later.
        vec![write(1, 1, 2), failed_write(2, 3, 4), read(1, 4, 5)],
        vec![write(1, 1, 2), failed_write(2, 3, 4), read(1, 4, 5), read(2, 6, 7)],
    ] {
        check_linearizable(&history).unwrap_or_else(|reason| panic!("{history:?}: {reason}"));
    }
}

fn reads_during_a_write_of_the_same_node_do_not_count() {
    let history =
        |node| vec![write(1, 1, 10), FileOperation { node, ..read(1, 2, 3) }, read(INITIAL, 4, 5), read(1, 11, 12)];
    check_linearizable(&history(0)).unwrap();
    check_linearizable(&history(1)).unwrap_err();
}

fn histories_without_an_order_are_not_linearizable() {
    for (history, reason) in [
        (vec![read(1, 1, 2)], "never written"),
        (vec![read(1, 1, 2), write(1, 3, 4)], "before it was written"),
        // An acknowledged write is lost.
        (vec![write(1, 1, 2), read(INITIAL, 3, 4)], "while 0 was in the file"),
        (vec![write(1, 1, 2), read(1, 3, 4), write(2, 5, 6), read(1, 7, 8)], "while 1 was in the file"),
        (vec![write(1, 1, 2), read(1, 5, 6), write(2, 3, 4)], "while 1 was in the file"),
        // An old value returns.
        (
            vec![write(1, 1, 20), write(2, 2, 20), read(1, 3, 4), read(2, 5, 6), read(1, 7, 8)],
            "while 1 was in the file",
        ),
        // Readers see two writes in different orders.
        (
            vec![write(1, 1, 30), write(2, 1, 30), read(1, 2, 3), read(2, 4, 5), read(1, 6, 7), read(2, 8, 9)],
            "replace each other",
        ),
        // A write that failed takes effect, and is lost again.
        (vec![write(1, 1, 2), failed_write(2, 3, 4), read(2, 4, 5), read(1, 6, 7)], "while 1 was in the file"),
    ] {
        let found = check_linearizable(&history).expect_err("no order exists");
        assert!(found.contains(reason), "{history:?}: {found}");
    }
}
