//! Sockets that the child makes: in its own network and file system, as itself, so that who asks who is at the other end
//! (SO_PEERCRED) hears of the child.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Credentials, Message, OpenFile, Socket, SocketState};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::STEP_SOCKET;
use super::super::objects::Objects;
use super::delivery::{self, Late, is_late};
use super::files::Bench;
use super::{Argument, Script, connection, datagram, number, shared_port, socket_file, value, waiting};

pub(super) const UNIX: u32 = 1;
const INET6: u32 = 10;
const NETLINK: u32 = 16;
const STREAM: u32 = 1;
pub(super) const SOCK_CLOEXEC: u32 = OFlags::CLOEXEC.bits();
const SOL_SOCKET: u32 = 1;
const SO_SNDBUFFORCE: u32 = 32;
const SO_ATTACH_FILTER: u32 = 26;
const IP_FREEBIND: u32 = 15;

/// TCP_MAXSEG: of a connection it is what the two ends have agreed upon, and not to be set.
pub(super) const LARGEST_SEGMENT: (u32, u32) = (6, 2);

pub(super) const MSG_DONTWAIT_NOSIGNAL: u32 = 0x40 | 0x4000;

/// What a socket's maker knows beside the socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) objects: &'a Objects,
    /// Whom the child runs as, where that is not whom the stub does.
    pub(super) owner: Option<SocketOwner<'a>>,
}

/// Whom a child runs as.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct SocketOwner<'a> {
    pub(in super::super) credentials: &'a Credentials,
    /// Supplementary groups of the stub, which it has again behind what it does as the owner.
    pub(in super::super) groups_before: &'a [u32],
}

/// All sockets: those that listen first, for connections go through them.
pub(super) fn make(
    bench: &mut Bench<'_, '_>,
    descriptor: &Descriptor,
    around: Surroundings<'_>,
) -> Result<(), RestoreError> {
    let sockets = || {
        descriptor.open_files.iter().enumerate().filter_map(|(index, file)| match file {
            OpenFile::Socket(socket) => Some((index as u32, socket)),
            _ => None,
        })
    };
    let mut late = Vec::new();
    for (index, socket) in sockets().filter(|(_, socket)| !is_connection(socket)) {
        bench.about(STEP_SOCKET, index);
        match &socket.state {
            // Others of the process that it sends to are not there yet.
            SocketState::Idle { peer, .. } if socket.family == UNIX => {
                idle(bench.script, (index, socket), &[], around)?;
                if peer.is_empty() {
                    shut_down(bench.script, 0, socket);
                }
            }
            SocketState::Idle { peer, .. } => idle(bench.script, (index, socket), peer, around)?,
            SocketState::Listening { backlog, .. } => {
                let shares_port = shared_port::needs_option(descriptor, (index, socket));
                create(bench.script, socket)?;
                if shares_port {
                    shared_port::set_option(bench.script, 0, true)?;
                }
                bind(bench.script, (index, socket), around)?;
                as_owner(bench.script, around.owner, |script| {
                    script.gives(0, number::LISTEN, &[value(0_u32), value(*backlog)]);
                    Ok(())
                })?;
            }
            _ if is_late(socket) => {
                let from = cut_later(bench, socket, around)?;
                let to = bench.next_place();
                late.push(Late { index, ends: [(to, Some(socket)), (from, None)] });
            }
            _ => cut(bench.script, socket, around)?,
        }
        set_modes(bench.script, 0, socket);
        bench.put_aside(0, index);
    }
    shared_port::take_options(bench, descriptor)?;
    datagram::connect_all(bench, descriptor)?;
    for (index, socket) in sockets() {
        let SocketState::Paired { pair, end: 0, through, .. } = &socket.state else { continue };
        let is_other =
            |other: &Socket| matches!(other.state, SocketState::Paired { pair: theirs, end: 1, .. } if theirs == *pair);
        let (other_index, other) = sockets()
            .find(|(_, other)| is_other(other))
            .ok_or(RestoreError::NotMade { number: bench.number_of(index) })?;
        bench.about(STEP_SOCKET, index);
        connect(bench, descriptor, (index, socket, other), through, around)?;
        let sends_later = is_late(socket) || is_late(other);
        for (fd, socket) in [(0, socket), (1, other)] {
            if !sends_later {
                set_options(bench.script, fd, socket, |_| true)?;
            }
            set_modes(bench.script, fd, socket);
        }
        if through.is_empty() {
            bind(bench.script, (index, socket), around)?;
        }
        bench.put_aside(0, index);
        if other.bound().is_empty() {
            bench.put_aside(1, other_index);
        } else {
            bench.script.gives(0, number::DUP3, &[value(1_u32), value(0_u32), value(SOCK_CLOEXEC)]);
            bench.script.gives(0, number::CLOSE, &[value(1_u32)]);
            bind(bench.script, (other_index, other), around)?;
            bench.put_aside(0, other_index);
        }
        let places = (bench.place_of(index), bench.place_of(other_index));
        if let (true, (Some(one), Some(two))) = (sends_later, places) {
            late.push(Late { index, ends: [(one, Some(socket)), (two, Some(other))] });
        }
    }
    waiting::make(bench, descriptor, around)?;
    socket_file::remove(bench, descriptor)?;
    connection::make(bench, descriptor)?;
    delivery::send_all(bench, around.objects, &late)
}

