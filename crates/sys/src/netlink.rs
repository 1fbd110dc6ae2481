//! Requests to the kernel over netlink(7).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// Size of the header of a message, in bytes: length, type, flags, sequence number and port.
pub(crate) const HEADER_BYTES: usize = 16;

/// The flag that every request has.
pub(crate) const NLM_F_REQUEST: u16 = 0x1;
/// The flags that request all objects of a kind.
const NLM_F_DUMP: u16 = 0x300;
/// The flag that makes the kernel also reply to requests that otherwise get a reply only on failure.
pub(crate) const NLM_F_ACK: u16 = 0x4;

/// A netlink socket for one protocol (facility of the kernel).
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    /// Opens a socket in the calling thread's network namespace. `None` is protocol 0, NETLINK_ROUTE (addresses and routes).
    ///
    /// # Errors
    /// As socket(2).
    pub(crate) fn open(facility: Option<Protocol>) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, facility)?;
        Ok(Self(socket))
    }

    /// Sends a request, and returns the reply with its header.
    ///
    /// # Errors
    /// As send(2) and recv(2). If the kernel refuses the request, the reply contains the error: see [`check_error`].
    pub(crate) fn request(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.send(kind, flags, body)?;
        self.receive()
    }

    /// Requests all objects of a kind. Returns a message with its header for each.
    ///
    /// # Errors
    /// As send(2) and recv(2), and if the kernel refuses the request.
    pub(crate) fn dump(&self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        const NLMSG_DONE: u16 = 3;
        self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, body)?;
        let mut messages = Vec::new();
        loop {
            let answer = self.receive()?;
            let mut rest = &answer[..];
            while !rest.is_empty() {
                let bytes = u32_at(rest, 0).ok_or_else(malformed)? as usize;
                let message = rest.get(..bytes).filter(|message| message.len() >= HEADER_BYTES);
                let message = message.ok_or_else(malformed)?;
                check_error(message)?;
                if u16_at(message, 4) == Some(NLMSG_DONE) {
                    return Ok(messages);
                }
                messages.push(message.to_vec());
                rest = rest.get(bytes.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }

    fn send(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let mut request = Vec::with_capacity(HEADER_BYTES + body.len());
        request.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend([0; 8]);
        request.extend(body);
        send(&self.0, &request, SendFlags::empty())?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        /// Size of the longest reply, in bytes: a page, and a part of the request. The kernel divides longer ones.
        const ANSWER_BYTES_MAX: usize = 8192;
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        let (length, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(length);
        Ok(answer)
    }
}

/// Encodes an attribute of a request, with padding.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut attribute = Vec::with_capacity(length.next_multiple_of(4));
    attribute.extend((length as u16).to_ne_bytes());
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(value);
    attribute.resize(length.next_multiple_of(4), 0);
    attribute
}

/// Returns the error that a reply contains.
pub(crate) fn check_error(answer: &[u8]) -> io::Result<()> {
    const NLMSG_ERROR: u16 = 2;
    if u16_at(answer, 4).ok_or_else(malformed)? != NLMSG_ERROR {
        return Ok(());
    }
    match u32_at(answer, HEADER_BYTES).ok_or_else(malformed)?.cast_signed() {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(-errno)),
    }
}

pub(crate) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel over netlink does not have the expected form")
}

pub(crate) fn u32_at(answer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u16_at(answer: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?))
}
