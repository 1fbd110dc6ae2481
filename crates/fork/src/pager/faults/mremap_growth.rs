//! Locked memory that one mremap(2) call moves and grows. The call touches the new pages before it reports the move,
//! and no page of the process can be installed before the report is read. The new pages are zero. So the pager
//! unregisters them until the report is read (`AddressSpace::unregister_range`), and the kernel fills them. The diagram
//! below shows the order of events.

use std::ops::Range;
use std::time::{Duration, Instant};

use farfork_sys::process::SystemCall;

use super::faulting_threads;
use super::retry_queue::PageFault;
use crate::pager::address_space::AddressSpace;
use crate::pager::child::Child;
use crate::pager::journal::AddressSpaceId;
use crate::pager::server::PagerServer;

/// The pager checks whether mremap(2) is the reason if no page can be installed for this time. Usually the missing
/// report arrives earlier, unless its thread waits to be scheduled.
const GROWTH_CHECK_DELAY: Duration = Duration::from_millis(10);

/// The pause between two checks of a child, in multiples of the duration of a check. It limits the share of the pager's
/// time that the checks take.
const GROWTH_CHECK_SHARE: u32 = 5;

/// Number of the system call mremap(2).
const SYS_MREMAP: u64 = 25;
const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;

// Why the thread would wait forever, and how it is recognized:
//
//  mremap(2)   holding the map lock: moves the mapping     │ until this is reported, no page of the process can be
//                                                          │ installed
//              without the lock: touches each new page     │ a fault, which cannot be answered
//              reports the move                            │ is not reached
//
// A fault may also be unanswered because another thread changes the map. The system call of the waiting thread tells
// the two cases apart. The fault has the thread's id. mremap(2) reads no memory of its caller, so a thread that waits
// for a page in mremap(2) waits for a page of the new end.
//
// The new end is registered again before any message is read (`AddressSpace::reregister_ranges`), and so before the
// thread continues. The thread then finds a single mapping again.

/// An mremap(2) call that may move memory, and grows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MremapGrowth {
    old_bytes: u64,
    new_bytes: u64,
    /// The target address if the flags have MREMAP_FIXED.
    fixed_address: Option<u64>,
}

impl MremapGrowth {
    /// Returns the growth if the system call is an mremap(2) that may move memory and grows it.
    fn from_system_call(call: &SystemCall) -> Option<Self> {
        let [_, old_bytes, new_bytes, flags, to, _] = call.arguments;
        let is_one = call.number == SYS_MREMAP && flags & MREMAP_MAYMOVE != 0 && 0 < old_bytes;
        let aligned = |bytes: u64| bytes.checked_next_multiple_of(farfork_wire::PAGE_SIZE);
        let (old_bytes, new_bytes) = (aligned(old_bytes)?, aligned(new_bytes)?);
        let to = (flags & MREMAP_FIXED != 0).then_some(to);
        (is_one && old_bytes < new_bytes).then_some(Self { old_bytes, new_bytes, fixed_address: to })
    }

    /// Returns the new range of the memory. `address` is the page that the call waits for, and must be the first new
    /// page.
    fn new_range(&self, address: u64) -> Option<Range<u64>> {
        let start = address.checked_sub(self.old_bytes)?;
        let end = start.checked_add(self.new_bytes)?;
        self.fixed_address.is_none_or(|to| to == start).then_some(start..end)
    }

    /// Returns the range to unregister if the call waits for the page at `address`. The page map must be empty in the
    /// new range, because the move was not reported yet.
    fn range_to_unregister(&self, address: u64, address_space: &AddressSpace) -> Option<Range<u64>> {
        let new_range = self.new_range(address).filter(|range| !address_space.has_segment_in(range));
        address_space.kernel_filled_from(address).or(new_range.map(|range| address..range.end))
    }
}

impl PageFault {
    /// Creates a fault from a message that was just read.
    pub(super) fn new(child: u64, space: AddressSpaceId, address: u64, thread: u32, now: Instant) -> Self {
        Self {
            child,
            space,
            address,
            is_first: true,
            thread,
            received_at: now,
            growth_check_at: now + GROWTH_CHECK_DELAY,
        }
    }
}

impl PagerServer<'_> {
    /// Unregisters the new end if a fault that cannot be answered is in memory that mremap(2) grows. Returns whether
    /// this was the case; the thread then continues.
    pub(super) fn unregister_growing_memory(&mut self, fault: &mut PageFault) -> bool {
        let Some(child) = self.children.get_mut(&fault.child).map(|served| &mut served.child) else { return false };
        if self.now < fault.growth_check_at || child.next_growth_check.is_some_and(|next| self.now < next) {
            return false;
        }
        fault.growth_check_at = self.now + self.now.saturating_duration_since(fault.received_at);
        let began = Instant::now();
        let found = child.find_growing_range(fault);
        child.next_growth_check = Some(self.now + GROWTH_CHECK_SHARE * began.elapsed());
        if let Some((address_space, range)) = child.spaces.get_mut(&fault.space).zip(found.clone()) {
            address_space.unregister_range(range);
        }
        found.is_some()
    }
}

impl Child {
    /// Returns the range to unregister if the fault's thread waits in an mremap(2) that grows memory.
    fn find_growing_range(&self, fault: &PageFault) -> Option<Range<u64>> {
        let address_space = self.spaces.get(&fault.space)?;
        faulting_threads::find_faulting_threads(self.pid, fault.thread).find_map(|tid| {
            let call = SystemCall::read(tid).ok().flatten()?;
            MremapGrowth::from_system_call(&call)?.range_to_unregister(fault.address, address_space)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(old_bytes: u64, new_bytes: u64, flags: u64) -> SystemCall {
        let arguments = [0x10_0000, old_bytes, new_bytes, flags, 0x90_0000, 0];
        SystemCall { number: SYS_MREMAP, arguments, ..SystemCall::default() }
    }

    #[test]
    fn only_a_moving_and_growing_mremap_is_recognized() {
        assert_eq!(MremapGrowth::from_system_call(&call(0x3000, 0x2000, MREMAP_MAYMOVE)), None);
        assert_eq!(MremapGrowth::from_system_call(&call(0x2000, 0x3000, 0)), None);
        assert_eq!(MremapGrowth::from_system_call(&call(0, 0x3000, MREMAP_MAYMOVE)), None);
        assert_eq!(
            MremapGrowth::from_system_call(&SystemCall { number: 0, ..call(0x1000, 0x3000, MREMAP_MAYMOVE) }),
            None
        );
        let grown = MremapGrowth::from_system_call(&call(0x1001, 0x3001, MREMAP_MAYMOVE)).unwrap();
        assert_eq!(grown.new_range(0x50_2000), Some(0x50_0000..0x50_4000));
    }

    #[test]
    fn a_fixed_mremap_grows_at_its_target() {
        let grown = MremapGrowth::from_system_call(&call(0x1000, 0x3000, MREMAP_MAYMOVE | MREMAP_FIXED)).unwrap();
        assert_eq!(grown.new_range(0x90_1000), Some(0x90_0000..0x90_3000));
        assert_eq!(grown.new_range(0x90_2000), None);
        // The arguments of a system call can have any value.
        let endless = MremapGrowth::from_system_call(&call(0x1000, u64::MAX << 12, MREMAP_MAYMOVE)).unwrap();
        assert_eq!(endless.new_range(0x90_1000), None);
    }
}
