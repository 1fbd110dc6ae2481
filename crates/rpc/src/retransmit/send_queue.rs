//! The queue of frames to send, in order: runs of frames in retransmit buffers.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::{FrameLocation, RetransmitBuffer};

/// Maximum number of slices of one sendmsg(2). The kernel accepts 1,024, but this many usually fill the socket's
/// buffer.
pub(crate) const SLICES_MAX: usize = 64;

/// Frames that are adjacent in a segment.
#[derive(Debug)]
struct FrameRun {
    owner: u16,
    segment: u64,
    from: u32,
    to: u32,
}

/// Frames to send, in order, from the retransmit buffers of one or several owners.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    runs: VecDeque<FrameRun>,
    queued_bytes: usize,
}

impl SendQueue {
    /// Number of queued bytes.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Adds a frame of `owner`'s retransmit buffer.
    pub(crate) fn push(&mut self, owner: u16, retransmit_buffer: &mut RetransmitBuffer, location: &FrameLocation) {
        self.append_range(
            owner,
            retransmit_buffer,
            location.segment,
            location.offset,
            location.offset + location.bytes,
        );
        if location.has_detached_payload {
            let bytes = retransmit_buffer.detached_payload_bytes(location) as u32;
            self.append_range(owner, retransmit_buffer, location.segment + 1, 0, bytes);
        }
    }

    fn append_range(&mut self, owner: u16, retransmit_buffer: &mut RetransmitBuffer, segment: u64, from: u32, to: u32) {
        self.queued_bytes += (to - from) as usize;
        match self.runs.back_mut() {
            Some(last) if last.owner == owner && last.segment == segment && last.to == from => last.to = to,
            _ => {
                retransmit_buffer.add_run_ref(segment);
                self.runs.push_back(FrameRun { owner, segment, from, to });
            }
        }
    }

    /// Fills `slices` with the bytes to send next. Returns the number of slices.
    pub(crate) fn slices<'a>(
        &self,
        slices: &mut [IoSlice<'a>; SLICES_MAX],
        buffer_of: impl Fn(u16) -> &'a RetransmitBuffer,
    ) -> usize {
        let runs = self.runs.iter().take(SLICES_MAX);
        let count = runs.len();
        for (slice, run) in slices.iter_mut().zip(runs) {
            *slice = IoSlice::new(buffer_of(run.owner).segment_slice(run.segment, run.from..run.to));
        }
        count
    }

    /// Records that `count` bytes were sent. `ended` gets each run that was sent completely, with its owner.
    pub(crate) fn mark_sent(&mut self, mut count: usize, mut ended: impl FnMut(u16, SentRun)) {
        assert!(count <= self.queued_bytes, "more bytes were sent than queued");
        self.queued_bytes -= count;
        while count > 0 {
            let run = self.runs.front_mut().expect("there are bytes left");
            let part = count.min((run.to - run.from) as usize);
            run.from += part as u32;
            count -= part;
            if run.from == run.to {
                ended(run.owner, SentRun(run.segment));
                self.runs.pop_front();
            }
        }
    }

    /// Moves the queued frames of one owner to the retransmit buffer of another.
    pub(crate) fn reassign(
        &mut self,
        from: u16,
        source: &mut RetransmitBuffer,
        to: u16,
        destination: &mut RetransmitBuffer,
    ) {
        for run in self.runs.iter_mut().filter(|run| run.owner == from) {
            let bytes = source.segment_slice(run.segment, run.from..run.to);
            let out = destination.begin_frame(bytes.len());
            let start = out.len();
            out.extend_from_slice(bytes);
            let location = destination.end_frame(start);
            destination.add_run_ref(location.segment);
            destination.release_frame(&location);
            source.drop_run_ref(run.segment);
            *run = FrameRun {
                owner: to,
                segment: location.segment,
                from: location.offset,
                to: location.offset + location.bytes,
            };
        }
    }

    /// Removes everything. The caller must also call [`RetransmitBuffer::clear_run_refs`].
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.queued_bytes = 0;
    }
}

/// A run that was sent completely. The caller must call [`SentRun::release`] with the run's retransmit buffer.
#[derive(Debug)]
#[must_use]
pub(crate) struct SentRun(u64);

impl SentRun {
    /// Releases the run's reference to its segment.
    pub(crate) fn release(self, retransmit_buffer: &mut RetransmitBuffer) {
        retransmit_buffer.drop_run_ref(self.0);
    }
}
