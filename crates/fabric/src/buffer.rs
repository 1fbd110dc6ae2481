//! Reusable buffers for received and sent bytes. New memory costs a page fault and zeroing per page, which takes longer
//! than the copy into it.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Largest small buffer, in bytes: a page and its frame.
const SMALL_BYTES: usize = 4096 + 64;

/// Maximum number of small buffers that are kept (about 1 MiB): enough for a burst of single pages.
const SMALL_KEPT_MAX: usize = 256;

/// Maximum size of all large buffers that are kept, in bytes: enough for a few of the longest replies.
const LARGE_KEPT_BYTES_MAX: usize = 8 << 20;

/// Bytes of a reply. [`Connection::recycle_buffer`](crate::Connection::recycle_buffer) returns its memory.
#[derive(Default)]
pub struct Buffer {
    /// Memory of the buffer. It is initialised beyond `length`, so that reuse for a longer buffer costs nothing.
    bytes: Vec<u8>,
    length: usize,
}

impl Buffer {
    /// Shortens the buffer to `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

/// Buffers for reuse. The buffer that was returned last is reused first, because it is still in the CPU's cache.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    large_bytes: usize,
}

impl BufferPool {
    /// Returns a buffer of `length` bytes with arbitrary contents.
    pub(crate) fn take(&mut self, length: usize) -> Buffer {
        let cached = if length <= SMALL_BYTES {
            self.small.pop()
        } else {
            let large = self.large.pop();
            self.large_bytes -= large.as_ref().map_or(0, Vec::len);
            large
        };
        let mut bytes = cached.unwrap_or_default();
        if bytes.len() < length {
            bytes.resize(length.max(SMALL_BYTES), 0);
        }
        Buffer { bytes, length }
    }

    /// Keeps a buffer's memory, within the limits.
    pub(crate) fn put(&mut self, buffer: Buffer) {
        let bytes = buffer.bytes;
        if bytes.len() > SMALL_BYTES {
            if self.large_bytes + bytes.len() <= LARGE_KEPT_BYTES_MAX {
                self.large_bytes += bytes.len();
                self.large.push(bytes);
            }
        } else if !bytes.is_empty() && self.small.len() < SMALL_KEPT_MAX {
            self.small.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_up_to_a_limit() {
        let mut pool = BufferPool::default();
        for length in [1, 4096, 5000, 1 << 20] {
            let buffer = pool.take(length);
            assert_eq!(buffer.len(), length);
            let address = buffer.as_ptr();
            pool.put(buffer);
            assert_eq!(pool.take(length).as_ptr(), address);
        }
        let many: Vec<_> = (0..20).map(|_| pool.take(1 << 20)).collect();
        many.into_iter().for_each(|buffer| pool.put(buffer));
        assert!(pool.large_bytes <= LARGE_KEPT_BYTES_MAX && pool.large.len() == 8);
    }
}
