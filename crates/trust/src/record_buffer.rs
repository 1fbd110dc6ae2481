//! Received bytes of a stream that TLS has not processed yet, record by record where that matters.

use std::io::{self, Read};

use crate::verify::PeerError;

/// Header of a record: type, version, length.
const HEADER_BYTES: usize = 5;

/// Longest record, in bytes (RFC 8446: 2^14 + 256 behind the header).
const RECORD_BYTES_MAX: usize = HEADER_BYTES + (16 << 10) + 256;

/// Space for what is received within the handshake: its longest flight fits, a larger record makes room.
const HANDSHAKE_BUFFER_BYTES: usize = 2 << 10;

/// Space for what is received later: a few records with one system call.
const DATA_BUFFER_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// What TLS records may begin with: change cipher spec, alert, handshake, application data.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// Received and not yet processed.
#[derive(Debug, Default)]
pub(crate) struct RecordBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl RecordBuffer {
    /// Reads once from the pipe.
    pub(crate) fn fill(&mut self, pipe: &mut impl Read) -> io::Result<usize> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let more = if self.bytes.is_empty() { HANDSHAKE_BUFFER_BYTES } else { RECORD_BYTES_MAX };
            self.bytes.resize(self.end + more, 0);
        }
        let count = pipe.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// The handshake is over: much may come.
    pub(crate) fn grow_for_data(&mut self) {
        if self.bytes.len() < DATA_BUFFER_BYTES {
            self.bytes.resize(DATA_BUFFER_BYTES, 0);
        }
    }

    /// All is taken, and nothing more will be put here.
    pub(crate) fn release_if_empty(&mut self) {
        if self.unprocessed().is_empty() {
            *self = Self::default();
        }
    }

    /// What was received.
    pub(crate) fn unprocessed(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first record; empty while it is not whole.
    ///
    /// # Errors
    /// [`PeerError::Plaintext`] where no record begins.
    pub(crate) fn first_record(&self) -> Result<&[u8], PeerError> {
        let filled = self.unprocessed();
        if filled.first().is_some_and(|kind| !RECORD_TYPES.contains(kind))
            || filled.get(1).is_some_and(|major| *major != 3)
        {
            return Err(PeerError::Plaintext);
        }
        let Some(header) = filled.first_chunk::<HEADER_BYTES>() else { return Ok(&[]) };
        let bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
        if bytes > RECORD_BYTES_MAX {
            return Err(PeerError::Plaintext);
        }
        Ok(filled.get(..bytes).unwrap_or_default())
    }

    /// Forgets the first bytes, which were processed.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "no more is processed than was received");
    }
}
