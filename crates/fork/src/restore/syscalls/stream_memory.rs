//! The kernel memory of unread data in Unix streams, for which the kernel makes a sender wait. A parent may have sent many
//! small pieces, which need more memory than the same bytes in one piece. So that a waiting send(2) still waits in a child,
//! the child sends enough small pieces.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use farfork_sys::socket::{peer_unread_bytes, set_number_option};
use farfork_sys::socket_abi::{SO_SNDBUFFORCE, SOCK_STREAM, SOL_SOCKET};
use farfork_wire::descriptor::{Socket, SocketMessage};
use rustix::net::{SendFlags, send};

use super::super::RestoreError;

/// Maximum number of small pieces of one stream: they fill a buffer of 48 MiB.
const SMALL_PIECES_MAX: usize = 65_536;

/// Room for the trials. The kernel doubles it, and adapts larger sizes.
const TRIAL_BUFFER_BYTES: i32 = i32::MAX / 2;

/// Returns the receiving end of a stream with its unread data in such pieces that the kernel accounts at least
/// `wanted_bytes` of memory for them. `sender` is the other end. If the sender does not wait in the parent, it does not wait
/// here either.
pub(super) fn split_unread_data(receiver: &Socket, sender: &Socket, wanted_bytes: u32) -> Result<Socket, RestoreError> {
    let mut receiver = receiver.clone();
    if receiver.kind != SOCK_STREAM || wanted_bytes == 0 {
        return Ok(receiver);
    }
    let wanted = u64::from(wanted_bytes);
    let limit = send_buffer_bytes(sender);
    let accounted = |small_pieces| account_memory(&split(&receiver.received_messages, small_pieces));
    let (mut small_pieces, mut memory) = (0, accounted(0)?);
    if memory < wanted {
        let most = splittable_bytes(&receiver.received_messages).min(SMALL_PIECES_MAX);
        let unit = account_memory(&[SocketMessage { bytes: vec![0], ..SocketMessage::default() }])?.max(1);
        while memory < wanted && small_pieces < most {
            small_pieces = most.min(small_pieces + (wanted - memory).div_ceil(unit) as usize);
            memory = accounted(small_pieces)?;
        }
    }
    while memory >= limit && wanted < limit && small_pieces > 0 {
        small_pieces -= 1;
        memory = accounted(small_pieces)?;
    }
    if memory < limit && wanted >= limit {
        return Err(RestoreError::UnfilledStream { memory, limit });
    }
    receiver.received_messages = split(&receiver.received_messages, small_pieces);
    Ok(receiver)
}

/// The memory from which on a sender waits.
fn send_buffer_bytes(sender: &Socket) -> u64 {
    let is_size = |level, name| (level, name) == (SOL_SOCKET, SO_SNDBUFFORCE);
    let option = sender.options.iter().find(|option| is_size(option.level, option.name));
    let half = option.and_then(|option| Some(u32::from_ne_bytes(option.value.as_slice().try_into().ok()?)));
    half.map_or(u64::MAX, |half| 2 * u64::from(half))
}

/// Messages with descriptors keep their length, because the descriptors belong to the first byte.
fn is_splittable(message: &SocketMessage) -> bool {
    message.files.is_empty()
}

fn splittable_bytes(messages: &[SocketMessage]) -> usize {
    messages.iter().filter(|message| is_splittable(message)).map(|message| message.bytes.len()).sum()
}

/// Splits single bytes off the begin of messages.
fn split(messages: &[SocketMessage], small_pieces: usize) -> Vec<SocketMessage> {
    let (mut pieces, mut left) = (Vec::new(), small_pieces);
    for message in messages {
        let small = if is_splittable(message) { left.min(message.bytes.len()) } else { 0 };
        let (singles, rest) = message.bytes.split_at(small);
        let piece = |bytes: &[u8]| SocketMessage { bytes: bytes.to_vec(), ..message.clone() };
        pieces.extend(singles.chunks(1).map(piece));
        pieces.extend((!rest.is_empty()).then(|| piece(rest)));
        left -= small;
    }
    pieces
}

/// Sends messages of these lengths on a stream, and returns the memory that the kernel accounts for them.
fn account_memory(messages: &[SocketMessage]) -> Result<u64, RestoreError> {
    let measure = || -> io::Result<u64> {
        let (sender, _receiver) = UnixStream::pair()?;
        set_number_option(sender.as_fd(), SOL_SOCKET, SO_SNDBUFFORCE, TRIAL_BUFFER_BYTES)?;
        for message in messages {
            send(&sender, &message.bytes, SendFlags::DONTWAIT)?;
        }
        peer_unread_bytes(sender.as_fd()).map(u64::from)
    };
    measure().map_err(|cause| RestoreError::from_object_error("a copy of a Unix stream", cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_wire::descriptor::{SocketOption, SocketState};
    use std::io::Write;

    fn end(options: Vec<SocketOption>, bytes: Vec<u8>) -> Socket {
        Socket {
            family: farfork_sys::socket_abi::AF_UNIX,
            kind: SOCK_STREAM,
            protocol: 0,
            flags: 0,
            state: SocketState::PeerOutside { is_reset: false },
            file: None,
            options,
            received_messages: vec![SocketMessage { bytes, ..SocketMessage::default() }],
            shutdown_flags: 0,
        }
    }

    /// Fills a stream with pieces of these sizes. Returns its bytes, and the memory that they need.
    fn fill(sizes: impl Iterator<Item = usize>) -> (Vec<u8>, u64, i32) {
        let (mut sender, _receiver) = UnixStream::pair().unwrap();
        sender.set_nonblocking(true).unwrap();
        let mut sent = Vec::new();
        for size in sizes {
            let piece: Vec<u8> = (0..size).map(|at| (sent.len() + at) as u8).collect();
            match sender.write(&piece) {
                Ok(count) => sent.extend(&piece[..count]),
                Err(_) => break,
            }
        }
        let room = farfork_sys::socket::read_number_option(sender.as_fd(), SOL_SOCKET, 7).unwrap();
        (sent, peer_unread_bytes(sender.as_fd()).unwrap().into(), room)
    }

    #[test]
    fn a_full_stream_is_full_again() {
        for sizes in [vec![1; 4096], vec![100; 4096], vec![100_000; 8], [vec![9; 50], vec![7000; 99]].concat()] {
            let (bytes, memory, room) = fill(sizes.into_iter());
            let size =
                SocketOption { level: SOL_SOCKET, name: SO_SNDBUFFORCE, value: (room / 2).to_ne_bytes().to_vec() };
            assert!(memory >= room as u64);
            let made = split_unread_data(&end(Vec::new(), bytes.clone()), &end(vec![size], Vec::new()), memory as u32);
            let pieces = made.unwrap().received_messages;
            assert!(account_memory(&pieces).unwrap() >= room as u64);
            assert_eq!(pieces.iter().flat_map(|piece| &piece.bytes).copied().collect::<Vec<_>>(), bytes);
        }
    }

    #[test]
    fn a_stream_with_room_keeps_room() {
        let (bytes, memory, room) = fill([1; 200].into_iter());
        assert!(memory < room as u64 && memory > 100_000);
        let value = (memory as i32 / 2 + 1).to_ne_bytes().to_vec();
        let size = SocketOption { level: SOL_SOCKET, name: SO_SNDBUFFORCE, value };
        let made = split_unread_data(&end(Vec::new(), bytes), &end(vec![size], Vec::new()), memory as u32).unwrap();
        let made = account_memory(&made.received_messages).unwrap();
        assert!(made <= memory && made + 2048 > memory, "{made} of {memory}");
    }
}
