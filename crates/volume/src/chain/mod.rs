//! The chain: each node of a volume forwards a client's log to the next node, and the acknowledgement returns along the same
//! path.

//   client's node ──one-sided writes──▶ next member ──▶ … ──▶ last member
//         ▲         StoreLog(end)            │                    │
//         └────────────── reply ─────────────┴────── reply ───────┘   to the last piece: sent when all later members have the log

pub mod calls;
mod compressed_chunk;
mod compression;
pub mod copier;
mod link;
mod log_region;
mod log_state;
pub mod membership;
mod path;
mod peers;
mod tree_space;
pub mod writer_turn;

pub use compressed_chunk::{
    AnnouncedRange, CHUNK_BYTES_MAX, ChunkError, CompressedChunk, decode_chunks, encode_chunks,
};
pub use compression::{ForwardedBytes, LogCompression, LogCompressor};
pub use link::{ChainError, ChainLink};
pub use log_region::{ChunkBuffers, LogRegion, WritableWindow};
pub use log_state::{ChainLog, LogRestart, PublishedAhead};
pub use path::{PathPosition, PathVersion};
pub use peers::{CALL_TIMEOUT, PeerClient, PeerClients, PeerError};
pub use tree_space::{AMPLE_BYTES, RECORD_BYTES, RESERVE_BYTES, TreeSpace};

#[cfg(test)]
mod simulation;
