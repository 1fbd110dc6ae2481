//! One direction of a simulated connection: what is on its way, and what has arrived and was not taken.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::time::Duration;

/// Bytes that a direction holds: a sender waits for its peer to take some. As a socket's buffers, some hundred KiB.
pub(super) const WINDOW_BYTES: usize = 256 << 10;

/// What arrives.
#[derive(Debug)]
pub(super) enum Parcel {
    /// Bytes.
    Segment(Vec<u8>),
    /// The end of the stream.
    End,
    /// The connection broke.
    Reset,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    on_the_way: VecDeque<Parcel>,
    arrived: VecDeque<u8>,
    /// Bytes on the way or arrived.
    held_bytes: usize,
    /// When the parcel that was sent last arrives: none overtakes another.
    pub(super) last_arrival: Duration,
    /// Nothing more arrives, and nobody knows.
    pub(super) swallowed: bool,
    ended: bool,
    broken: bool,
}

impl Pipe {
    /// How many bytes may be sent now.
    pub(super) fn room(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.held_bytes)
    }

    /// Sends.
    pub(super) fn send(&mut self, parcel: Parcel) {
        if let Parcel::Segment(bytes) = &parcel {
            self.held_bytes += bytes.len();
        }
        self.on_the_way.push_back(parcel);
    }

    /// The parcel that was sent first arrives; tells how many bytes it had.
    pub(super) fn arrive(&mut self) -> usize {
        match self.on_the_way.pop_front() {
            Some(Parcel::Segment(bytes)) => {
                self.arrived.extend(&bytes);
                return bytes.len();
            }
            Some(Parcel::End) => self.ended = true,
            Some(Parcel::Reset) => self.broken = true,
            None => {}
        }
        0
    }

    /// Whether its reader learned that the connection broke.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether its reader would get something.
    pub(super) fn is_readable(&self) -> bool {
        !self.arrived.is_empty() || self.ended || self.broken
    }

    /// How many bytes wait for the reader.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.arrived.len()
    }

    /// Whether the stream ended and all was taken.
    pub(super) fn is_at_end(&self) -> bool {
        self.ended && self.arrived.is_empty()
    }

    /// Takes at most `bytes_max`, into the spaces in their order.
    pub(super) fn take(&mut self, spaces: &mut [IoSliceMut<'_>], bytes_max: usize) -> usize {
        let mut taken = 0;
        for space in spaces {
            let part = space.len().min(bytes_max - taken).min(self.arrived.len());
            let (front, back) = self.arrived.as_slices();
            let of_front = part.min(front.len());
            space[..of_front].copy_from_slice(&front[..of_front]);
            space[of_front..part].copy_from_slice(&back[..part - of_front]);
            self.arrived.drain(..part);
            taken += part;
        }
        self.held_bytes -= taken;
        taken
    }
}
