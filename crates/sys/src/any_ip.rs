//! A loopback interface that accepts packets to every IPv4 address. Each address is then local to the namespace
//! ("AnyIP", a `local` route of ip-route(8)).

use std::io;
use std::net::Ipv4Addr;

use rustix::net::AddressFamily;

use crate::netlink::{NLM_F_ACK, NLM_F_REQUEST, Netlink, attribute, check_error};

/// Assigns the address `own` to the loopback interface of the calling thread's network namespace. The interface then accepts
/// packets to all other addresses, and answers from `own`. The interface must be up. A second call changes nothing.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN over the namespace.
pub fn enable_any_ip(own: Ipv4Addr) -> io::Result<()> {
    /// Message types and flags of rtnetlink(7).
    const RTM_NEWADDR: u16 = 20;
    const RTM_NEWROUTE: u16 = 24;
    const NLM_F_CREATE_REPLACE: u16 = 0x400 | 0x100;
    let kernel = Netlink::open(None)?;
    for (kind, body) in [(RTM_NEWADDR, address_request(own)), (RTM_NEWROUTE, local_route_request(own))] {
        check_error(&kernel.request(kind, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE_REPLACE, &body)?)?;
    }
    Ok(())
}

/// Loopback is the first interface of a namespace.
const LOOPBACK_INDEX: u32 = 1;
const RT_SCOPE_HOST: u8 = 254;

fn inet_family() -> u8 {
    AddressFamily::INET.as_raw() as u8
}

/// Encodes a `struct ifaddrmsg` with its attributes.
fn address_request(own: Ipv4Addr) -> Vec<u8> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    const PREFIX_BITS: u8 = 32;
    let mut body = vec![inet_family(), PREFIX_BITS, 0, RT_SCOPE_HOST];
    body.extend(LOOPBACK_INDEX.to_ne_bytes());
    body.extend([IFA_LOCAL, IFA_ADDRESS].iter().flat_map(|kind| attribute(*kind, &own.octets())));
    body
}

/// Encodes a `struct rtmsg` with its attributes: a route to all addresses (a prefix of 0 bits). The route is in the table
/// `local`, which the kernel consults to decide whether a socket may bind to an address.
fn local_route_request(source: Ipv4Addr) -> Vec<u8> {
    const RTA_OIF: u16 = 4;
    const RTA_PREFSRC: u16 = 7;
    const RT_TABLE_LOCAL: u8 = 255;
    const RTPROT_STATIC: u8 = 4;
    const RTN_LOCAL: u8 = 2;
    let mut body = vec![inet_family(), 0, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL];
    body.extend([0; 4]);
    body.extend(attribute(RTA_OIF, &LOOPBACK_INDEX.to_ne_bytes()));
    body.extend(attribute(RTA_PREFSRC, &source.octets()));
    body
}
