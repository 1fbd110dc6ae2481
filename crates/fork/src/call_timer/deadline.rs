//! The request to end one call, `CallDeadline`, and its encoding.
//!
//! Clients write a request to the timer's pipe by one write(2) of 64 bytes, which the kernel does not split.

use crate::capture::CallMark;

// Eight 64-bit words in the byte order of this machine:
//
//  0     8             16       24     32    40    48            56       64
//  ┌─────┬─────────────┬────────┬──────┬─────┬─────┬─────────────┬────────┐
//  │ tid │ start_ticks │ number │ mark │ rsp │ rip │ deadline_ns │ result │
//  └─────┴─────────────┴────────┴──────┴─────┴─────┴─────────────┴────────┘
/// Bytes of one request.
pub(super) const DEADLINE_BYTES: usize = 64;
const WORDS: usize = DEADLINE_BYTES / 8;

/// The call that a thread is in, and its return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallSite {
    /// The call's number, without a mark.
    pub(crate) number: u64,
    /// The call's mark, if it has one.
    pub(crate) mark: Option<CallMark>,
    /// The thread's stack pointer.
    pub(crate) rsp: u64,
    /// The address after the `syscall` instruction.
    pub(crate) rip: u64,
}

/// A call that must be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallDeadline {
    pub(crate) tid: i32,
    /// Start time of the thread, in clock ticks. Start time and id identify a thread uniquely.
    pub(crate) start_ticks: u64,
    pub(crate) site: CallSite,
    /// When the call must end, by CLOCK_MONOTONIC.
    pub(crate) deadline_ns: u64,
    /// The result that the call then returns.
    pub(crate) result: i64,
}

impl CallDeadline {
    pub(super) fn to_bytes(self) -> [u8; DEADLINE_BYTES] {
        let Self { tid, start_ticks, site: CallSite { number, mark, rsp, rip }, deadline_ns: end_ns, result } = self;
        let mark = mark.map_or(0, CallMark::to_number);
        let words =
            [tid.cast_unsigned().into(), start_ticks, number, mark.into(), rsp, rip, end_ns, result.cast_unsigned()];
        let mut bytes = [0; DEADLINE_BYTES];
        bytes
            .chunks_exact_mut(8)
            .zip(words)
            .for_each(|(into, word): (_, u64)| into.copy_from_slice(&word.to_ne_bytes()));
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; DEADLINE_BYTES]) -> Self {
        let words: [u64; WORDS] =
            std::array::from_fn(|index| u64::from_ne_bytes(std::array::from_fn(|at| bytes[index * 8 + at])));
        let [tid, start_ticks, number, mark, rsp, rip, end_ns, result] = words;
        let site = CallSite { number, mark: CallMark::from_number(mark as u32), rsp, rip };
        Self { tid: tid as i32, start_ticks, site, deadline_ns: end_ns, result: result.cast_signed() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_deadline_is_decoded_as_it_was_encoded() {
        let site = CallSite { number: 232, mark: Some(CallMark::new()), rsp: 0x7ffc_0000, rip: 0x40_1002 };
        let call_deadline = CallDeadline { tid: 77, start_ticks: 5, site, deadline_ns: 1 << 40, result: -11 };
        assert_eq!(CallDeadline::from_bytes(&call_deadline.to_bytes()), call_deadline);
        let unmarked = CallDeadline { site: CallSite { mark: None, ..site }, ..call_deadline };
        assert_eq!(CallDeadline::from_bytes(&unmarked.to_bytes()), unmarked);
    }
}
