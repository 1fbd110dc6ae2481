//! What is still to be sent, in order: runs of frames that lie in spools.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::{Place, Spool};

/// Most slices of one send: the kernel takes 1,024, but so many are enough to fill a socket.
pub(crate) const SLICES_MAX: usize = 64;

/// Frames that lie one behind the other.
#[derive(Debug)]
struct Run {
    owner: u16,
    segment: u64,
    from: u32,
    to: u32,
}

/// What is still to be sent, in order, from the spools of one or several owners.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    runs: VecDeque<Run>,
    bytes: usize,
}

impl Queue {
    /// Bytes that are still to be sent.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame of `owner`'s spool.
    pub(crate) fn push(&mut self, owner: u16, spool: &mut Spool, place: &Place) {
        self.extend(owner, spool, place.segment, place.at, place.at + place.bytes);
        if place.apart {
            let bytes = spool.apart_bytes(place) as u32;
            self.extend(owner, spool, place.segment + 1, 0, bytes);
        }
    }

    fn extend(&mut self, owner: u16, spool: &mut Spool, segment: u64, from: u32, to: u32) {
        self.bytes += (to - from) as usize;
        match self.runs.back_mut() {
            Some(last) if last.owner == owner && last.segment == segment && last.to == from => last.to = to,
            _ => {
                spool.run_begins(segment);
                self.runs.push_back(Run { owner, segment, from, to });
            }
        }
    }

    /// The bytes to send next, as slices.
    pub(crate) fn slices<'a>(
        &self,
        slices: &mut [IoSlice<'a>; SLICES_MAX],
        spool_of: impl Fn(u16) -> &'a Spool,
    ) -> usize {
        let runs = self.runs.iter().take(SLICES_MAX);
        let count = runs.len();
        for (slice, run) in slices.iter_mut().zip(runs) {
            *slice = IoSlice::new(spool_of(run.owner).bytes_of(run.segment, run.from..run.to));
        }
        count
    }

    /// Takes note that `count` bytes were sent; `ended` is told whose run that was.
    pub(crate) fn sent(&mut self, mut count: usize, mut ended: impl FnMut(u16, Ended)) {
        assert!(count <= self.bytes, "more was sent than there was");
        self.bytes -= count;
        while count > 0 {
            let run = self.runs.front_mut().expect("there are bytes left");
            let part = count.min((run.to - run.from) as usize);
            run.from += part as u32;
            count -= part;
            if run.from == run.to {
                ended(run.owner, Ended(run.segment));
                self.runs.pop_front();
            }
        }
    }

    /// Moves what is still to be sent of one owner to the spool of another.
    pub(crate) fn reassign(&mut self, from: u16, from_spool: &mut Spool, to: u16, to_spool: &mut Spool) {
        for run in self.runs.iter_mut().filter(|run| run.owner == from) {
            let bytes = from_spool.bytes_of(run.segment, run.from..run.to);
            let out = to_spool.open(bytes.len());
            let start = out.len();
            out.extend_from_slice(bytes);
            let place = to_spool.close(start);
            to_spool.run_begins(place.segment);
            to_spool.release(&place);
            from_spool.run_ends(run.segment);
            *run = Run { owner: to, segment: place.segment, from: place.at, to: place.at + place.bytes };
        }
    }

    /// Forgets everything; the spools have to forget their runs as well.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.bytes = 0;
    }
}

/// A run that was sent; its spool has to know.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ended(u64);

impl Ended {
    /// Tells the spool.
    pub(crate) fn tell(self, spool: &mut Spool) {
        spool.run_ends(self.0);
    }
}
