//! Locked memory that one mremap(2) moves and makes longer: its new end is filled by the kernel.
//!
//! ```text
//!  mremap(2)   under the lock of the map: the area moves     until this was told, no page of the process can be installed
//!              without: touches each page of the new end     a fault, which cannot be answered
//!              tells that the area has moved                 is not reached
//! ```
//!
//! A thread that would wait for ever so is told from one that waits for somebody else's change by what it does: page faults say whose they
//! are, and who waits for a page in mremap(2), which looks at no memory of its caller's, waits for one of the new end. What is new is zero, and
//! the kernel fills it by itself where it is not registered. So it is *lent* until the move is told: it is registered again before anything is read,
//! and so before its thread goes on, which finds one area, as it expects.

use std::ops::Range;
use std::time::{Duration, Instant};

use farfork_sys::process::SystemCall;

use super::retries::Fault;
use super::waiting;
use crate::pager::child::Child;
use crate::pager::journal::SpaceNumber;
use crate::pager::server::Server;
use crate::pager::space::Space;

/// How long a page could not be installed before it is asked why. Changes are told sooner, but for those of threads that wait for
/// their turn.
const PATIENCE: Duration = Duration::from_millis(10);

/// The questions of a child take no more than one part in so many of the pager's time, however many of its threads wait.
const SHARE: u32 = 5;

/// Number of the system call mremap(2).
const MREMAP: u64 = 25;
/// MREMAP_MAYMOVE.
const MAY_MOVE: u64 = 1;
/// MREMAP_FIXED.
const FIXED: u64 = 2;

/// An mremap(2) that moves memory and makes it longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lengthening {
    old_bytes: u64,
    new_bytes: u64,
    /// Where to, if the caller says so.
    to: Option<u64>,
}

impl Lengthening {
    /// If a system call is one.
    fn of(call: &SystemCall) -> Option<Self> {
        let [_, old_bytes, new_bytes, flags, to, _] = call.arguments;
        let is_one = call.number == MREMAP && flags & MAY_MOVE != 0 && 0 < old_bytes;
        let aligned = |bytes: u64| bytes.checked_next_multiple_of(farfork_wire::PAGE_SIZE);
        let (old_bytes, new_bytes) = (aligned(old_bytes)?, aligned(new_bytes)?);
        let to = (flags & FIXED != 0).then_some(to);
        (is_one && old_bytes < new_bytes).then_some(Self { old_bytes, new_bytes, to })
    }

    /// Where the memory is now, if the first page that it waits for is at this address.
    fn place(&self, address: u64) -> Option<Range<u64>> {
        let start = address.checked_sub(self.old_bytes)?;
        let end = start.checked_add(self.new_bytes)?;
        self.to.is_none_or(|to| to == start).then_some(start..end)
    }

    /// What of a space is to be lent to the kernel, where this waits for the page at an address. Nothing of the seed is known to be where
    /// the memory is now: its move was not told.
    fn wants(&self, address: u64, space: &Space) -> Option<Range<u64>> {
        let place = self.place(address).filter(|place| !space.shows_any(place));
        space.lent_from(address).or(place.map(|place| address..place.end))
    }
}

impl Fault {
    /// One that was just heard, of a space: its address, and the thread.
    pub(super) fn heard((child, space): (u64, SpaceNumber), (address, thread): (u64, u32), now: Instant) -> Self {
        Self { child, space, address, is_first: true, thread, heard_at: now, question_due: now + PATIENCE }
    }
}

impl Server<'_> {
    /// Whether a fault that cannot be answered was one of memory that is being made longer: its thread goes on then.
    pub(super) fn lends_what_grows(&mut self, fault: &mut Fault) -> bool {
        let Some(child) = self.children.get_mut(&fault.child).map(|served| &mut served.child) else { return false };
        if self.now < fault.question_due || child.next_question.is_some_and(|next| self.now < next) {
            return false;
        }
        fault.question_due = self.now + self.now.saturating_duration_since(fault.heard_at);
        let began = Instant::now();
        let found = child.grows_at(fault);
        child.next_question = Some(self.now + SHARE * began.elapsed());
        if let Some((space, range)) = child.spaces.get_mut(&fault.space).zip(found.clone()) {
            space.lend(range);
        }
        found.is_some()
    }
}

impl Child {
    /// What a fault's thread makes longer, if that is what it waits for.
    fn grows_at(&self, fault: &Fault) -> Option<Range<u64>> {
        let space = self.spaces.get(&fault.space)?;
        waiting::threads(self.pid, fault.thread).find_map(|tid| {
            let call = SystemCall::of(tid).ok().flatten()?;
            Lengthening::of(&call)?.wants(fault.address, space)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(old_bytes: u64, new_bytes: u64, flags: u64) -> SystemCall {
        let arguments = [0x10_0000, old_bytes, new_bytes, flags, 0x90_0000, 0];
        SystemCall { number: MREMAP, arguments, ..SystemCall::default() }
    }

    #[test]
    fn only_what_moves_and_grows_is_one() {
        assert_eq!(Lengthening::of(&call(0x3000, 0x2000, MAY_MOVE)), None);
        assert_eq!(Lengthening::of(&call(0x2000, 0x3000, 0)), None);
        assert_eq!(Lengthening::of(&call(0, 0x3000, MAY_MOVE)), None);
        assert_eq!(Lengthening::of(&SystemCall { number: 0, ..call(0x1000, 0x3000, MAY_MOVE) }), None);
        let grown = Lengthening::of(&call(0x1001, 0x3001, MAY_MOVE)).unwrap();
        assert_eq!(grown.place(0x50_2000), Some(0x50_0000..0x50_4000));
    }

    #[test]
    fn who_says_where_to_waits_there() {
        let grown = Lengthening::of(&call(0x1000, 0x3000, MAY_MOVE | FIXED)).unwrap();
        assert_eq!(grown.place(0x90_1000), Some(0x90_0000..0x90_3000));
        assert_eq!(grown.place(0x90_2000), None);
        // What a thread asks for next may be anything.
        let endless = Lengthening::of(&call(0x1000, u64::MAX << 12, MAY_MOVE)).unwrap();
        assert_eq!(endless.place(0x90_1000), None);
    }
}
