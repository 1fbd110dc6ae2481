//! Frames of the RPC: the bytes that a client and a server exchange over a stream.
//!
//! A session is 128 random bits that its client chose. A slot is its short name on all connections of that client.
//! Request ids count up in a session. `head` draws the layout of frames. Both sides treat received bytes as hostile; a
//! peer that violates the form is disconnected.

//  client                                         server
//     │ hello                               hello   │   both at once
//     │────────────────────────────────────────────▶│
//     │◀────────────────────────────────────────────│   each takes the newest version that both know
//     │ OPEN slot 0 = session 7c2e…                 │
//     │────────────────────────────────────────────▶│
//     │                              OPENED slot 0  │   requests follow only now: an unknown session is never served
//     │◀────────────────────────────────────────────│
//     │ REQUEST slot 0 #8 │ REQUEST slot 0 #9 │ …   │   many in flight, each acknowledges earlier replies
//     │────────────────────────────────────────────▶│
//     │               REPLY slot 0 #8 │ …           │   in any order
//     │◀────────────────────────────────────────────│
//     ╳ the connection breaks                       │   the server keeps the session and its unacknowledged replies
//     │ hello, OPEN slot 0 = 7c2e… resumed          │
//     │────────────────────────────────────────────▶│
//     │                              OPENED slot 0  │   or: it has expired; nothing is served twice
//     │◀────────────────────────────────────────────│
//     │ REQUEST slot 0 #9 again                     │
//     │────────────────────────────────────────────▶│
//     │                            REPLY slot 0 #9  │   cached, or from the execution that has not ended
//     │◀────────────────────────────────────────────│

mod client_frame;
mod head;
mod hello;
mod server_frame;
mod status;

pub use client_frame::{ClientFrame, REQUEST_HEAD_BYTES, RequestHead, SessionId};
pub use head::{Frame, FrameHead, PAYLOAD_CRC_BYTES};
pub use hello::{HELLO_BYTES, VersionRange};
pub use server_frame::{REPLY_HEAD_BYTES, ReplyHead, ServerFrame};
pub use status::{OpenOutcome, Status};

/// Longest payload, in bytes. What is larger belongs into registered memory, which is read one-sidedly.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Longest payload that the head's checksum covers, in bytes: so much may arrive before a length is verified.
pub const HEAD_CRC_PAYLOAD_BYTES_MAX: usize = 256;

/// Most requests of one session between the oldest unanswered one and the newest: what a server remembers of a session.
pub const WINDOW_MAX: u64 = 4096;

/// Most sessions of one connection.
pub const SESSIONS_MAX: usize = 1024;

/// Why received bytes are no frame of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RpcFrameError {
    /// The stream does not begin with the magic.
    #[error("the peer does not speak farfork's RPC protocol")]
    BadMagic,
    /// A hello in which bits were flipped.
    #[error("the peer's greeting is damaged: its checksum disagrees")]
    HelloChecksum,
    /// A peer with which no version is shared.
    #[error(
        "the peer speaks versions {} to {} of the RPC protocol, this farfork {} to {}; use the same release on both nodes",
        theirs.oldest, theirs.newest, ours.oldest, ours.newest
    )]
    Version {
        /// What the peer speaks.
        theirs: VersionRange,
        /// What this side speaks.
        ours: VersionRange,
    },
    /// A head, or the short payload behind it, in which bits were flipped, or bytes that are none.
    #[error("a frame is damaged: its checksum disagrees")]
    HeadChecksum,
    /// A kind of frame that the receiver does not expect.
    #[error("a frame has kind {0}, which has no meaning here")]
    UnexpectedKind(u8),
    /// A frame that is longer than any may be.
    #[error("a frame announces a payload of {bytes} bytes, {PAYLOAD_BYTES_MAX} at most")]
    TooLong {
        /// What its head announces.
        bytes: u32,
    },
    /// A payload in which bits were flipped.
    #[error("a payload is damaged: its checksum disagrees")]
    PayloadChecksum,
    /// A frame that is sound but makes no sense.
    #[error("a frame makes no sense: {0}")]
    Invalid(&'static str),
}

#[cfg(test)]
mod tests;