/// Two ends of the child's, or one that is still to become such.
fn is_connection(socket: &Socket) -> bool {
    use SocketState::{Connected, Ended, Paired, Waiting};
    matches!(socket.state, Paired { .. } | Connected { .. } | Ended { .. } | Waiting { .. })
}

/// Made as descriptor 0, with its options, bound and connected.
fn idle(
    script: &mut Script<'_>,
    (index, socket): (u32, &Socket),
    peer: &[u8],
    around: Surroundings<'_>,
) -> Result<(), RestoreError> {
    create(script, socket)?;
    bind(script, (index, socket), around)?;
    if peer.is_empty() {
        return Ok(());
    }
    let (bytes, length) = (script.bytes(peer)?, peer.len() as u64);
    let connect = |script: &mut Script<'_>| script.gives(0, number::CONNECT, &[value(0_u32), bytes, value(length)]);
    if matches!(socket.family, UNIX | NETLINK) {
        connect(script);
    } else {
        without_route(script, socket, connect)?;
    }
    shut_down(script, 0, socket);
    Ok(())
}

/// As descriptor 0, with its options.
fn create(script: &mut Script<'_>, socket: &Socket) -> Result<(), RestoreError> {
    let kind = socket.kind | SOCK_CLOEXEC;
    script.gives(0, number::SOCKET, &[value(socket.family), value(kind), value(socket.protocol)]);
    set_options(script, 0, socket, |_| true)
}

/// Has a socket connected to whom its network need not have a way: over the loopback interface, which takes whatever is of version 4, and
/// from any address. What is sent then is routed as ever, or refused (ENETUNREACH), as where a machine has lost its network.
fn without_route(
    script: &mut Script<'_>,
    socket: &Socket,
    connect: impl FnOnce(&mut Script<'_>),
) -> Result<(), RestoreError> {
    const BOUND_TO_DEVICE: (u32, u32) = (SOL_SOCKET, 25);
    const IP_TRANSPARENT: (u32, u32) = (0, 19);
    let has = |name| socket.options.iter().any(|option| (option.level, option.name) == name);
    if has(BOUND_TO_DEVICE) {
        connect(script);
        return Ok(());
    }
    let set = |script: &mut Script<'_>, (level, name): (u32, u32), value_of: &[u8]| {
        let (bytes, length) = (script.bytes(value_of)?, value(value_of.len() as u64));
        script.gives(0, number::SETSOCKOPT, &[value(0_u32), value(level), value(name), bytes, length]);
        Ok::<(), RestoreError>(())
    };
    set(script, IP_TRANSPARENT, &1_u32.to_ne_bytes())?;
    set(script, BOUND_TO_DEVICE, b"lo\0")?;
    connect(script);
    set(script, BOUND_TO_DEVICE, b"\0")?;
    set(script, IP_TRANSPARENT, &u32::from(has(IP_TRANSPARENT)).to_ne_bytes())
}

