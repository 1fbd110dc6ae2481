//! The storage of a log: the mapped file, or memory and a simulated disk in tests.

/// Bytes at offsets of a log file. Both calls panic outside of the file: callers compute offsets from checked headers.
pub trait LogStorage {
    /// Stores bytes. If the process is killed during the call, any part of them may be stored.
    fn store(&mut self, offset: u64, bytes: &[u8]);

    /// Copies bytes at an offset to `into`.
    fn load(&self, offset: u64, into: &mut [u8]);
}
