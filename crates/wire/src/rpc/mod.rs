//! Frames of the RPC: the bytes that a client and a server exchange over a stream.
//!
//! The id of a session is 128 random bits that its client chose. A slot is the session's short number on all connections of
//! that client. Request ids count up in a session. `head` draws the layout of frames. Both sides treat received bytes as
//! hostile; a peer that violates the form is disconnected.

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

/// Longest payload, in bytes. Put larger data into registered memory, for one-sided reads.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Longest payload that the head's checksum covers, in bytes. A receiver buffers at most this many payload bytes before it
/// has verified the length.
pub const HEAD_CRC_PAYLOAD_BYTES_MAX: usize = 256;

/// Maximum number of requests of one session from the oldest unanswered one to the newest. The maximum bounds the state that
/// a server keeps for a session.
pub const WINDOW_MAX: u64 = 4096;

/// Maximum number of sessions of one connection.
pub const SESSIONS_MAX: usize = 1024;

/// Why received bytes are not a frame of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RpcFrameError {
    /// The stream does not begin with the magic.
    #[error("the peer does not speak farfork's RPC protocol")]
    BadMagic,
    /// The hello's checksum does not match.
    #[error("the peer's hello is damaged: its checksum does not match")]
    HelloChecksum,
    /// The peer supports no version that this side supports.
    #[error(
        "the peer speaks versions {} to {} of the RPC protocol, this farfork {} to {}; use the same release on both nodes",
        theirs.oldest, theirs.newest, ours.oldest, ours.newest
    )]
    Version {
        /// Versions of the peer.
        theirs: VersionRange,
        /// Versions of this side.
        ours: VersionRange,
    },
    /// The checksum of a head, or of a head with its short payload, does not match: bits were flipped, or the bytes are not
    /// a frame.
    #[error("a frame is damaged: its checksum does not match")]
    HeadChecksum,
    /// The receiver does not expect this kind of frame.
    #[error("unexpected frame kind {0}")]
    UnexpectedKind(u8),
    /// The payload is longer than the limit.
    #[error("a frame announces a payload of {bytes} bytes, {PAYLOAD_BYTES_MAX} at most")]
    TooLong {
        /// Length in the head.
        bytes: u32,
    },
    /// The payload's checksum does not match.
    #[error("a payload is damaged: its checksum does not match")]
    PayloadChecksum,
    /// The checksums match, but the frame is invalid.
    #[error("invalid frame: {0}")]
    Invalid(&'static str),
}

#[cfg(test)]
mod tests;
