//! Netlink sockets: their options and multicast groups. A socket with unread messages is refused.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use farfork_sys::socket;
use farfork_sys::socket_abi::SOL_NETLINK;
use farfork_wire::descriptor::SocketOption;

use super::SocketContents;

/// NETLINK_PKTINFO, BROADCAST_ERROR, NO_ENOBUFS, LISTEN_ALL_NSID, CAP_ACK, EXT_ACK, GET_STRICT_CHK.
const OPTIONS: [u32; 7] = [3, 4, 5, 8, 10, 11, 12];

/// For a socket with unread messages.
pub(super) const UNREAD_REASON: &str = "it has unread messages of the kernel, which only the kernel can send: not carried; \
     let the process read them first";

/// Whether a protocol's sockets have no kernel state other than multicast groups: NETLINK_ROUTE, SOCK_DIAG, KOBJECT_UEVENT.
pub(super) fn is_supported_protocol(protocol: u32) -> bool {
    matches!(protocol, 0 | 4 | 15)
}

/// Level and name of each option.
pub(super) fn option_names() -> impl Iterator<Item = (u32, u32)> {
    OPTIONS.into_iter().map(|name| (SOL_NETLINK, name))
}

/// Reads the groups that a socket has joined, as the options that join them.
pub(super) fn read_memberships(fd: BorrowedFd<'_>) -> io::Result<Vec<SocketOption>> {
    const ADD_MEMBERSHIP: u32 = 1;
    const LIST_MEMBERSHIPS: u32 = 9;
    let groups = socket::read_option(fd, SOL_NETLINK, LIST_MEMBERSHIPS)?;
    let has = |group: &u32| groups[*group as usize / 8] >> (group % 8) & 1 != 0;
    let join = |group: u32| SocketOption {
        level: SOL_NETLINK,
        name: ADD_MEMBERSHIP,
        value: (group + 1).to_ne_bytes().to_vec(),
    };
    Ok((0..groups.len() as u32 * 8).filter(has).map(join).collect())
}

impl SocketContents {
    pub(super) fn read_netlink(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Poll instead of peeking: a peek would make the kernel continue a dump that it is sending.
        if farfork_sys::poll::wait_readable(fd, Instant::now())? {
            self.set_refusal(UNREAD_REASON.to_owned());
        }
        if self.peer.as_deref().is_some_and(|peer| parse_address(peer).is_some_and(|words| words != [0; 8])) {
            self.set_refusal(
                "it is connected to a socket other than the kernel's, which is not carried; close it first".to_owned(),
            );
        }
        Ok(())
    }
}

/// Whether a socket's address has a port id (`nl_pid`).
pub(super) fn has_port(address: &[u8]) -> bool {
    parse_address(address).is_some_and(|words| words[..4] != [0; 4])
}

/// Returns port id and groups of a `struct sockaddr_nl`. They follow the family and two bytes of padding.
fn parse_address(address: &[u8]) -> Option<[u8; 8]> {
    address.get(4..12)?.try_into().ok()
}
