//! TCP connections whose two ends the child has: each end is told that it is connected (TCP_REPAIR, tcp(7)), without a word
//! on the network. No listening socket is needed, and nobody else can come between.

use std::collections::HashSet;
use std::io;

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, Socket, SocketOption, SocketState, internet_address};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::STEP_SOCKET;
use super::files::Bench;
use super::socket::{LARGEST_SEGMENT, loopback, send, set_modes, set_options, shut_down};
use super::{Script, number, value};

const INET6: u32 = 10;
const TCP: u32 = 6;
const SOL_SOCKET: u32 = 1;
const SO_RCVBUFFORCE: u32 = 33;
const SO_BUF_LOCK: u32 = 72;
const TCP_REPAIR: u32 = 19;
const TCP_REPAIR_QUEUE: u32 = 20;
const TCP_QUEUE_SEQ: u32 = 21;
const TCP_REPAIR_OPTIONS: u32 = 22;
const TCP_REPAIR_WINDOW: u32 = 29;
const RECEIVE_QUEUE: u32 = 1;
const SEND_QUEUE: u32 = 2;

/// IPV6_V6ONLY, which only a socket without an address takes.
const ONLY_VERSION_6: (u32, u32) = (41, 26);

/// TCP_FASTOPEN, which means nothing to one that is connected.
const FAST_OPEN: (u32, u32) = (TCP, 23);

/// In service again, and nothing is sent about it.
const REPAIRED: u32 = u32::MAX;

/// A kernel's usual first window, in bytes, and the scale of later ones.
const WINDOW_BYTES: u32 = 65_536;
const WINDOW_SCALE: u32 = 7;

/// What fits into a new socket's buffer for receiving.
const BUFFER_BYTES: u32 = 32 << 10;

/// One end of a connection.
struct End<'a> {
    index: u32,
    socket: &'a Socket,
    address: &'a [u8],
    peer: &'a [u8],
}

/// All of them, when all sockets that listen or are bound stand: an end in repair may have a port that another has.
pub(super) fn make(bench: &mut Bench<'_, '_>, descriptor: &Descriptor) -> Result<(), RestoreError> {
    for (pair, end) in ends(descriptor, 0) {
        bench.about(STEP_SOCKET, end.index);
        let other = ends(descriptor, 1).find(|(other, _)| *other == pair);
        let (_, other) = other.ok_or(RestoreError::NotMade { number: bench.number_of(end.index) })?;
        let mut numbers = [0; 8];
        getrandom::fill(&mut numbers).map_err(|error| RestoreError::object("a connection", io::Error::from(error)))?;
        let [one, two] = [0, 4].map(|at| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| numbers[at + byte])));
        connected(bench.script, 0, (&end, &other), (one, two))?;
        connected(bench.script, 1, (&other, &end), (two, one))?;
        for fd in [0, 1] {
            set_word(bench.script, fd, (TCP, TCP_REPAIR), REPAIRED)?;
        }
        for (from, to) in [(1, end.socket), (0, other.socket)] {
            send(bench.script, from, to)?;
        }
        for (fd, end) in [(0, &end), (1, &other)] {
            // From here on the kernel sizes its buffers, unless the program did.
            set_word(bench.script, fd, (SOL_SOCKET, SO_BUF_LOCK), 0)?;
            set_options(bench.script, fd, end.socket, |option| ![ONLY_VERSION_6, FAST_OPEN].contains(&option))?;
            set_modes(bench.script, fd, end.socket);
        }
        // Behind all else: each tells the other of it.
        shut_down(bench.script, 0, end.socket);
        shut_down(bench.script, 1, other.socket);
        bench.put_aside(1, other.index);
        bench.put_aside(0, end.index);
    }
    make_ended(bench, descriptor)
}

