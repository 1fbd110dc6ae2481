//! The ranges of a file whose data is not published yet: their data is in the log, or they are holes.

use std::collections::BTreeMap;
use std::ops::Range;

/// The unit in which file systems allocate space.
const PAGE_BYTES: u64 = 4096;

/// Where the bytes of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentSource {
    /// In the log, the first byte at this position.
    Log(u64),
    /// In no file: the range is zeroes.
    Hole,
    /// In the file of the shared tree; zeroes after its end.
    Published,
}

/// A range of a file with one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// The range in the file.
    pub range: Range<u64>,
    /// The source of its bytes.
    pub source: SegmentSource,
}

#[derive(Clone, Copy, Debug)]
struct UnpublishedExtent {
    end: u64,
    /// Position of the data in the log; none for a hole.
    log_position: Option<u64>,
    /// Sequence number of the record that wrote it.
    sequence: u64,
}

/// The space that unpublished records of a file take.
#[derive(Clone, Copy, Debug)]
pub struct UnpublishedSpace {
    data_bytes: u64,
    /// Limits of the whole file, with its published data.
    bytes_min: u64,
    bytes_max: u64,
}

impl UnpublishedSpace {
    /// Estimates the space of the whole file, of which `published` bytes are in the shared tree. The estimate may be too high
    /// if unpublished data replaces published data.
    pub fn total_bytes(self, published: u64) -> u64 {
        published.saturating_add(self.data_bytes).min(self.bytes_max).max(self.bytes_min)
    }
}

/// Calls of fallocate(2) that are not published yet.
#[derive(Clone, Copy, Debug)]
struct UnpublishedAllocation {
    /// The length of the longest range.
    bytes: u64,
    /// Sequence number of the last call.
    sequence: u64,
}

/// Unpublished extents of one file, by the offset of their first byte. They do not overlap.
#[derive(Clone, Debug, Default)]
pub struct ExtentMap {
    extents: BTreeMap<u64, UnpublishedExtent>,
    allocation: Option<UnpublishedAllocation>,
}

impl ExtentMap {
    /// Adds a range that a record has written. `log_position` is the position of its first byte.
    pub fn insert_data(&mut self, range: Range<u64>, log_position: u64, sequence: u64) {
        self.insert(range, Some(log_position), sequence);
    }

    /// Adds a range that a record has made a hole.
    pub fn insert_hole(&mut self, range: Range<u64>, sequence: u64) {
        self.insert(range, None, sequence);
    }

    /// Notes that a record allocates space without a change of data.
    pub fn note_allocation(&mut self, bytes: u64, sequence: u64) {
        let bytes = self.allocation.map_or(bytes, |earlier| earlier.bytes.max(bytes));
        self.allocation = Some(UnpublishedAllocation { bytes, sequence });
    }

    /// Removes extents up to this record, which are published.
    pub fn release(&mut self, sequence: u64) {
        self.extents.retain(|_, extent| extent.sequence > sequence);
        self.allocation = self.allocation.filter(|allocation| allocation.sequence > sequence);
    }

    /// The space that unpublished records of a file of `size` bytes will take. None if all are published.
    pub fn unpublished_space(&self, size: u64) -> Option<UnpublishedSpace> {
        if self.extents.is_empty() && self.allocation.is_none() {
            return None;
        }
        let (mut data_bytes, mut data_end, mut hole_bytes) = (0, 0, 0);
        for (&start, extent) in self.extents.range(..size) {
            let end = extent.end.min(size);
            if extent.log_position.is_some() {
                let page_end = end.next_multiple_of(PAGE_BYTES);
                // Extents may have a page in common.
                data_bytes += page_end.saturating_sub(data_end.max(start - start % PAGE_BYTES));
                data_end = page_end;
            } else {
                hole_bytes += (end - end % PAGE_BYTES).saturating_sub(start.next_multiple_of(PAGE_BYTES));
            }
        }
        Some(UnpublishedSpace {
            data_bytes,
            bytes_max: size.next_multiple_of(PAGE_BYTES).saturating_sub(hole_bytes),
            bytes_min: self.allocation.map_or(0, |allocation| allocation.bytes.next_multiple_of(PAGE_BYTES)),
        })
    }

    /// Whether all data is published.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// The segments of a range, in order and without gaps.
    pub fn segments(&self, range: Range<u64>) -> Vec<DataSegment> {
        let mut segments = Vec::new();
        let mut position = range.start;
        for (&start, extent) in self.overlapping(&range) {
            if start > position {
                segments.push(DataSegment { range: position..start, source: SegmentSource::Published });
                position = start;
            }
            let end = extent.end.min(range.end);
            let source = match extent.log_position {
                Some(log_position) => SegmentSource::Log(log_position + (position - start)),
                None => SegmentSource::Hole,
            };
            segments.push(DataSegment { range: position..end, source });
            position = end;
        }
        if position < range.end {
            segments.push(DataSegment { range: position..range.end, source: SegmentSource::Published });
        }
        segments
    }

