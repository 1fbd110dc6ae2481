//! Stores frames until they are answered or acknowledged. They are sent from here without a copy.

mod send_queue;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use send_queue::{SLICES_MAX, SendQueue};

/// Size of a segment, in bytes: several hundred small frames, and small enough to stay in a core's cache.
pub(crate) const SEGMENT_BYTES: usize = 64 << 10;

/// Maximum number of segments that are kept for reuse.
const SPARE_MAX: usize = 4;

/// The location of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FrameLocation {
    segment: u64,
    offset: u32,
    bytes: u32,
    /// Whether the frame's payload is in the next segment.
    has_detached_payload: bool,
}

#[derive(Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    /// Number of frames that were not released.
    frame_refs: u32,
    /// Number of runs of the send queue in this segment.
    run_refs: u32,
    /// Whether no more frames may be appended.
    is_sealed: bool,
    /// Bytes of this segment that are counted in the buffer's `held_bytes`.
    held_bytes: usize,
}

impl Segment {
    fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { held_bytes: bytes.capacity(), bytes, ..Self::default() }
    }
}

//   segments   +--------------++--------------++----------+
//              |....|f3|f4|f5||f6|f7|f8|f9|  || payload  |   . released
//              +--------------++--------------++----------+
//   send queue         +--- run ---++- run -++-- run ---+    frames that are still to be sent
//
// Frames are appended to segments of one size and never moved. A segment is reused once all its frames are released and
// no run of the [`SendQueue`] refers to it. A long payload that its caller moved here is a separate segment. It
// directly follows the segment that ends with the payload's head.

/// The segments of one owner: a client, a server session, or a connection's control frames.
#[derive(Debug, Default)]
pub(crate) struct RetransmitBuffer {
    segments: VecDeque<Segment>,
    /// Number of the first segment.
    first_segment: u64,
    spare_buffers: Vec<Vec<u8>>,
    held_bytes: usize,
}

impl RetransmitBuffer {
    /// Capacity of all segments in use, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns the buffer to which the caller appends a frame of about `bytes` bytes. [`RetransmitBuffer::end_frame`]
    /// takes the end of the buffer as the frame's end.
    pub(crate) fn begin_frame(&mut self, bytes: usize) -> &mut Vec<u8> {
        let fits = self.segments.back().is_some_and(|last| {
            !last.is_sealed && (last.bytes.is_empty() || last.bytes.len() + bytes <= SEGMENT_BYTES)
        });
        if !fits {
            // The first segment grows on demand: in a flood of connections, most send no more than a hello.
            let is_first = self.first_segment == 0 && self.segments.is_empty();
            let new = || Vec::with_capacity(if is_first { bytes } else { SEGMENT_BYTES });
            let spare = self.spare_buffers.pop().unwrap_or_else(new);
            self.push_segment(Segment::from_bytes(spare));
        }
        &mut self.segments.back_mut().expect("a segment was pushed").bytes
    }

    /// Returns the buffer that `begin_frame` returned, while the frame is being written.
    pub(crate) fn current_buffer(&mut self) -> &mut Vec<u8> {
        &mut self.segments.back_mut().expect("a frame was opened").bytes
    }

    /// Completes the frame that was appended at offset `start`.
    pub(crate) fn end_frame(&mut self, start: usize) -> FrameLocation {
        let segment = self.first_segment + self.segments.len() as u64 - 1;
        let last = self.segments.back_mut().expect("a frame was opened");
        last.frame_refs += 1;
        // A long frame may have extended the buffer.
        self.held_bytes += last.bytes.capacity() - last.held_bytes;
        last.held_bytes = last.bytes.capacity();
        FrameLocation {
            segment,
            offset: start as u32,
            bytes: (last.bytes.len() - start) as u32,
            has_detached_payload: false,
        }
    }

    /// Completes the frame that was appended at offset `start`, and adds `payload` as a separate segment.
    pub(crate) fn end_frame_detached(&mut self, start: usize, payload: Vec<u8>) -> FrameLocation {
        let location = self.end_frame(start);
        self.segments.back_mut().expect("a frame was closed").is_sealed = true;
        self.push_segment(Segment { frame_refs: 1, is_sealed: true, ..Segment::from_bytes(payload) });
        FrameLocation { has_detached_payload: true, ..location }
    }

