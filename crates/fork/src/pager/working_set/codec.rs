//! Encoding of access reports and working sets. A pager sends an `AccessReport` to the owner of a seed as a fabric
//! message. It reads the set from the owner as the extent `WORKING_SET`. A set may change between the read of its
//! length and the read of its bytes. So `decode_set` accepts a set that is truncated anywhere, or has zeroes after its
//! end.

use farfork_wire::descriptor::ExtentId;
use farfork_wire::{SeedId, Token};
use serde::{Deserialize, Serialize};

use super::MarkedRun;

// The formats of reports and sets. In a set, a run without pages (`MarkedRun::SEPARATOR`) separates touched pages from
// pages that were only fetched.
//
//  0            8                                   0            8
//  ┌────────────┬────────────────────────┐          ┌────────────┬───────────────────────────┬────────┐
//  │ FFTRACE1   │ AccessReport, postcard │          │ FFWSET1\n  │ MarkedRun, postcard, each │ zeroes │
//  └────────────┴────────────────────────┘          └────────────┴───────────────────────────┴────────┘

pub(in crate::pager) const REPORT_MAGIC: &[u8] = b"FFTRACE1";
pub(in crate::pager) const SET_MAGIC: &[u8] = b"FFWSET1\n";

/// Maximum number of runs of pages in one report. A run has at most 21 bytes, so a report fits into a 64-KiB message.
pub(super) const REPORT_RUNS_MAX: usize = 2800;

/// A report of a child's accesses to its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessReport {
    /// The child's seed.
    pub seed: SeedId,
    /// The seed's token.
    pub token: Token,
    /// The last page of the child's previous report.
    pub(crate) after: Option<(ExtentId, u64)>,
    /// Pages that were fetched or touched since the previous report, in order.
    pub(crate) pages: Vec<MarkedRun>,
    /// Pages on trial that the child has never touched. Empty while the child runs.
    pub(crate) untouched_trials: Vec<MarkedRun>,
    /// Whether the child has ended.
    pub(crate) is_last: bool,
}

impl AccessReport {
    /// Encodes the report as a message.
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, REPORT_MAGIC.to_vec()).unwrap_or_default()
    }

    /// Decodes a message; `None` if it is not a report.
    pub fn decode_set(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes.strip_prefix(REPORT_MAGIC)?).ok()
    }
}

/// Encodes a set. An empty set has no bytes.
pub(super) fn encode_set(set: &[MarkedRun]) -> Vec<u8> {
    let magic = if set.is_empty() { Vec::new() } else { SET_MAGIC.to_vec() };
    set.iter().fold(magic, |bytes, pages| postcard::to_extend(pages, bytes).unwrap_or_default())
}

/// Decodes the pages of a set, in order. Returns none for bytes of another format.
pub(in crate::pager) fn decode_set(bytes: &[u8]) -> Vec<MarkedRun> {
    let mut rest = bytes.strip_prefix(SET_MAGIC).unwrap_or_default();
    let mut set = Vec::new();
    while let Ok((pages, after)) = postcard::take_from_bytes::<MarkedRun>(rest)
        && (pages.count > 0 || pages == MarkedRun::SEPARATOR)
    {
        set.push(pages);
        rest = after;
    }
    set
}

#[cfg(test)]
mod tests {
    use farfork_wire::frame::change::MESSAGE_BYTES_MAX;

    use super::*;

    fn report(runs: usize) -> AccessReport {
        let pages = MarkedRun { extent: ExtentId(u32::MAX), first: u64::MAX, count: u32::MAX, mark: true };
        AccessReport {
            seed: format!("{}.sffffffffffffffff", "n".repeat(63)).parse().unwrap(),
            token: Token::from_bytes([0xff; 16]),
            after: Some((ExtentId(u32::MAX), u64::MAX)),
            pages: vec![pages; runs / 2],
            untouched_trials: vec![pages; runs / 2],
            is_last: true,
        }
    }

    #[test]
    fn the_longest_report_fits_into_a_message_and_is_read_back() {
        let bytes = report(REPORT_RUNS_MAX).encode();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{}", bytes.len());
        assert_eq!(AccessReport::decode_set(&bytes), Some(report(REPORT_RUNS_MAX)));
        assert_eq!(AccessReport::decode_set(&bytes[..bytes.len() - 1]), None);
        assert_eq!(AccessReport::decode_set(b"something else"), None);
    }

    #[test]
    fn a_truncated_set_is_read_back_in_part() {
        let set = report(6).pages;
        let mut bytes = encode_set(&set);
        assert_eq!(decode_set(&bytes[..bytes.len() - 1]), set[..2]);
        bytes.extend([0; 9]);
        assert_eq!(decode_set(&bytes), set);
        let parted = [set[0], MarkedRun::SEPARATOR, set[1]];
        assert_eq!(decode_set(&encode_set(&parted)), parted);
        assert!(decode_set(b"").is_empty() && decode_set(b"something else").is_empty() && encode_set(&[]).is_empty());
    }
}