/// To its address, where it has one.
pub(super) fn bind(
    script: &mut Script<'_>,
    (index, socket): (u32, &Socket),
    around: Surroundings<'_>,
) -> Result<(), RestoreError> {
    let address = socket.bound();
    if address.is_empty() {
        return Ok(());
    }
    let (bytes, length) = (script.bytes(address)?, address.len() as u64);
    let bound = [value(0_u32), bytes, value(length)];
    if let (Some(path), Some(file)) = (socket.bound_path(), &socket.file) {
        return socket_file::bind(script, (index, path, file), &bound, around.objects);
    }
    if matches!(socket.family, UNIX | NETLINK) {
        script.gives(0, number::BIND, &bound);
        return Ok(());
    }
    // An address of the parent's node need not be one of the child's network.
    let (level, free) = if socket.family == INET6 { (41_u32, 78_u32) } else { (0, IP_FREEBIND) };
    let (on, length) = (script.bytes(&1_u32.to_ne_bytes())?, value(4_u32));
    script.gives(0, number::SETSOCKOPT, &[value(0_u32), value(level), value(free), on, length]);
    script.gives(0, number::BIND, &bound);
    // One flag with two names, of which those of version 4 are read.
    let before = socket.options.iter().any(|option| (option.level, option.name) == (0, IP_FREEBIND));
    let word = script.bytes(&u32::from(before).to_ne_bytes())?;
    script.gives(0, number::SETSOCKOPT, &[value(0_u32), value(level), value(free), word, length]);
    Ok(())
}

/// Both ends of a connection, as descriptors 0 and 1, with what is on its way.
fn connect(
    bench: &mut Bench<'_, '_>,
    descriptor: &Descriptor,
    (index, socket, other): (u32, &Socket, &Socket),
    through: &[u8],
    around: Surroundings<'_>,
) -> Result<(), RestoreError> {
    let kind = socket.kind | SOCK_CLOEXEC;
    let listener = listener_at(bench, descriptor, (socket.kind, through));
    let through = socket_file::reached(descriptor, socket.kind, through);
    if let Some(listener) = listener {
        as_owner(bench.script, around.owner, |script| {
            script.gives(0, number::SOCKET, &[value(socket.family), value(kind), value(socket.protocol)]);
            Ok(())
        })?;
        // Of a file the child need not be the owner.
        bind(bench.script, (index, socket), around)?;
        as_owner(bench.script, around.owner, |script| {
            let (bytes, length) = (script.bytes(&through)?, through.len() as u64);
            script.gives(0, number::CONNECT, &[value(0_u32), bytes, value(length)]);
            script.gives(1, number::ACCEPT4, &[value(listener), value(0_u32), value(0_u32), value(SOCK_CLOEXEC)]);
            Ok(())
        })?;
    } else {
        as_owner(bench.script, around.owner, |script| pair(script, socket, kind))?;
    }
    if is_late(socket) || is_late(other) {
        return Ok(());
    }
    for (from, to) in [(1, socket), (0, other)] {
        send(bench.script, from, to)?;
    }
    for (fd, socket) in [(0, socket), (1, other)] {
        shut_down(bench.script, fd, socket);
    }
    Ok(())
}

fn pair(script: &mut Script<'_>, socket: &Socket, kind: u32) -> Result<(), RestoreError> {
    let ends = script.words(&[0])?;
    script.gives(0, number::SOCKETPAIR, &[value(socket.family), value(kind), value(socket.protocol), ends]);
    Ok(())
}

/// The descriptor under which a listener was put aside.
fn listener_at(bench: &Bench<'_, '_>, descriptor: &Descriptor, (wanted, through): (u32, &[u8])) -> Option<u32> {
    let is_it = |file: &OpenFile| matches!(file, OpenFile::Socket(Socket { kind, state: SocketState::Listening { address, .. }, .. }) if *kind == wanted && address == through);
    let index = descriptor.open_files.iter().position(is_it).filter(|_| !through.is_empty())?;
    bench.place_of(index as u32)
}