    fn push_segment(&mut self, segment: Segment) {
        self.held_bytes += segment.held_bytes;
        self.segments.push_back(segment);
    }

    /// Whether a frame is still stored.
    pub(crate) fn contains(&self, location: &FrameLocation) -> bool {
        location.segment >= self.first_segment
    }

    /// Returns a frame, and its payload if that is in a segment of its own.
    pub(crate) fn frame_mut(&mut self, location: &FrameLocation) -> (&mut [u8], Option<&[u8]>) {
        let index = (location.segment - self.first_segment) as usize;
        let mut segments = self.segments.range_mut(index..);
        let segment = segments.next().expect("the frame is not released");
        let frame = &mut segment.bytes[location.offset as usize..][..location.bytes as usize];
        let apart =
            location.has_detached_payload.then(|| &*segments.next().expect("the payload is in the next segment").bytes);
        (frame, apart)
    }

    /// Releases a frame: it will not be sent again.
    pub(crate) fn release_frame(&mut self, location: &FrameLocation) {
        self.release_segment_ref(location.segment);
        if location.has_detached_payload {
            self.release_segment_ref(location.segment + 1);
        }
    }

    fn release_segment_ref(&mut self, segment: u64) {
        // The segment may have been evicted.
        let Some(index) = segment.checked_sub(self.first_segment) else { return };
        self.segments[index as usize].frame_refs -= 1;
        self.reclaim_if_unused(index as usize);
    }

    /// Recycles a segment that is no longer used.
    fn reclaim_if_unused(&mut self, index: usize) {
        let is_last = index + 1 == self.segments.len();
        let segment = &mut self.segments[index];
        if segment.frame_refs > 0 || segment.run_refs > 0 {
            return;
        }
        if is_last && !segment.is_sealed && segment.bytes.capacity() <= 2 * SEGMENT_BYTES {
            return segment.bytes.clear();
        }
        self.free_segment(index);
        while self.segments.front().is_some_and(|front| front.frame_refs == 0 && front.run_refs == 0 && front.is_sealed)
        {
            self.segments.pop_front();
            self.first_segment += 1;
        }
    }

    fn free_segment(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        segment.is_sealed = true;
        let mut bytes = std::mem::take(&mut segment.bytes);
        self.held_bytes -= std::mem::take(&mut segment.held_bytes);
        if self.spare_buffers.len() < SPARE_MAX && bytes.capacity() == SEGMENT_BYTES {
            bytes.clear();
            self.spare_buffers.push(bytes);
        }
    }

    /// Drops the oldest segment with all its frames, unless it is the last segment or parts of it are queued for
    /// sending. Returns whether it was dropped.
    pub(crate) fn evict_oldest(&mut self) -> bool {
        let evictable = self.segments.len() > 1 && self.segments[0].run_refs == 0;
        if evictable {
            self.free_segment(0);
            self.segments.pop_front();
            self.first_segment += 1;
        }
        evictable
    }

    /// Drops the references of all runs, because the send queue was cleared.
    pub(crate) fn clear_run_refs(&mut self) {
        self.segments.iter_mut().for_each(|segment| segment.run_refs = 0);
        for index in (0..self.segments.len()).rev() {
            if index < self.segments.len() {
                self.reclaim_if_unused(index);
            }
        }
    }

    /// Length of the payload in the segment after a frame's segment, in bytes.
    fn detached_payload_bytes(&self, location: &FrameLocation) -> usize {
        self.segments[(location.segment + 1 - self.first_segment) as usize].bytes.len()
    }

    fn add_run_ref(&mut self, segment: u64) {
        let index = (segment - self.first_segment) as usize;
        self.segments[index].run_refs += 1;
    }

    fn drop_run_ref(&mut self, segment: u64) {
        let index = (segment - self.first_segment) as usize;
        self.segments[index].run_refs -= 1;
        self.reclaim_if_unused(index);
    }

    fn segment_slice(&self, segment: u64, range: Range<u32>) -> &[u8] {
        &self.segments[(segment - self.first_segment) as usize].bytes[range.start as usize..range.end as usize]
    }
}
