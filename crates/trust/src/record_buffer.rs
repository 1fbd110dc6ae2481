//! Buffers received bytes that TLS has not processed yet. During the handshake, it returns single records.

use std::io::{self, Read};

use crate::verify::PeerError;

/// Size of a record's header: type, version, length.
const HEADER_BYTES: usize = 5;

/// Longest record, in bytes (RFC 8446: 2^14 + 256 after the header).
const RECORD_BYTES_MAX: usize = HEADER_BYTES + (16 << 10) + 256;

/// Initial size of the buffer, for the handshake. The longest flight fits; a larger record extends the buffer.
const HANDSHAKE_BUFFER_BYTES: usize = 2 << 10;

/// Size of the buffer after the handshake, so that one system call receives several records.
const DATA_BUFFER_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// Types of TLS records: change cipher spec, alert, handshake, application data.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// Received bytes that were not processed yet.
#[derive(Debug, Default)]
pub(crate) struct RecordBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl RecordBuffer {
    /// Reads from the pipe once.
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

    /// Extends the buffer at the end of the handshake, because more data arrives from then on.
    pub(crate) fn grow_for_data(&mut self) {
        if self.bytes.len() < DATA_BUFFER_BYTES {
            self.bytes.resize(DATA_BUFFER_BYTES, 0);
        }
    }

    /// Frees the buffer if it is empty. The caller does not fill the buffer again.
    pub(crate) fn release_if_empty(&mut self) {
        if self.unprocessed().is_empty() {
            *self = Self::default();
        }
    }

    /// The received bytes.
    pub(crate) fn unprocessed(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first record; empty until it is complete.
    ///
    /// # Errors
    /// [`PeerError::Plaintext`] if the bytes are not a record.
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

    /// Removes processed bytes from the front.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "more bytes were processed than received");
    }
}