    fn insert(&mut self, range: Range<u64>, log_position: Option<u64>, sequence: u64) {
        if range.is_empty() {
            return;
        }
        self.cut(&range);
        self.extents.insert(range.start, UnpublishedExtent { end: range.end, log_position, sequence });
    }

    /// Removes a range. The parts of extents before and after it stay.
    fn cut(&mut self, range: &Range<u64>) {
        let overlapping: Vec<(u64, UnpublishedExtent)> =
            self.overlapping(range).map(|(start, extent)| (*start, *extent)).collect();
        for (start, extent) in overlapping {
            self.extents.remove(&start);
            if start < range.start {
                self.extents.insert(start, UnpublishedExtent { end: range.start, ..extent });
            }
            if extent.end > range.end {
                let log_position = extent.log_position.map(|position| position + (range.end - start));
                self.extents.insert(range.end, UnpublishedExtent { log_position, ..extent });
            }
        }
    }

    fn overlapping<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = (&'a u64, &'a UnpublishedExtent)> {
        let range = range.clone();
        let before = self.extents.range(..range.start).next_back().filter(|(_, extent)| extent.end > range.start);
        before.into_iter().chain(self.extents.range(range))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unpublished_space_is_counted_in_pages() {
        let mut map = ExtentMap::default();
        assert!(map.unpublished_space(1 << 30).is_none());
        (0..100).for_each(|index| map.insert_data(100 * index..100 * (index + 1), 0, index));
        map.insert_data(1 << 29..(1 << 29) + 1, 0, 100);
        assert_eq!(map.unpublished_space(1 << 30).unwrap().total_bytes(0), 4 * 4096);
        assert_eq!(map.unpublished_space(10_000).unwrap().total_bytes(8192), 3 * 4096, "at most the size");
        map.insert_hole(4000..FILE_END, 101);
        assert_eq!(map.unpublished_space(1 << 30).unwrap().total_bytes(1 << 20), 4096);
        map.note_allocation(1 << 20, 102);
        map.note_allocation(5, 103);
        map.release(102);
        assert_eq!(map.unpublished_space(0).unwrap().total_bytes(0), 1 << 20);
        map.release(103);
        assert!(map.unpublished_space(1 << 30).is_none());
    }

    const FILE_END: u64 = crate::record::FILE_BYTES_MAX;

    const FILE_BYTES: usize = 64;

    /// The source of a byte of a file, and the record that wrote it.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct ModelByte {
        source: SegmentSource,
        sequence: u64,
    }

    proptest! {
        #[test]
        fn segments_agree_with_a_byte_by_byte_model(
            steps in proptest::collection::vec((0..3_u8, 0..60_u64, 1..20_u64), 1..40),
            query in (0..60_u64, 1..20_u64),
        ) {
            let mut map = ExtentMap::default();
            let published = ModelByte { source: SegmentSource::Published, sequence: 0 };
            let mut model = [published; FILE_BYTES];
            for (sequence, (kind, start, length)) in (1_u64..).zip(steps) {
                let range = start..(start + length).min(FILE_BYTES as u64);
                let log_position = 1000 * sequence;
                match kind {
                    0 => map.insert_data(range.clone(), log_position, sequence),
                    1 => map.insert_hole(range.clone(), sequence),
                    _ => map.release(sequence - sequence.min(length % 5)),
                }
                for (index, byte) in (0_u64..).zip(&mut model) {
                    if kind < 2 && range.contains(&index) {
                        let log = SegmentSource::Log(log_position + (index - range.start));
                        *byte = ModelByte { source: if kind == 0 { log } else { SegmentSource::Hole }, sequence };
                    }
                    if kind == 2 && byte.sequence <= sequence - sequence.min(length % 5) {
                        *byte = published;
                    }
                }
            }
            let range = query.0..(query.0 + query.1).min(FILE_BYTES as u64);
            let mut position = range.start;
            for segment in map.segments(range.clone()) {
                prop_assert_eq!(segment.range.start, position);
                for index in segment.range.clone() {
                    let expected = match segment.source {
                        SegmentSource::Log(log_position) => SegmentSource::Log(log_position + (index - segment.range.start)),
                        other => other,
                    };
                    prop_assert_eq!(model[index as usize].source, expected, "byte {}", index);
                }
                position = segment.range.end;
            }
            prop_assert_eq!(position, range.end);
        }
    }
}
