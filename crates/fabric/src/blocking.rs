//! Blocking reads, for callers that may wait: for example, a daemon that fetches a descriptor.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::descriptor::ExtentId;

use crate::{Completion, Connection, FabricError, READ_BYTES_MAX, ReadMode, ReadRequest, SeedKey, Span, SubmitError};

/// Size of each read of a longer range, in bytes: large enough that the cost per request is negligible, and small
/// enough that owner, network and requester work in parallel.
const CHUNK_BYTES: usize = 256 << 10;

/// Maximum number of reads in flight: enough to cover the round trip of a fast network.
const IN_FLIGHT_MAX: usize = 8;

/// Why a blocking read failed.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// The read failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The connection has too many other requests.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The extent is longer than the caller expects.
    #[error("the extent has {bytes} bytes; at most {bytes_max} were expected")]
    TooLong {
        /// Length of the extent.
        bytes: u64,
        /// The caller's limit, in bytes.
        bytes_max: usize,
    },
    /// poll(2) failed.
    #[error("waiting for a connection: {0}")]
    Wait(#[source] io::Error),
}

/// Fills `into` from `offset` of an extent. Abandons other requests of the connection.
///
/// # Errors
/// [`BlockingError::Fabric`] if the read is refused, or not complete by the deadline; [`BlockingError::Wait`].
pub fn read_blocking(
    connection: &mut dyn Connection,
    key: &Arc<SeedKey>,
    extent: ExtentId,
    offset: u64,
    into: &mut [u8],
    deadline: Instant,
) -> Result<(), BlockingError> {
    connection.abandon_all();
    let outcome = read_chunks(connection, key, extent, offset, into, deadline);
    connection.abandon_all();
    outcome
}

/// Reads a whole extent whose length only the owner knows. A short extent takes one round trip. Abandons other requests
/// of the connection.
///
/// # Errors
/// As [`read_blocking`]; [`BlockingError::TooLong`] if the extent has more than `bytes_max` bytes.
pub fn fetch_extent(
    connection: &mut dyn Connection,
    key: &Arc<SeedKey>,
    extent: ExtentId,
    bytes_max: usize,
    deadline: Instant,
) -> Result<Vec<u8>, BlockingError> {
    connection.abandon_all();
    let spans = vec![Span { extent, offset: 0, bytes: READ_BYTES_MAX as u32 }];
    connection.submit_read(ReadRequest { tag: 0, key: Arc::clone(key), mode: ReadMode::Clip, spans, deadline })?;
    let mut completions = Vec::new();
    while completions.is_empty() {
        wait_for_completions(connection, &mut completions)?;
    }
    let first = completions.remove(0).result?;
    let bytes = first.extent_bytes;
    if bytes > bytes_max as u64 {
        return Err(BlockingError::TooLong { bytes, bytes_max });
    }
    let mut whole = first.data.to_vec();
    connection.recycle_buffer(first.data);
    let rest = whole.len();
    whole.resize(bytes as usize, 0);
    read_blocking(connection, key, extent, rest as u64, &mut whole[rest..], deadline)?;
    Ok(whole)
}

fn read_chunks(
    connection: &mut dyn Connection,
    key: &Arc<SeedKey>,
    extent: ExtentId,
    offset: u64,
    into: &mut [u8],
    deadline: Instant,
) -> Result<(), BlockingError> {
    let mut chunks = into.chunks_mut(CHUNK_BYTES).enumerate();
    let mut in_flight = HashMap::new();
    let mut completions: Vec<Completion> = Vec::new();
    loop {
        while in_flight.len() < IN_FLIGHT_MAX {
            let Some((number, chunk)) = chunks.next() else { break };
            let offset = offset + (number * CHUNK_BYTES) as u64;
            let spans = vec![Span { extent, offset, bytes: chunk.len() as u32 }];
            let tag = number as u64;
            connection.submit_read(ReadRequest {
                tag,
                key: Arc::clone(key),
                mode: ReadMode::Exact,
                spans,
                deadline,
            })?;
            in_flight.insert(tag, chunk);
        }
        if in_flight.is_empty() {
            return Ok(());
        }
        wait_for_completions(connection, &mut completions)?;
        for completion in completions.drain(..) {
            let reply = completion.result?;
            if let Some(chunk) = in_flight.remove(&completion.tag) {
                chunk.copy_from_slice(&reply.data);
            }
            connection.recycle_buffer(reply.data);
        }
    }
}

/// Polls, and waits if nothing completed. The wait ends at the latest at the next deadline of a read.
fn wait_for_completions(
    connection: &mut dyn Connection,
    completions: &mut Vec<Completion>,
) -> Result<(), BlockingError> {
    let now = connection.now();
    connection.poll(now, completions);
    if !completions.is_empty() {
        return Ok(());
    }
    let until = connection.next_timeout();
    connection.wait(until).map_err(BlockingError::Wait)
}