/// Those that both ends have shut down: made with an other end that sends what had arrived, shuts down, and goes.
fn make_ended(bench: &mut Bench<'_, '_>, descriptor: &Descriptor) -> Result<(), RestoreError> {
    let mut ports = free_ports(descriptor);
    let mut free_port = |index| ports.next().ok_or(RestoreError::NotMade { number: index });
    for (index, socket) in sockets(descriptor) {
        let SocketState::Ended { address } = &socket.state else { continue };
        bench.about(STEP_SOCKET, index);
        let address = match internet_address(address).filter(|own| own.ip().is_loopback() && own.port() != 0) {
            Some(_) => address.clone(),
            None => with_port(&loopback(socket.family), free_port(index)?),
        };
        let peer = with_port(&address, free_port(index)?);
        let silent = Socket { received: Vec::new(), ..socket.clone() };
        let end = End { index, socket, address: &address, peer: &peer };
        let other = End { index, socket: &silent, address: &peer, peer: &address };
        connected(bench.script, 0, (&end, &other), (FIRST_BYTE, FIRST_BYTE))?;
        connected(bench.script, 1, (&other, &end), (FIRST_BYTE, FIRST_BYTE))?;
        for fd in [0, 1] {
            set_word(bench.script, fd, (TCP, TCP_REPAIR), REPAIRED)?;
        }
        send(bench.script, 1, socket)?;
        set_word(bench.script, 0, (SOL_SOCKET, SO_BUF_LOCK), 0)?;
        set_options(bench.script, 0, socket, |option| ![ONLY_VERSION_6, FAST_OPEN].contains(&option))?;
        set_modes(bench.script, 0, socket);
        for fd in [0_u32, 1] {
            bench.script.gives(0, number::SHUTDOWN, &[value(fd), value(HOW_SENDING)]);
        }
        bench.script.gives(0, number::CLOSE, &[value(1_u32)]);
        bench.put_aside(0, index);
    }
    Ok(())
}

/// SHUT_WR.
const HOW_SENDING: u32 = 1;

/// Where a connection counts its bytes from that nobody sends any more in.
const FIRST_BYTE: u32 = 1;

/// Ports above those that the kernel chooses by itself, which no socket of the descriptor has.
fn free_ports(descriptor: &Descriptor) -> impl Iterator<Item = u16> {
    const LOWEST: u16 = 61_000;
    let addresses = sockets(descriptor).flat_map(|(_, socket)| match &socket.state {
        SocketState::Idle { address, peer } | SocketState::Connected { address, peer, .. } => vec![address, peer],
        SocketState::Listening { address, .. } | SocketState::Ended { address } => vec![address],
        SocketState::Waiting { address, through, .. } => vec![address, through],
        SocketState::Paired { .. } | SocketState::Cut { .. } => Vec::new(),
    });
    let taken: HashSet<u16> = addresses.filter_map(|address| Some(internet_address(address)?.port())).collect();
    (LOWEST..=u16::MAX).filter(move |port| !taken.contains(port))
}

