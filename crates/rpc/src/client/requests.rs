//! The requests of one session that have not ended, from when they are submitted.
//!
//! ```text
//!            │◀──────────── window ─────────────▶│
//!   ─────────┼─────────┬──────┬─────────┬────────┼──▶ ids
//!    ended   │ waiting │ ended│ waiting │        │
//!   ─────────┴─────────┴──────┴─────────┴────────┘
//!          floor                      next
//! ```

use std::time::Instant;

use farfork_wire::rpc::RequestHead;

use crate::spool::{Place, Spool};

/// A request that has not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    /// What its caller knows it by.
    pub(super) tag: u64,
    pub(super) handler: u32,
    pub(super) checked: bool,
    /// Whether the server may have seen it.
    pub(super) sent: bool,
    pub(super) deadline: Option<Instant>,
    /// Its frame, sealed.
    pub(super) place: Place,
}

/// The requests of one session.
#[derive(Debug)]
pub(super) struct Requests {
    /// By id, modulo their number, which is a power of two.
    entries: Box<[Option<Waiting>]>,
    window: u64,
    floor: u64,
    next: u64,
}

impl Requests {
    pub(super) fn new(window: u64) -> Self {
        let entries = vec![None; window.next_power_of_two() as usize].into_boxed_slice();
        Self { entries, window, floor: 0, next: 0 }
    }

    fn index(&self, id: u64) -> usize {
        id as usize & (self.entries.len() - 1)
    }

    /// The oldest that has not ended, or the next where all have.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The id of the next request, if the window has room.
    pub(super) fn next(&self) -> Option<u64> {
        (self.next - self.floor < self.window).then_some(self.next)
    }

    /// Takes the next request.
    pub(super) fn push(&mut self, request: Waiting) {
        let index = self.index(self.next);
        self.entries[index] = Some(request);
        self.next += 1;
    }

    /// Whether this id was ever given.
    pub(super) fn was_given(&self, id: u64) -> bool {
        id < self.next
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Waiting> {
        let is_inside = id >= self.floor && id < self.next;
        is_inside.then(|| self.index(id)).and_then(|index| self.entries[index].as_mut())
    }

    /// Ends a request.
    pub(super) fn take(&mut self, id: u64) -> Option<Waiting> {
        if id < self.floor || id >= self.next {
            return None;
        }
        let taken = self.entries[self.index(id)].take()?;
        while self.floor < self.next && self.entries[self.index(self.floor)].is_none() {
            self.floor += 1;
        }
        Some(taken)
    }

    /// The ids of all that wait, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> + use<'_> {
        (self.floor..self.next).filter(|id| self.entries[self.index(*id)].is_some())
    }

    /// The first that waits and matches.
    pub(super) fn find(&self, matches: impl Fn(&Waiting) -> bool) -> Option<u64> {
        self.ids().find(|id| self.entries[self.index(*id)].as_ref().is_some_and(&matches))
    }

    /// The next deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.ids().filter_map(|id| self.entries[self.index(id)].as_ref()?.deadline).min()
    }

    /// Seals a request's frame anew, for another connection.
    pub(super) fn reseal(&mut self, id: u64, slot: u16, now: Instant, spool: &mut Spool) -> Option<Place> {
        let behind = (id - self.floor) as u32;
        let request = self.get_mut(id)?;
        request.sent = true;
        let Waiting { handler, checked, deadline, place, .. } = *request;
        let remaining_us = remaining_us(deadline, now);
        let (frame, apart) = spool.frame_mut(&place);
        RequestHead { slot, handler, id, behind, remaining_us, checked }.seal(frame, apart);
        Some(place)
    }
}

/// Time to the deadline as a request says it; a deadline beyond an hour is none.
pub(super) fn remaining_us(deadline: Option<Instant>, now: Instant) -> u32 {
    let Some(deadline) = deadline else { return 0 };
    u32::try_from(deadline.saturating_duration_since(now).as_micros()).unwrap_or(0).max(1)
}
