//! Queues encoded frames as a stream of bytes, in few large chunks, so that one system call can send all queued bytes.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;

use crate::buffer::{Buffer, BufferPool};

/// Maximum number of chunks in one system call.
const SLICES_MAX: usize = 16;

/// Size of a chunk that collects small frames, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Bytes to send.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    chunks: VecDeque<Chunk>,
    queued_bytes: usize,
}

#[derive(Debug)]
struct Chunk {
    buffer: Buffer,
    filled_bytes: usize,
    sent_bytes: usize,
    /// A file descriptor to send with the chunk's first byte.
    fd: Option<OwnedFd>,
}

impl SendQueue {
    /// Number of queued bytes.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Reserves space for `bytes` at the end, with arbitrary contents. [`SendQueue::commit`] queues them.
    pub(crate) fn reserve(&mut self, bytes: usize, pool: &mut BufferPool) -> &mut [u8] {
        let fits = self.chunks.back().is_some_and(|chunk| chunk.buffer.len() - chunk.filled_bytes >= bytes);
        if !fits {
            let buffer = pool.take(bytes.max(CHUNK_BYTES));
            self.chunks.push_back(Chunk { buffer, filled_bytes: 0, sent_bytes: 0, fd: None });
        }
        let chunk = self.chunks.back_mut().expect("a chunk was pushed if none had space");
        &mut chunk.buffer[chunk.filled_bytes..chunk.filled_bytes + bytes]
    }

    /// Queues the first `bytes` of the last reservation.
    pub(crate) fn commit(&mut self, bytes: usize) {
        let chunk = self.chunks.back_mut().expect("something was reserved");
        chunk.filled_bytes += bytes;
        self.queued_bytes += bytes;
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8], pool: &mut BufferPool) {
        self.reserve(bytes.len(), pool).copy_from_slice(bytes);
        self.commit(bytes.len());
    }

    /// Appends bytes, with a file descriptor that is sent with the first of them.
    pub(crate) fn append_with_fd(&mut self, bytes: &[u8], descriptor: OwnedFd, pool: &mut BufferPool) {
        let mut buffer = pool.take(bytes.len());
        buffer.copy_from_slice(bytes);
        self.chunks.push_back(Chunk { buffer, filled_bytes: bytes.len(), sent_bytes: 0, fd: Some(descriptor) });
        self.queued_bytes += bytes.len();
    }

    /// Returns the slices that one system call can send, their number, and the descriptor to send with them.
    pub(crate) fn slices(&self) -> ([IoSlice<'_>; SLICES_MAX], usize, Option<&OwnedFd>) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for chunk in self.chunks.iter().take(SLICES_MAX) {
            if chunk.fd.is_some() && count > 0 {
                break;
            }
            slices[count] = IoSlice::new(&chunk.buffer[chunk.sent_bytes..chunk.filled_bytes]);
            count += 1;
        }
        let descriptor = self.chunks.front().and_then(|chunk| chunk.fd.as_ref());
        (slices, count, descriptor)
    }

    /// Records that the first `count` bytes were sent, and the descriptor of the first chunk with them.
    pub(crate) fn mark_sent(&mut self, mut count: usize, pool: &mut BufferPool) {
        self.queued_bytes -= count;
        while let Some(chunk) = self.chunks.front_mut() {
            if count > 0 {
                chunk.fd = None;
            }
            let part = count.min(chunk.filled_bytes - chunk.sent_bytes);
            chunk.sent_bytes += part;
            count -= part;
            if chunk.sent_bytes < chunk.filled_bytes {
                break;
            }
            if let Some(done) = self.chunks.pop_front() {
                pool.put(done.buffer);
            }
        }
        debug_assert_eq!(count, 0, "more bytes were sent than queued");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_some(queue: &mut SendQueue, most: usize, pool: &mut BufferPool, into: &mut Vec<u8>) -> bool {
        let (slices, count, descriptor) = queue.slices();
        let with_descriptor = descriptor.is_some();
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
        let sent = most.min(bytes.len());
        into.extend_from_slice(&bytes[..sent]);
        queue.mark_sent(sent, pool);
        with_descriptor
    }

    #[test]
    fn bytes_are_sent_in_order_after_short_writes() {
        let (mut queue, mut pool) = (SendQueue::default(), BufferPool::default());
        let pieces: Vec<Vec<u8>> = (0..50u8).map(|n| vec![n; 7 + usize::from(n) * 3001]).collect();
        let (mut sent, mut calls) = (Vec::new(), 0);
        for piece in &pieces {
            queue.append(piece, &mut pool);
            send_some(&mut queue, 4321, &mut pool, &mut sent);
        }
        while queue.queued_bytes() > 0 {
            send_some(&mut queue, 100_000, &mut pool, &mut sent);
            calls += 1;
        }
        assert_eq!(sent, pieces.concat());
        assert!(calls < 60, "{calls} calls");
    }

    #[test]
    fn a_descriptor_is_sent_with_its_first_byte() {
        let (mut queue, mut pool) = (SendQueue::default(), BufferPool::default());
        let descriptor = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        queue.append(b"before", &mut pool);
        queue.append_with_fd(b"with", descriptor, &mut pool);
        queue.append(b"after", &mut pool);
        let mut sent = Vec::new();
        assert!(!send_some(&mut queue, 100, &mut pool, &mut sent));
        assert_eq!(sent, b"before");
        assert!(send_some(&mut queue, 1, &mut pool, &mut sent));
        assert!(!send_some(&mut queue, 100, &mut pool, &mut sent));
        assert_eq!((sent.as_slice(), queue.queued_bytes()), (&b"beforewithafter"[..], 0));
    }
}
