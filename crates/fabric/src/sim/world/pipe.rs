//! One direction of a simulated connection: bytes in flight, and bytes that have arrived and were not received yet.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::time::Duration;

/// Maximum number of bytes that are sent and not received yet, in one direction. At the limit, the sender waits until
/// its peer receives some. About the size of a socket's buffers.
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
    /// Time at which the last packet arrives. Later packets arrive later, because packets keep their order.
    pub(super) last_arrival: Duration,
    /// Whether all further packets are lost, without notice to either side.
    pub(super) is_blackholed: bool,
    has_ended: bool,
    is_reset: bool,
}

impl SimPipe {
    /// Number of bytes that may be sent now.
    pub(super) fn free_bytes(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.held_bytes)
    }

    /// Adds a packet to the packets in flight.
    pub(super) fn push(&mut self, packet: SimPacket) {
        if let SimPacket::Segment(bytes) = &packet {
            self.held_bytes += bytes.len();
        }
        self.in_flight.push_back(packet);
    }

    /// Delivers the oldest packet in flight. Returns its number of bytes.
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

    /// Whether the reset of the connection has reached the reader.
    pub(super) fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// Whether a read would return bytes, the end of the stream or an error.
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

    /// Reads at most `bytes_max` bytes into the spaces, in their order.
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
