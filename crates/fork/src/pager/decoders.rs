//! Decoders of bytes that another process or an earlier pager wrote, as entry points for the fuzz targets (`fuzz/`).
//! Most prepend the magic of the format to their input. The pager itself does not call them.

use std::fs;
use std::io;
use std::path::Path;

use farfork_wire::descriptor::Mapping;
use farfork_wire::{Descriptor, Token};

use super::control::protocol::{PagerReply, PagerRequest};
use super::journal::replay::replay_journal;
use super::journal::{self, Journal};
use super::page_map::PageMap;
use super::plan::origin::PageSource;
use super::plan::strategy::PagingStrategy;
use super::plan::{self, MemoryPlan};
use super::working_set::{self, AccessReport};

pub use super::working_set::SET_PAGES_MAX;

/// Whether bytes are a valid request of the control socket.
pub fn is_request(bytes: &[u8]) -> bool {
    postcard::from_bytes::<PagerRequest>(bytes).is_ok()
}

/// Whether bytes are a valid reply of the control socket.
pub fn is_reply(bytes: &[u8]) -> bool {
    postcard::from_bytes::<PagerReply>(bytes).is_ok()
}

/// Decodes a plan file, given the bytes after its magic.
///
/// # Errors
/// The reason why the file is invalid.
pub fn decode_plan(bytes: &[u8]) -> Result<MemoryPlan, String> {
    MemoryPlan::decode(&[plan::MAGIC, bytes].concat())
}

/// Returns the plan for a child of a valid descriptor, with all of its memory registered.
pub fn plan_from_descriptor(descriptor: &Descriptor) -> MemoryPlan {
    let whole =
        |mappings: &[Mapping]| -> Vec<_> { mappings.iter().map(|mapping| mapping.start..mapping.end).collect() };
    let maps =
        std::iter::once(&descriptor.mappings).chain(descriptor.descendants.iter().map(|member| &member.mappings));
    let registered: Vec<_> = maps.map(|mappings| whole(mappings)).collect();
    let registered: Vec<_> = registered.iter().map(|ranges| &ranges[..]).collect();
    let source = |number: usize| PageSource {
        seed: format!("n1.s{number:016x}").parse().expect("an id"),
        token: Token::from_bytes([7; 16]),
        owner: "tcp:127.0.0.1:7001".parse().expect("an address"),
    };
    let sources = (0..=descriptor.layers.len()).map(source).collect();
    MemoryPlan::from_descriptor(descriptor, sources, &registered, PagingStrategy::default())
}

/// Writes a journal with these bytes after its magic and this snapshot to `child_dir`. Returns how many address spaces
/// a pager restores from it, for a plan without pages; `None` if the journal is invalid.
///
/// # Errors
/// The file cannot be written.
pub fn count_replayed_spaces(child_dir: &Path, snapshot: &[u8], after_magic: &[u8]) -> io::Result<Option<usize>> {
    fs::write(child_dir.join(journal::JOURNAL_FILE), journal::build_file(snapshot, after_magic))?;
    let replayed = Journal::open(child_dir).ok().map(|(_, replay)| replay_journal(replay, &[PageMap::default()]));
    Ok(replayed.map(|replayed| replayed.spaces.len()))
}

/// Decodes a message about the pages that a child touched, given the bytes after its magic. `None` if it is another message.
pub fn decode_report(bytes: &[u8]) -> Option<AccessReport> {
    AccessReport::decode_set(&[working_set::REPORT_MAGIC, bytes].concat())
}

/// Returns how many pages a pager reads from a working set, given the bytes after its magic.
pub fn count_set_body_pages(bytes: &[u8]) -> u64 {
    count_set_pages(&[working_set::SET_MAGIC, bytes].concat())
}

/// As `count_set_body_pages`, but given all bytes of the working set.
pub fn count_set_pages(bytes: &[u8]) -> u64 {
    working_set::decode_set(bytes).iter().map(|pages| u64::from(pages.count)).sum()
}