/// Sends what `to` has received, from the other end.
pub(super) fn send(script: &mut Script<'_>, from: u32, to: &Socket) -> Result<(), RestoreError> {
    make_room(script, from, to)?;
    for Message { bytes: message, .. } in &to.received {
        let (bytes, length) = (script.bytes(message)?, message.len() as u64);
        script.gives(length, number::SENDTO, &[value(from), bytes, value(length), value(MSG_DONTWAIT_NOSIGNAL)]);
    }
    Ok(())
}

/// Makes the buffer of the sender large enough for what `to` has received; its own size comes later.
pub(super) fn make_room(script: &mut Script<'_>, from: u32, to: &Socket) -> Result<(), RestoreError> {
    /// What a message costs beside its bytes.
    const OVERHEAD_BYTES: usize = 2048;
    if to.received.is_empty() {
        return Ok(());
    }
    let bytes: usize = to.received.iter().map(|message| message.bytes.len() + OVERHEAD_BYTES).sum();
    let room = script.bytes(&i32::try_from(bytes).unwrap_or(i32::MAX / 2).to_ne_bytes())?;
    script.gives(0, number::SETSOCKOPT, &[value(from), value(SOL_SOCKET), value(SO_SNDBUFFORCE), room, value(4_u32)]);
    Ok(())
}

/// Has a socket whose connection was reset send something that its other end, which is closed next, does not read.
pub(super) fn leave_unread(script: &mut Script<'_>, fd: u32, socket: &Socket) -> Result<(), RestoreError> {
    if socket.state == (SocketState::Cut { is_reset: true }) {
        let byte = script.bytes(&[0])?;
        script.gives(1, number::SENDTO, &[value(fd), byte, value(1_u32), value(MSG_DONTWAIT_NOSIGNAL)]);
    }
    Ok(())
}

pub(super) fn shut_down(script: &mut Script<'_>, fd: u32, socket: &Socket) {
    // shutdown(2) counts from 0 what the kernel keeps as bits.
    if let Some(how @ 0..=2) = socket.shut_down.checked_sub(1) {
        script.gives(0, number::SHUTDOWN, &[value(fd), value(how)]);
    }
}

/// A socket, as descriptor 0, whose other end is gone.
fn cut(script: &mut Script<'_>, socket: &Socket, around: Surroundings<'_>) -> Result<(), RestoreError> {
    if socket.family != UNIX {
        return reset(script, socket);
    }
    as_owner(script, around.owner, |script| pair(script, socket, socket.kind | SOCK_CLOEXEC))?;
    send(script, 1, socket)?;
    leave_unread(script, 0, socket)?;
    script.gives(0, number::CLOSE, &[value(1_u32)]);
    set_options(script, 0, socket, |_| true)
}

/// The same where the other end has still to send: it is put away. Gives where.
fn cut_later(bench: &mut Bench<'_, '_>, socket: &Socket, around: Surroundings<'_>) -> Result<u32, RestoreError> {
    as_owner(bench.script, around.owner, |script| pair(script, socket, socket.kind | SOCK_CLOEXEC))?;
    Ok(bench.put_away(1))
}

/// A TCP connection that was reset: one over loopback, whose other end goes without a word.
fn reset(script: &mut Script<'_>, socket: &Socket) -> Result<(), RestoreError> {
    const LINGER: u32 = 13;
    let loopback = loopback(socket.family);
    let (length, kind) = (loopback.len() as u64, STREAM | SOCK_CLOEXEC);
    let (address, length_word) = (script.bytes(&loopback)?, script.words(&[length])?);
    script.gives(0, number::SOCKET, &[value(socket.family), value(kind), value(0_u32)]);
    set_options(script, 0, socket, |_| true)?;
    script.gives(1, number::SOCKET, &[value(socket.family), value(kind), value(0_u32)]);
    script.gives(0, number::BIND, &[value(1_u32), address, value(length)]);
    script.gives(0, number::LISTEN, &[value(1_u32), value(1_u32)]);
    // Its port, of which the connection then begins.
    script.gives(0, number::GETSOCKNAME, &[value(1_u32), address, length_word]);
    script.gives(0, number::CONNECT, &[value(0_u32), address, value(length)]);
    script.gives(2, number::ACCEPT4, &[value(1_u32), value(0_u32), value(0_u32), value(SOCK_CLOEXEC)]);
    let at_once = script.words(&[1])?;
    script.gives(0, number::SETSOCKOPT, &[value(2_u32), value(SOL_SOCKET), value(LINGER), at_once, value(8_u32)]);
    script.gives(0, number::CLOSE, &[value(2_u32)]);
    script.gives(0, number::CLOSE, &[value(1_u32)]);
    Ok(())
}

