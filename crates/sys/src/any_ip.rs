//! A loopback interface that takes whatever is sent to any address of version 4: each is the machine's own then, and leads back to it
//! ("AnyIP", a `local` route as of ip-route(8)).

use std::io;
use std::net::Ipv4Addr;

use rustix::net::AddressFamily;

use crate::netlink::{ACKNOWLEDGE, Netlink, REQUEST, attribute, failure};

/// Gives the loopback interface of the calling thread's network namespace the address `own`, and has it take what is sent to
/// all others, from that address. It must be up; done again it changes nothing.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN over the namespace.
pub fn take_all(own: Ipv4Addr) -> io::Result<()> {
    /// rtnetlink(7).
    const NEW_ADDRESS: u16 = 20;
    const NEW_ROUTE: u16 = 24;
    const CREATE_OR_REPLACE: u16 = 0x400 | 0x100;
    let kernel = Netlink::open(None)?;
    for (kind, body) in [(NEW_ADDRESS, address(own)), (NEW_ROUTE, route_of_all(own))] {
        failure(&kernel.ask(kind, REQUEST | ACKNOWLEDGE | CREATE_OR_REPLACE, &body)?)?;
    }
    Ok(())
}

/// The interface is the first that a namespace gets.
const LOOPBACK: u32 = 1;
const SCOPE_HOST: u8 = 254;

fn family() -> u8 {
    AddressFamily::INET.as_raw() as u8
}

/// A `struct ifaddrmsg` with its attributes.
fn address(own: Ipv4Addr) -> Vec<u8> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    const PREFIX_BITS: u8 = 32;
    let mut body = vec![family(), PREFIX_BITS, 0, SCOPE_HOST];
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend([IFA_LOCAL, IFA_ADDRESS].iter().flat_map(|kind| attribute(*kind, &own.octets())));
    body
}

/// A `struct rtmsg` with its attributes: a route to all addresses (a prefix of no bits). It stands in the table in which the kernel
/// looks whether an address may be bound to.
fn route_of_all(source: Ipv4Addr) -> Vec<u8> {
    const RTA_OUT_INTERFACE: u16 = 4;
    const RTA_PREFERRED_SOURCE: u16 = 7;
    const TABLE_LOCAL: u8 = 255;
    const BY_AN_ADMINISTRATOR: u8 = 4;
    const TO_THE_MACHINE_ITSELF: u8 = 2;
    let mut body = vec![family(), 0, 0, 0, TABLE_LOCAL, BY_AN_ADMINISTRATOR, SCOPE_HOST, TO_THE_MACHINE_ITSELF];
    body.extend([0; 4]);
    body.extend(attribute(RTA_OUT_INTERFACE, &LOOPBACK.to_ne_bytes()));
    body.extend(attribute(RTA_PREFERRED_SOURCE, &source.octets()));
    body
}
