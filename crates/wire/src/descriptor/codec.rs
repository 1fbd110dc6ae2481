//! Encodes a descriptor as bytes, and decodes it.
//!
//! Magic and version are first, so that a reader of any version can name the format. The checksum covers length and body, so
//! that truncation or a flipped bit is found before anything is parsed.

use super::{Descriptor, InvalidDescriptor};

//  0        8         12          16                 24
//  ┌────────┬─────────┬───────────┬──────────────────┬───────────────────────┐
//  │ magic  │ version │ CRC-32C   │ length of body   │ body (postcard)       │
//  │ 8      │ u32 LE  │ u32 LE    │ u64 LE           │                       │
//  └────────┴─────────┴───────────┴──────────────────┴───────────────────────┘
const MAGIC: [u8; 8] = *b"FARFORK\0";

/// The version of the format. Every change of the format raises the version. All nodes of a cluster run the same release,
/// but an image may be older: [`EARLIER_VERSIONS`] are read too.
pub const DESCRIPTOR_VERSION: u32 = 32;

/// Earlier versions, each with the lists at the end of a body that it lacks, as empty lists: [`Descriptor::attributes`] and
/// [`Descriptor::moved_epoll_targets`] before version 29, and [`Descriptor::open_file_attributes`] before version 30. Version 32
/// has more states of sockets, and packets in pipes. There is no version 31: one flipped bit would make it 30, whose lists are
/// the same.
const EARLIER_VERSIONS: [(u32, &[u8]); 3] = [(28, &[0; 3]), (29, &[0]), (30, &[])];

const HEADER_BYTES: usize = 24;

/// Largest descriptor, in bytes. 64 MiB hold about a million mappings, or about twenty thousand threads with AVX-512
/// registers. [`encode`] and [`decode`] refuse a larger descriptor.
pub const DESCRIPTOR_BYTES_MAX: usize = 64 << 20;

/// A descriptor is larger than [`DESCRIPTOR_BYTES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the descriptor has {bytes} bytes, {DESCRIPTOR_BYTES_MAX} at most")]
pub struct OversizedDescriptor {
    /// Size of the encoded descriptor, in bytes.
    pub bytes: usize,
}

/// Why bytes are not a descriptor.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The magic is missing.
    #[error("not a seed descriptor: the magic is missing")]
    Magic,
    /// Written by another version.
    #[error(
        "the descriptor has version {found}, this farfork reads version {DESCRIPTOR_VERSION}; use the same release on both nodes"
    )]
    Version {
        /// The version of the descriptor.
        found: u32,
    },
    /// It is too large.
    #[error(transparent)]
    Oversized(#[from] OversizedDescriptor),
    /// The body's length differs from the length in the header.
    #[error("the descriptor is damaged: its body has {found} bytes instead of {expected}")]
    Length {
        /// Length of the body, according to the header.
        expected: u64,
        /// Number of bytes after the header.
        found: u64,
    },
    /// The checksum does not match.
    #[error("the descriptor is damaged: its checksum does not match")]
    Checksum,
    /// The body cannot be parsed.
    #[error("the descriptor's body cannot be read: {0}")]
    Body(#[from] postcard::Error),
    /// The body can be parsed, but is inconsistent.
    #[error(transparent)]
    Invalid(#[from] InvalidDescriptor),
}

/// Encodes a descriptor.
///
/// # Errors
/// It is too large.
///
/// # Panics
/// Never in practice: the types have no state that postcard refuses.
pub fn encode(descriptor: &Descriptor) -> Result<Vec<u8>, OversizedDescriptor> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes = postcard::to_extend(descriptor, bytes).expect("a descriptor serialises");
    check_size(&bytes)?;
    let body_bytes = (bytes.len() - HEADER_BYTES) as u64;
    bytes[16..24].copy_from_slice(&body_bytes.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[16..]);
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&DESCRIPTOR_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

/// Reads and validates a descriptor from bytes that may be hostile.
///
/// # Errors
/// The first check that failed.
pub fn decode(bytes: &[u8]) -> Result<Descriptor, DecodeError> {
    let word = |at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
    if bytes.get(..8) != Some(&MAGIC[..]) {
        return Err(DecodeError::Magic);
    }
    let version = u32::from_le_bytes(word(8).ok_or(DecodeError::Magic)?);
    let missing_lists = EARLIER_VERSIONS.iter().find(|(earlier, _)| *earlier == version).map(|(_, lists)| *lists);
    if version != DESCRIPTOR_VERSION && missing_lists.is_none() {
        return Err(DecodeError::Version { found: version });
    }
    check_size(bytes)?;
    let checksum = u32::from_le_bytes(word(12).ok_or(DecodeError::Magic)?);
    let announced: [u8; 8] = bytes.get(16..HEADER_BYTES).and_then(|b| b.try_into().ok()).ok_or(DecodeError::Magic)?;
    let expected = u64::from_le_bytes(announced);
    let found = (bytes.len() - HEADER_BYTES) as u64;
    if expected != found {
        return Err(DecodeError::Length { expected, found });
    }
    if crc32c::crc32c(&bytes[16..]) != checksum {
        return Err(DecodeError::Checksum);
    }
    let body = &bytes[HEADER_BYTES..];
    let descriptor: Descriptor = match missing_lists {
        Some(lists) => match postcard::take_from_bytes(&[body, lists].concat())? {
            (descriptor, []) => descriptor,
            // The version is not covered by the checksum: this body has the lists already.
            _ => return Err(DecodeError::Checksum),
        },
        None => postcard::from_bytes(body)?,
    };
    descriptor.validate()?;
    Ok(descriptor)
}

fn check_size(bytes: &[u8]) -> Result<(), OversizedDescriptor> {
    let bytes = bytes.len();
    if bytes > DESCRIPTOR_BYTES_MAX { Err(OversizedDescriptor { bytes }) } else { Ok(()) }
}
