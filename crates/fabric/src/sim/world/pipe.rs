//! One direction of a simulated connection: bytes in flight, and bytes that have arrived and were not received yet.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::time::Duration;

/// Most bytes in one direction. A sender waits for its peer to receive some. As large as a socket's buffers, some hundred
/// KiB.
pub(super) const WINDOW_BYTES: usize = 256 << 10;

/// A packet on its way.
#[derive(Debug)]
pub(super) enum SimPacket {
    /// Bytes.
    Segment(Vec<u8>),
    /// The end of the stream.
    Fin,
    /// The connection was reset.
    Reset,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct SimPipe {
    in_flight: VecDeque<SimPacket>,
    arrived: VecDeque<u8>,
    /// Bytes in flight or arrived.
    held_bytes: usize,
    /// When the last packet arrives: packets keep their order.
    pub(super) last_arrival: Duration,
    /// Nothing more arrives, and neither side is notified.
    pub(super) is_blackholed: bool,
    has_ended: bool,
    is_reset: bool,
}

impl SimPipe {
    /// Number of bytes that may be sent now.
    pub(super) fn free_bytes(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.held_bytes)
    }

    /// Sends a packet.
    pub(super) fn push(&mut self, packet: SimPacket) {
        if let SimPacket::Segment(bytes) = &packet {
            self.held_bytes += bytes.len();
        }
        self.in_flight.push_back(packet);
    }

    /// Delivers the oldest packet. Returns its number of bytes.
    pub(super) fn deliver_next(&mut self) -> usize {
        match self.in_flight.pop_front() {
            Some(SimPacket::Segment(bytes)) => {
                self.arrived.extend(&bytes);
                return bytes.len();
            }
            Some(SimPacket::Fin) => self.has_ended = true,
            Some(SimPacket::Reset) => self.is_reset = true,
            None => {}
        }
        0
    }

    /// Whether its reader was notified that the connection was reset.
    pub(super) fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// Whether its reader would get something.
    pub(super) fn is_readable(&self) -> bool {
        !self.arrived.is_empty() || self.has_ended || self.is_reset
    }

    /// Number of bytes for the reader.
    pub(super) fn readable_bytes(&self) -> usize {
        self.arrived.len()
    }

    /// Whether the stream has ended and all bytes were read.
    pub(super) fn is_eof(&self) -> bool {
        self.has_ended && self.arrived.is_empty()
    }

    /// Reads at most `bytes_max` into the spaces, in their order.
    pub(super) fn read_into(&mut self, spaces: &mut [IoSliceMut<'_>], bytes_max: usize) -> usize {
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
