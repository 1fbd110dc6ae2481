//! Frames that are kept until they are answered or acknowledged, and sent from where they lie.
//!
//! ```text
//!   segments   ┌──────────────┐┌──────────────┐┌──────────┐
//!              │▒▒▒▒│f3│f4│f5││f6│f7│f8│f9│  ││ payload  │   ▒ released
//!              └──────────────┘└──────────────┘└──────────┘
//!   queue              └──── run ────┘└─ run ─┘└── run ──┘     what is still to be sent
//! ```
//!
//! Frames are appended to segments of one size and never moved: a segment is used again once all its frames are
//! released and no run of the [`Queue`] refers to it. A long payload that its owner gives away is a segment of its own,
//! right behind the one that ends with its head.

mod queue;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use queue::{Queue, SLICES_MAX};

/// Size of a segment, in bytes: some hundred small frames, and small enough to stay in a core's cache.
pub(crate) const SEGMENT_BYTES: usize = 64 << 10;

/// Most segments that wait to be used again.
const SPARE_MAX: usize = 4;

/// Where a frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    segment: u64,
    at: u32,
    bytes: u32,
    /// Whether its payload is the segment behind.
    apart: bool,
}

#[derive(Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    /// Frames that are not released.
    frames: u32,
    /// Runs of the queue.
    runs: u32,
    /// Whether nothing may be appended.
    sealed: bool,
    /// What it counts for, in bytes.
    held_bytes: usize,
}

impl Segment {
    fn of(bytes: Vec<u8>) -> Self {
        Self { held_bytes: bytes.capacity(), bytes, ..Self::default() }
    }
}

/// The segments of one owner.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    segments: VecDeque<Segment>,
    /// Number of the first segment.
    first: u64,
    spare: Vec<Vec<u8>>,
    held_bytes: usize,
}

impl Spool {
    /// Bytes of all segments that are in use.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Where to append a frame of `bytes` or more; whatever the frame is, it ends at the end of this.
    pub(crate) fn open(&mut self, bytes: usize) -> &mut Vec<u8> {
        let fits = self
            .segments
            .back()
            .is_some_and(|last| !last.sealed && (last.bytes.is_empty() || last.bytes.len() + bytes <= SEGMENT_BYTES));
        if !fits {
            // The first grows as it is needed: most connections of a flood send no more than a greeting.
            let is_first = self.first == 0 && self.segments.is_empty();
            let new = || Vec::with_capacity(if is_first { bytes } else { SEGMENT_BYTES });
            let spare = self.spare.pop().unwrap_or_else(new);
            self.push(Segment::of(spare));
        }
        &mut self.segments.back_mut().expect("there is one now").bytes
    }

    /// The same place again, while the frame is being written.
    pub(crate) fn opened(&mut self) -> &mut Vec<u8> {
        &mut self.segments.back_mut().expect("a frame was opened").bytes
    }

    /// Takes what was appended from `start` on as a frame.
    pub(crate) fn close(&mut self, start: usize) -> Place {
        let segment = self.first + self.segments.len() as u64 - 1;
        let last = self.segments.back_mut().expect("a frame was opened");
        last.frames += 1;
        // A long frame made it grow.
        self.held_bytes += last.bytes.capacity() - last.held_bytes;
        last.held_bytes = last.bytes.capacity();
        Place { segment, at: start as u32, bytes: (last.bytes.len() - start) as u32, apart: false }
    }

    /// The same for a frame whose payload is not copied.
    pub(crate) fn close_apart(&mut self, start: usize, payload: Vec<u8>) -> Place {
        let place = self.close(start);
        self.segments.back_mut().expect("a frame was closed").sealed = true;
        self.push(Segment { frames: 1, sealed: true, ..Segment::of(payload) });
        Place { apart: true, ..place }
    }

    fn push(&mut self, segment: Segment) {
        self.held_bytes += segment.held_bytes;
        self.segments.push_back(segment);
    }

    /// Whether a frame is still there.
    pub(crate) fn has(&self, place: &Place) -> bool {
        place.segment >= self.first
    }

    /// The frame, and its payload if that lies apart.
    pub(crate) fn frame_mut(&mut self, place: &Place) -> (&mut [u8], Option<&[u8]>) {
        let index = (place.segment - self.first) as usize;
        let mut segments = self.segments.range_mut(index..);
        let segment = segments.next().expect("the frame is not released");
        let frame = &mut segment.bytes[place.at as usize..][..place.bytes as usize];
        let apart = place.apart.then(|| &*segments.next().expect("the payload is behind").bytes);
        (frame, apart)
    }

    /// Gives a frame up.
    pub(crate) fn release(&mut self, place: &Place) {
        self.release_in(place.segment);
        if place.apart {
            self.release_in(place.segment + 1);
        }
    }

    fn release_in(&mut self, segment: u64) {
        // It may have been evicted.
        let Some(index) = segment.checked_sub(self.first) else { return };
        self.segments[index as usize].frames -= 1;
        self.tidy(index as usize);
    }

    /// Uses a segment again if nothing needs it.
    fn tidy(&mut self, index: usize) {
        let is_last = index + 1 == self.segments.len();
        let segment = &mut self.segments[index];
        if segment.frames > 0 || segment.runs > 0 {
            return;
        }
        if is_last && !segment.sealed && segment.bytes.capacity() <= 2 * SEGMENT_BYTES {
            return segment.bytes.clear();
        }
        self.recycle(index);
        while self.segments.front().is_some_and(|front| front.frames == 0 && front.runs == 0 && front.sealed) {
            self.segments.pop_front();
            self.first += 1;
        }
    }

    fn recycle(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        segment.sealed = true;
        let mut bytes = std::mem::take(&mut segment.bytes);
        self.held_bytes -= std::mem::take(&mut segment.held_bytes);
        if self.spare.len() < SPARE_MAX && bytes.capacity() == SEGMENT_BYTES {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Drops the oldest segment with all frames in it, unless it is still to be sent or the last.
    pub(crate) fn evict(&mut self) -> bool {
        let evictable = self.segments.len() > 1 && self.segments[0].runs == 0;
        if evictable {
            self.recycle(0);
            self.segments.pop_front();
            self.first += 1;
        }
        evictable
    }

    /// Nothing of it is to be sent any more.
    pub(crate) fn forget_runs(&mut self) {
        self.segments.iter_mut().for_each(|segment| segment.runs = 0);
        for index in (0..self.segments.len()).rev() {
            if index < self.segments.len() {
                self.tidy(index);
            }
        }
    }

    /// The bytes of the payload that lies behind a frame's segment.
    fn apart_bytes(&self, place: &Place) -> usize {
        self.segments[(place.segment + 1 - self.first) as usize].bytes.len()
    }

    fn run_begins(&mut self, segment: u64) {
        let index = (segment - self.first) as usize;
        self.segments[index].runs += 1;
    }

    fn run_ends(&mut self, segment: u64) {
        let index = (segment - self.first) as usize;
        self.segments[index].runs -= 1;
        self.tidy(index);
    }

    fn bytes_of(&self, segment: u64, range: Range<u32>) -> &[u8] {
        &self.segments[(segment - self.first) as usize].bytes[range.start as usize..range.end as usize]
    }
}
