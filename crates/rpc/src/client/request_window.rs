//! The requests of one session, from submission to completion.

use std::time::Instant;

use farfork_wire::rpc::RequestHead;

use crate::retransmit::{FrameLocation, RetransmitBuffer};

/// A request that has not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingRequest {
    /// The caller's id for the request.
    pub(super) tag: u64,
    pub(super) handler: u32,
    pub(super) checked: bool,
    /// Whether the request was sent, so that the server may have received it.
    pub(super) sent: bool,
    pub(super) deadline: Option<Instant>,
    /// Location of its sealed frame in the retransmit buffer.
    pub(super) location: FrameLocation,
}

//            |<----------- window ------------->|
//   ---------+---------+-------+---------+------+--> ids
//    ended   | pending | ended | pending |      |
//   ---------+---------+-------+---------+------+
//      oldest_pending                 next_id

/// The requests of one session.
#[derive(Debug)]
pub(super) struct RequestWindow {
    /// Requests by id modulo the number of entries, which is a power of two.
    entries: Box<[Option<PendingRequest>]>,
    window: u64,
    oldest_pending: u64,
    next_id: u64,
}

impl RequestWindow {
    pub(super) fn new(window: u64) -> Self {
        let entries = vec![None; window.next_power_of_two() as usize].into_boxed_slice();
        Self { entries, window, oldest_pending: 0, next_id: 0 }
    }

    fn index(&self, id: u64) -> usize {
        id as usize & (self.entries.len() - 1)
    }

    /// The id of the oldest request that has not ended, or the next id if all have ended.
    pub(super) fn oldest_pending(&self) -> u64 {
        self.oldest_pending
    }

    /// Returns the id of the next request, if the window has room.
    pub(super) fn next_id(&self) -> Option<u64> {
        (self.next_id - self.oldest_pending < self.window).then_some(self.next_id)
    }

    /// Adds the next request.
    pub(super) fn push(&mut self, request: PendingRequest) {
        let index = self.index(self.next_id);
        self.entries[index] = Some(request);
        self.next_id += 1;
    }

    /// Whether a request has had this id.
    pub(super) fn was_issued(&self, id: u64) -> bool {
        id < self.next_id
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut PendingRequest> {
        let is_inside = id >= self.oldest_pending && id < self.next_id;
        is_inside.then(|| self.index(id)).and_then(|index| self.entries[index].as_mut())
    }

    /// Removes a request that ended, and returns it.
    pub(super) fn take(&mut self, id: u64) -> Option<PendingRequest> {
        if id < self.oldest_pending || id >= self.next_id {
            return None;
        }
        let taken = self.entries[self.index(id)].take()?;
        while self.oldest_pending < self.next_id && self.entries[self.index(self.oldest_pending)].is_none() {
            self.oldest_pending += 1;
        }
        Some(taken)
    }

    /// The ids of all pending requests, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> + use<'_> {
        (self.oldest_pending..self.next_id).filter(|id| self.entries[self.index(*id)].is_some())
    }

    /// Returns the id of the first pending request that matches.
    pub(super) fn find(&self, matches: impl Fn(&PendingRequest) -> bool) -> Option<u64> {
        self.ids().find(|id| self.entries[self.index(*id)].as_ref().is_some_and(&matches))
    }

    /// Returns the earliest deadline of the pending requests.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.ids().filter_map(|id| self.entries[self.index(id)].as_ref()?.deadline).min()
    }

    /// Seals a request's frame again for a new connection: slot, remaining time and acknowledgement have changed.
    pub(super) fn reseal(
        &mut self,
        id: u64,
        slot: u16,
        now: Instant,
        retransmit_buffer: &mut RetransmitBuffer,
    ) -> Option<FrameLocation> {
        let oldest_pending_distance = (id - self.oldest_pending) as u32;
        let request = self.get_mut(id)?;
        request.sent = true;
        let PendingRequest { handler, checked, deadline, location, .. } = *request;
        let remaining_us = remaining_us(deadline, now);
        let (frame, apart) = retransmit_buffer.frame_mut(&location);
        RequestHead { slot, handler, id, oldest_pending_distance, remaining_us, has_payload_crc: checked }
            .seal(frame, apart);
        Some(location)
    }
}

/// Encodes the time to the deadline in microseconds; 0 for none. A time that does not fit 32 bits (more than an hour)
/// counts as none.
pub(super) fn remaining_us(deadline: Option<Instant>, now: Instant) -> u32 {
    let Some(deadline) = deadline else { return 0 };
    u32::try_from(deadline.saturating_duration_since(now).as_micros()).unwrap_or(0).max(1)
}
