//! Reusable buffers for bytes that are received and sent. Fresh memory costs a page fault and zeroing per page, which
//! is more than the copy into it.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Buffers up to this size, in bytes, are of the small kind: a page and its frame.
const SMALL_BYTES: usize = 4096 + 64;

/// Most small buffers kept, about 1 MiB: a burst of single pages.
const SMALL_KEPT_MAX: usize = 256;

/// Most memory kept in large buffers, in bytes: a few of the longest replies.
const LARGE_KEPT_BYTES_MAX: usize = 8 << 20;

/// Bytes of a reply. Its memory can be given back with [`Connection::recycle`](crate::Connection::recycle).
#[derive(Default)]
pub struct Buffer {
    /// Initialised beyond `length`, so that a buffer can be lengthened again for nothing.
    bytes: Vec<u8>,
    length: usize,
}

impl Buffer {
    /// Cuts it to the first `length` bytes.
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

/// Buffers that wait to be used again; the last one given back, which is still in the CPU's cache, first.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    large_bytes: usize,
}

impl BufferPool {
    /// A buffer of `length` bytes of arbitrary contents.
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
    fn memory_is_used_again_within_limits() {
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
