//! The byte format of an image. Pure: `reader` and `writer` do the I/O.
//!
//! Magic and version are first, so that a reader of any version can report the version that it found. The number of
//! pages follows from the descriptor in the header, so a truncated image is detected at open.

use farfork_wire::{PAGE_SIZE, SeedId, Token};
use serde::{Deserialize, Serialize};

//  0          8         12        16            24
//  ┌──────────┬─────────┬─────────┬─────────────┬───────────────────┬───────────────┬──────┬───────────────┐
//  │ FFIMAGE\n│ version │ CRC-32C │ bytes of    │ header (postcard) │ CRC-32C of    │ 0 …  │ pages, in the │
//  │          │ u32 LE  │ u32 LE  │header u64 LE│                   │ each page, LE │      │ order of slots│
//  └──────────┴─────────┴─────────┴─────────────┴───────────────────┴───────────────┴──────┴───────────────┘
//                                 └─────────── the first CRC covers these ──────────┘      └ a multiple of 4096
const MAGIC: &[u8; 8] = b"FFIMAGE\n";
const VERSION: u32 = 1;
/// Size of the fields before the header, in bytes.
pub(super) const PREFIX_BYTES: usize = 24;
/// Start of the range that the first checksum covers.
const CHECKSUM_START: usize = 16;
/// Size of a page's checksum, in bytes.
const CHECKSUM_BYTES: u64 = 4;

/// Maximum size of the header, in bytes: a descriptor of maximum size, and 1 MiB for the other fields.
pub(super) const HEADER_BYTES_MAX: u64 = farfork_wire::descriptor::DESCRIPTOR_BYTES_MAX as u64 + (1 << 20);

/// Maximum number of pages of an image: 4 TiB, more than the memory of a node.
pub(super) const PAGES_MAX: u64 = 1 << 30;

/// Facts about the seed of an image, without its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageHeader {
    /// Id of the seed.
    pub seed: SeedId,
    /// The token of the seed.
    pub token: Token,
    /// The seed's descriptor, as it is served.
    pub descriptor: Vec<u8>,
    /// The daemon's state of the seed, which only the daemon interprets.
    pub daemon_state: Vec<u8>,
}

/// The layout of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImageLayout {
    pub(super) page_count: u64,
    pub(super) checksums_offset: u64,
    pub(super) pages_offset: u64,
}

impl ImageLayout {
    /// Returns the layout for `head_bytes` bytes of header and `pages` pages.
    pub(super) fn new(head_bytes: u64, pages: u64) -> Self {
        let checksums_at = PREFIX_BYTES as u64 + head_bytes;
        let pages_at = (checksums_at + pages * CHECKSUM_BYTES).next_multiple_of(PAGE_SIZE);
        Self { page_count: pages, checksums_offset: checksums_at, pages_offset: pages_at }
    }

    /// Length of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.pages_offset + self.page_count * PAGE_SIZE
    }

    /// Length of the file up to the end of the checksums.
    pub(super) fn index_bytes(&self) -> u64 {
        self.checksums_offset + self.page_count * CHECKSUM_BYTES
    }

    /// Offset of a page.
    pub(super) fn page_offset(&self, slot: u64) -> u64 {
        self.pages_offset + slot * PAGE_SIZE
    }
}

/// Encodes the bytes before the pages.
pub(super) fn encode_index(head: &[u8], checksums: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + head.len() + checksums.len() * 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(head.len() as u64).to_le_bytes());
    bytes.extend_from_slice(head);
    checksums.iter().for_each(|checksum| bytes.extend_from_slice(&checksum.to_le_bytes()));
    let checksum = crc32c::crc32c(&bytes[CHECKSUM_START..]);
    bytes[12..CHECKSUM_START].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Decodes the length of the header from the first [`PREFIX_BYTES`] bytes.
pub(super) fn decode_header_bytes(prefix: &[u8; PREFIX_BYTES]) -> Result<u64, String> {
    if prefix[..8] != *MAGIC {
        return Err("its first bytes are not those of an image".to_owned());
    }
    let version = u32_at(prefix, 8);
    if version != VERSION {
        return Err(format!("it has version {version}, this farfork reads version {VERSION}"));
    }
    let bytes = u64::from_le_bytes(std::array::from_fn(|index| prefix[16 + index]));
    if bytes > HEADER_BYTES_MAX { Err(format!("its header is too long: {bytes} bytes")) } else { Ok(bytes) }
}

/// Whether the bytes before the pages match their checksum.
pub(super) fn is_index_intact(index: &[u8]) -> bool {
    crc32c::crc32c(&index[CHECKSUM_START..]) == u32_at(index, 12)
}

/// Decodes the checksums of pages.
pub(super) fn decode_checksums(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32_at(word, 0)).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}