/// The same address with another port.
fn with_port(address: &[u8], port: u16) -> Vec<u8> {
    const PORT_AT: usize = 2;
    let mut address = address.to_vec();
    address[PORT_AT..PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
    address
}

fn sockets(descriptor: &Descriptor) -> impl Iterator<Item = (u32, &Socket)> {
    descriptor.open_files.iter().enumerate().filter_map(|(index, file)| match file {
        OpenFile::Socket(socket) => Some((index as u32, socket)),
        _ => None,
    })
}

/// The first or second ends of all connections.
fn ends(descriptor: &Descriptor, wanted: u32) -> impl Iterator<Item = (u32, End<'_>)> {
    sockets(descriptor).filter_map(move |(index, socket)| match &socket.state {
        SocketState::Connected { pair, end, address, peer } if *end == wanted => {
            Some((*pair, End { index, socket, address, peer }))
        }
        _ => None,
    })
}

/// Descriptor `fd`, still in repair, with room for all that had arrived: the numbers of its next bytes to send and to receive
/// are given.
fn connected(
    script: &mut Script<'_>,
    fd: u32,
    (end, other): (&End<'_>, &End<'_>),
    (sends, receives): (u32, u32),
) -> Result<(), RestoreError> {
    let Socket { family, kind, protocol, .. } = end.socket;
    let kind = kind | OFlags::CLOEXEC.bits();
    script.gives(fd.into(), number::SOCKET, &[value(*family), value(kind), value(*protocol)]);
    set_options(script, fd, end.socket, |option| option == ONLY_VERSION_6)?;
    set_word(script, fd, (TCP, TCP_REPAIR), 1)?;
    let (address, peer) = (script.bytes(end.address)?, script.bytes(end.peer)?);
    script.gives(0, number::BIND, &[value(fd), address, value(end.address.len() as u64)]);
    set_word(script, fd, (TCP, TCP_REPAIR_QUEUE), SEND_QUEUE)?;
    set_word(script, fd, (TCP, TCP_QUEUE_SEQ), sends)?;
    set_word(script, fd, (TCP, TCP_REPAIR_QUEUE), RECEIVE_QUEUE)?;
    set_word(script, fd, (TCP, TCP_QUEUE_SEQ), receives)?;
    if end.arrived_bytes() > BUFFER_BYTES {
        set_word(script, fd, (SOL_SOCKET, SO_RCVBUFFORCE), end.window_bytes())?;
    }
    set_word(script, fd, LARGEST_SEGMENT, end.segment_bytes())?;
    script.gives(0, number::CONNECT, &[value(fd), peer, value(end.peer.len() as u64)]);
    agree(script, fd, *family)?;
    // struct tcp_repair_window: what was last heard, the other's window, its largest, the own one, and up to where it was told.
    let (theirs, own) = (other.window_bytes(), end.window_bytes());
    set(script, fd, (TCP, TCP_REPAIR_WINDOW), &words(&[receives, theirs, theirs, own, receives]))
}

impl End<'_> {
    /// The largest segment that it sends, with the room for a time stamp, as far as the kernel has one chosen.
    fn segment_bytes(&self) -> u32 {
        const CHOSEN_MAX: u32 = 32_767;
        const CHOSEN_MIN: u32 = 88;
        const TIME_STAMP_BYTES: u32 = 12;
        let is_it = |option: &&SocketOption| (option.level, option.name) == LARGEST_SEGMENT;
        let known = self.socket.options.iter().find(is_it).and_then(|option| option.value.first_chunk());
        let bytes = known.map_or(CHOSEN_MAX, |bytes| u32::from_ne_bytes(*bytes).saturating_add(TIME_STAMP_BYTES));
        bytes.clamp(CHOSEN_MIN, CHOSEN_MAX)
    }

    fn arrived_bytes(&self) -> u32 {
        let bytes: usize = self.socket.received.iter().map(|message| message.bytes.len()).sum();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// What this end has promised to take, in bytes: all that had arrived, and more.
    fn window_bytes(&self) -> u32 {
        let wanted = self.arrived_bytes().saturating_add(WINDOW_BYTES);
        wanted.min(u32::from(u16::MAX) << WINDOW_SCALE).next_multiple_of(1 << WINDOW_SCALE)
    }
}

/// What the two ends would have agreed upon over the loopback: struct tcp_repair_opt, four times.
fn agree(script: &mut Script<'_>, fd: u32, family: u32) -> Result<(), RestoreError> {
    const LARGEST_SEGMENT: u32 = 2;
    const SCALE: u32 = 3;
    const SELECTIVE_ACKS: u32 = 4;
    const TIMESTAMPS: u32 = 8;
    // As the loopback's packets of 64 KiB leave room for, behind the headers.
    let segment_bytes = if family == INET6 { 65_476 } else { 65_495 };
    let scales = WINDOW_SCALE | WINDOW_SCALE << 16;
    let options = [LARGEST_SEGMENT, segment_bytes, SCALE, scales, SELECTIVE_ACKS, 0, TIMESTAMPS, 0];
    set(script, fd, (TCP, TCP_REPAIR_OPTIONS), &words(&options))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn set_word(script: &mut Script<'_>, fd: u32, option: (u32, u32), word: u32) -> Result<(), RestoreError> {
    set(script, fd, option, &word.to_ne_bytes())
}

fn set(script: &mut Script<'_>, fd: u32, (level, name): (u32, u32), bytes: &[u8]) -> Result<(), RestoreError> {
    let (at, length) = (script.bytes(bytes)?, bytes.len() as u64);
    script.gives(0, number::SETSOCKOPT, &[value(fd), value(level), value(name), at, value(length)]);
    Ok(())
}
