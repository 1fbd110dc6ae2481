//! Frames of the fabric: the bytes that a requester and the owner of a seed exchange over a stream.
//!
//! Each direction is one hello, then frames; `hello` and `header` draw their layout, and [`request`], [`change`] and
//! [`reply`] the bodies. Both sides treat received bytes as hostile. A peer that violates the form is disconnected,
//! because nothing after a damaged frame can be trusted.

//  requester                                   owner
//     │ hello                            hello   │   both at once, neither waits for the other's
//     │─────────────────────────────────────────▶│
//     │◀─────────────────────────────────────────│
//     │ OPEN handle = (seed, token)              │   never answered: an error shows in the reads that follow
//     │ READ #1 handle, spans                    │
//     │ READ #2 handle, spans                    │   many in flight
//     │ INTRODUCE connection id                  │   never answered: the changes that follow belong to it
//     │ WRITE #3 handle, spans, bytes            │
//     │ MESSAGE #4 bytes                         │
//     │─────────────────────────────────────────▶│
//     │      DATA #1, REFUSED #2, WRITTEN #3 …   │   in the order of the requests
//     │◀─────────────────────────────────────────│
//
// A handle is the requester's short name for a seed and its token, so that a request need not carry them. It is valid for
// one connection; another OPEN binds it to another seed. The owner looks up seed and token at every read: a handle saves
// bytes, not checks.

pub mod change;
mod header;
mod hello;
pub mod reply;
pub mod request;

pub use header::{FrameKind, HEADER_BYTES, Header};
pub use hello::{HELLO_BYTES, VERSION, decode_hello, encode_hello};

/// Maximum number of bytes of one read: 256 pages. A larger read would only delay the replies after it.
pub const READ_BYTES_MAX: usize = 1 << 20;

/// Maximum number of spans of one read: one for each page of a read of [`READ_BYTES_MAX`].
pub const SPANS_MAX: usize = 256;

/// Why received bytes are not a frame of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricFrameError {
    /// The stream does not begin with the magic.
    #[error("the peer does not speak farfork's fabric protocol")]
    BadMagic,
    /// The hello's checksum does not match.
    #[error("the peer's hello is damaged: its checksum does not match")]
    HelloChecksum,
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {theirs} of the fabric protocol, this farfork version {VERSION}; use the same release on both nodes"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
    },
    /// The header's checksum does not match: bits were flipped, or the bytes are not a header.
    #[error("a frame's header is damaged: its checksum does not match")]
    HeaderChecksum,
    /// The receiver does not expect this kind of frame.
    #[error("unexpected frame kind {0}")]
    UnexpectedKind(u8),
    /// The frame is longer than its kind permits.
    #[error("a {kind:?} frame announces {bytes} bytes, more than its limit")]
    TooLong {
        /// Kind of the frame.
        kind: FrameKind,
        /// Length in the header.
        bytes: u32,
    },
    /// The body's checksum does not match.
    #[error("the body of frame {id} is damaged: its checksum does not match")]
    BodyChecksum {
        /// Id of the request.
        id: u64,
    },
    /// The checksums match, but the body is invalid.
    #[error("invalid {kind:?} frame: {what}")]
    InvalidBody {
        /// Kind of the frame.
        kind: FrameKind,
        /// The problem.
        what: &'static str,
    },
}

/// Takes little-endian numbers from the front of a body.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(head)
    }

    fn read_u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn read_u64(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests;
