//! TCP sockets: which of a process's connections are with itself, and what is on its way in them.
//!
//! Over the loopback what was sent is there, as far as the receiver has room for it, and can be looked at. What is beyond
//! that waits with the sender, where nobody can look without taking the connection out of service: such a one is refused.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use farfork_sys::socket;
use farfork_sys::socket_diagnosis::Diagnosis;
use farfork_wire::descriptor::{SocketState, internet_address};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::unix::UNREAD_WAITING;
use super::{
    Arrived, Birth, CLOSED, CONNECTED, INET, INET6, LISTENING, SOL_SOCKET, STREAM, SocketContents, Sockets, TCP,
    URGENT_DATA,
};

/// States of a connection, beside that of one in full use.
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// As shutdown(2) leaves them.
const NO_RECEIVING: u32 = 1;
const NO_SENDING: u32 = 2;

/// What is a TCP socket's alone.
#[derive(Debug)]
pub(super) struct Tcp {
    /// Of a listening socket, how many connections wait to be accepted.
    waiting: u32,
    /// Which network it is in.
    network: Vec<u8>,
    /// Bytes that were given to the network, each counted once.
    sent_bytes: u64,
    /// Bytes that came from it, in order.
    arrived_bytes: u64,
    /// Bytes that wait for their turn to be sent.
    unsent_bytes: u32,
    /// Whether both ends have shut it down, and nobody is to be told of an error.
    has_ended: bool,
    /// Whether no file leads to its other end, over the loopback: that waits to be accepted. `None` where the kernel does not
    /// tell.
    is_others_nobodys: Option<bool>,
}

/// What `struct tcp_info` tells.
struct Info {
    state: u8,
    /// Of a listening socket: how many connections wait, and how many may.
    waiting: u32,
    backlog: u32,
    sent_bytes: u64,
    arrived_bytes: u64,
    unsent_bytes: u32,
}

impl Info {
    /// What an older kernel does not tell (before Linux 4.19), it has none of.
    fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        const TCP_INFO: u32 = 11;
        let info = socket::option(fd, TCP, TCP_INFO)?;
        let word = |at: usize| info.get(at..at + 4).and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
        let long = |at: usize| info.get(at..at + 8).and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?)));
        let (sent, again) = (long(200).unwrap_or(0), long(208).unwrap_or(0));
        Ok(Self {
            state: info.first().copied().ok_or(io::ErrorKind::InvalidData)?,
            waiting: word(24).ok_or(io::ErrorKind::InvalidData)?,
            backlog: word(28).ok_or(io::ErrorKind::InvalidData)?,
            sent_bytes: sent.wrapping_sub(again),
            arrived_bytes: long(128).unwrap_or(0),
            unsent_bytes: word(144).unwrap_or(0),
        })
    }
}

impl SocketContents {
    /// What the kernel tells, and what waits where both ends may be the process's own.
    pub(super) fn read_tcp(&mut self, fd: BorrowedFd<'_>, diagnosis: Option<&Diagnosis>) -> io::Result<()> {
        const SO_NETNS_COOKIE: u32 = 71;
        let info = Info::read(fd)?;
        let (mut is_others_nobodys, mut has_ended) = (None, false);
        (self.state, self.backlog) = (info.state, info.backlog);
        if self.state != LISTENING {
            let has_error = self.read_ends(fd)?;
            has_ended = self.state == CLOSED && self.shut_down != 0 && !has_error;
            if has_ended {
                self.read_stream(fd)?;
            } else if self.is_over_loopback() {
                self.read_stream(fd)?;
                is_others_nobodys = diagnosis.and_then(|diagnosis| self.is_others_nobodys(diagnosis));
            }
        }
        let network = socket::option(fd, SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or_default();
        let (sent_bytes, arrived_bytes, unsent_bytes) = (info.sent_bytes, info.arrived_bytes, info.unsent_bytes);
        let waiting = info.waiting;
        self.tcp =
            Some(Tcp { waiting, network, sent_bytes, arrived_bytes, unsent_bytes, has_ended, is_others_nobodys });
        Ok(())
    }

    fn is_others_nobodys(&self, diagnosis: &Diagnosis) -> Option<bool> {
        let (own, peer) = (internet_address(&self.own)?, internet_address(self.peer.as_deref()?)?);
        diagnosis.is_nobodys(peer, own).ok().map(|told| told == Some(true))
    }

    /// Which directions are shut down: for sending the state tells, for receiving a readiness. Gives whether an error is to be told.
    fn read_ends(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        let mut polled = [PollFd::new(&fd, PollFlags::RDHUP | PollFlags::PRI)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let events = polled[0].revents();
        self.shut_down = if events.contains(PollFlags::RDHUP) { NO_RECEIVING } else { 0 };
        if [FIN_WAIT_1, FIN_WAIT_2, LAST_ACK, CLOSING].contains(&self.state) {
            self.shut_down |= NO_SENDING;
        }
        if events.contains(PollFlags::PRI) && self.is_over_loopback() {
            self.refuse(URGENT_DATA.to_owned());
        }
        Ok(events.contains(PollFlags::ERR))
    }

    /// Whether both ends have shut down its connection: it is in nobody's hands, and what had arrived is there.
    pub(super) fn has_ended(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.has_ended)
    }

    /// All that waits, which one look shows.
    fn read_stream(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let bytes = rustix::io::ioctl_fionread(fd)?;
        if bytes > 0 {
            let mut room = vec![0; usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData)?];
            let peeked = socket::peek(fd, &mut room)?;
            if peeked.bytes as u64 != bytes {
                return Err(io::ErrorKind::NotFound.into());
            }
            self.received.push(Arrived { bytes: room, ..Arrived::default() });
        }
        Ok(())
    }

