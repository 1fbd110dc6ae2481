//! The log of one client: a file with a header and a ring of records. `mount` appends, `replay` reads.
//!
//! `layout` draws the file, `ring` is the pure arithmetic of the ring, `appender` stores records, `file` maps the file.

mod appender;
mod file;
mod layout;
mod ring;
mod storage;

pub use appender::{AppendedRecord, LogAppender};
pub use file::{InspectedLog, LogFile, LogFileError};
pub use layout::{LOG_BYTES_MAX, LOG_BYTES_MIN, LogHeader, LogHeaderError, RING_OFFSET, file_offset};
pub use ring::{LogPoint, LogRing, RecordPlacement, RingError};
pub use storage::LogStorage;

#[cfg(test)]
mod simulation;