/// The address of the loopback interface, with no port.
pub(super) fn loopback(family: u32) -> Vec<u8> {
    let mut address = vec![0; if family == INET6 { 28 } else { 16 }];
    address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    if family == INET6 {
        address[23] = 1;
    } else {
        address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    }
    address
}

/// Those that are `wanted`, by level and name.
pub(super) fn set_options(
    script: &mut Script<'_>,
    fd: u32,
    socket: &Socket,
    wanted: impl Fn((u32, u32)) -> bool,
) -> Result<(), RestoreError> {
    let is_idle = matches!(socket.state, SocketState::Idle { .. } | SocketState::Listening { .. });
    let is_wanted = |option: (u32, u32)| wanted(option) && (is_idle || option != LARGEST_SEGMENT);
    for option in socket.options.iter().filter(|option| is_wanted((option.level, option.name))) {
        let (bytes, length) = match (option.level, option.name) {
            (SOL_SOCKET, SO_ATTACH_FILTER) => filter(script, &option.value)?,
            _ => (script.bytes(&option.value)?, option.value.len() as u64),
        };
        let set = [value(fd), value(option.level), value(option.name), bytes, value(length)];
        script.gives(0, number::SETSOCKOPT, &set);
    }
    Ok(())
}

/// `struct sock_fprog`: how many instructions, and where they are.
fn filter(script: &mut Script<'_>, instructions: &[u8]) -> Result<(Argument, u64), RestoreError> {
    const INSTRUCTION_BYTES: usize = 8;
    const PROGRAM_BYTES: u32 = 16;
    let count = (instructions.len() / INSTRUCTION_BYTES) as u64;
    let (instructions, program) = (script.writer.append(instructions)?, script.words(&[count, 0])?);
    if let Argument::Place(program) = program {
        script.writer.point(program + size_of::<u64>() as u32, instructions);
    }
    Ok((program, PROGRAM_BYTES.into()))
}

pub(super) fn set_modes(script: &mut Script<'_>, fd: u32, socket: &Socket) {
    let nonblocking = OFlags::from_bits_retain(socket.flags) & OFlags::NONBLOCK;
    if !nonblocking.is_empty() {
        script.gives(0, number::FCNTL, &[value(fd), value(number::F_SETFL), value(nonblocking.bits())]);
    }
}

/// Calls made as whom the child will run as: the kernel notes who made a connection.
pub(super) fn as_owner<'w>(
    script: &mut Script<'w>,
    owner: Option<SocketOwner<'_>>,
    calls: impl FnOnce(&mut Script<'w>) -> Result<(), RestoreError>,
) -> Result<(), RestoreError> {
    const AS_IT_IS: u32 = u32::MAX;
    const ROOT: u32 = 0;
    let Some(SocketOwner { credentials: owner, groups_before }) = owner else { return calls(script) };
    let become_one = |script: &mut Script<'w>, call: u32, id: u32| {
        script.gives(0, call, &[value(AS_IT_IS), value(id), value(AS_IT_IS)]);
    };
    set_groups(script, &owner.groups)?;
    become_one(script, number::SETRESGID, owner.gids[1]);
    become_one(script, number::SETRESUID, owner.uids[1]);
    calls(script)?;
    become_one(script, number::SETRESUID, ROOT);
    become_one(script, number::SETRESGID, ROOT);
    set_groups(script, groups_before)
}

/// Supplementary groups of the one thread that calls.
fn set_groups(script: &mut Script<'_>, groups: &[u32]) -> Result<(), RestoreError> {
    let bytes: Vec<u8> = groups.iter().flat_map(|group| group.to_ne_bytes()).collect();
    let list = script.bytes(&bytes)?;
    script.gives(0, number::SETGROUPS, &[value(groups.len() as u64), list]);
    Ok(())
}