    /// Bytes that were sent here and have not arrived at the other end. The end of the stream is counted as one.
    fn late_bytes(&self, peer: &Self) -> u64 {
        let (Some(own), Some(other)) = (&self.tcp, &peer.tcp) else { return 0 };
        let arrived = other.arrived_bytes - u64::from(peer.state == CLOSE_WAIT && other.arrived_bytes > 0);
        u64::from(own.unsent_bytes) + own.sent_bytes.abs_diff(arrived)
    }

    /// Whether it is connected over addresses that every network has.
    fn is_over_loopback(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| are_of_loopback(&self.own, peer))
    }
}

/// The same of a socket that was not read yet.
pub(super) fn is_over_loopback(fd: BorrowedFd<'_>, birth: Birth) -> bool {
    let is_tcp = birth.kind == STREAM && [INET, INET6].contains(&birth.family);
    let ends = || Some((socket::own_address(fd).ok()?, socket::peer_address(fd).ok()?));
    is_tcp && ends().is_some_and(|(own, peer)| are_of_loopback(&own, &peer))
}

fn are_of_loopback(own: &[u8], peer: &[u8]) -> bool {
    [own, peer].iter().all(|end| internet_address(end).is_some_and(|end| end.ip().is_loopback()))
}

impl Sockets<'_> {
    /// A connection's state: with whom it is.
    pub(super) fn tcp_state(&self, inode: u64, contents: &SocketContents) -> Result<SocketState, String> {
        let Some((other, peer)) = self.other_end(contents) else { return self.without_other_end(inode, contents) };
        if !contents.is_over_loopback() {
            return Err("both ends of its TCP connection are the process's own, and its addresses are not of the \
                        loopback: not carried; close it first"
                .to_owned());
        }
        if other == inode {
            return Err("it is connected with itself, which is not carried; close it first".to_owned());
        }
        if contents.late_bytes(peer) > 0 {
            return Err(format!(
                "{} bytes were sent in it that its other end, the process's own, has no room for: not carried; let it \
                 read them first",
                contents.late_bytes(peer)
            ));
        }
        if ![contents, peer].iter().all(|end| [CONNECTED, FIN_WAIT_1, FIN_WAIT_2, CLOSE_WAIT].contains(&end.state)) {
            return Err(
                "its connection with another of the process is being closed from both ends; try again".to_owned()
            );
        }
        let (address, peer) = (contents.own.clone(), contents.peer.clone().unwrap_or_default());
        Ok(SocketState::Connected { pair: inode.min(other) as u32, end: u32::from(inode > other), address, peer })
    }

    /// Somebody else has the other end, or it waits at a socket of the process itself to be accepted.
    fn without_other_end(&self, inode: u64, contents: &SocketContents) -> Result<SocketState, String> {
        let waits = contents.tcp.as_ref().is_some_and(|tcp| tcp.is_others_nobodys != Some(false));
        let wanted = contents.peer.as_deref().and_then(internet_address);
        let waits_at = |listener: &SocketContents| {
            let is_it = |own: SocketAddr| {
                wanted.is_some_and(|to| to.port() == own.port() && (own.ip().is_unspecified() || own.ip() == to.ip()))
            };
            listener.state == LISTENING
                && listener.tcp.as_ref().is_some_and(|tcp| tcp.waiting > 0)
                && internet_address(&listener.own).is_some_and(is_it)
        };
        if !waits || !contents.is_over_loopback() || !self.0.values().any(waits_at) {
            return Ok(SocketState::Cut { is_reset: false });
        }
        let (info, peer) = (contents.tcp.as_ref(), contents.peer.clone().unwrap_or_default());
        if info.is_some_and(|tcp| tcp.unsent_bytes > 0 || tcp.sent_bytes > 0) {
            return Err(UNREAD_WAITING.to_owned());
        }
        // In which order they wait, nobody tells: in that of their births.
        Ok(SocketState::Waiting { address: contents.own.clone(), through: peer, turn: inode as u32 })
    }

    /// The socket at the other end of a connection, where that is one of the process, in the same network.
    fn other_end(&self, contents: &SocketContents) -> Option<(u64, &SocketContents)> {
        let (own, peer) = (internet_address(&contents.own)?, internet_address(contents.peer.as_deref()?)?);
        let network = &contents.tcp.as_ref()?.network;
        let is_it = |other: &SocketContents| {
            other.birth.kind == STREAM
                && other.tcp.as_ref().is_some_and(|tcp| tcp.network == *network)
                && internet_address(&other.own) == Some(peer)
                && other.peer.as_deref().and_then(internet_address) == Some(own)
        };
        self.0.iter().find(|(_, other)| is_it(other)).map(|(inode, other)| (*inode, other))
    }
}
