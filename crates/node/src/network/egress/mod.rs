//! A way out of a network of children, where one was asked for: what they send to others comes to the daemon, which sends it on
//! from the node, and answers in the others' names.
//!
//! ```text
//!  child   connect(203.0.113.9:443)                    node   connect(203.0.113.9:443)
//!             │                                                    ▲
//!             └─▶ its loopback interface ─▶ socket lookup ─▶ sockets of ours ─▶ may it? ── streams, datagrams
//! ```
//!
//! The kernel's TCP stands at both ends, so that whoever is slow is waited for. A connection stands for the child before the node has made
//! its own: where that fails, the child's is reset.

mod datagrams;
mod names;
mod reach;
mod streams;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;

use farfork_sys::socket_lookup::{Redirected, Redirection};
use farfork_sys::{any_ip, datagram, namespace};
use tokio::sync::watch;

use names::Names;
pub(crate) use reach::Egress;
pub use reach::Reach;

/// The child's own address, beside that of loopback: one of those that are never routed, for hosts that get to others in
/// another way (192.0.0.0/29, RFC 7335).
const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// Of our sockets in its network: a further one of those, and a port that no program has (tcpmux, RFC 1078), for the child may be
/// bound to any port at all addresses.
const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 0, 3), 1);

/// Where a child gets to, and by whom it has names resolved.
#[derive(Debug)]
struct Rules {
    egress: Egress,
    names: Names,
}

impl Rules {
    fn allow(&self, to: SocketAddrV4) -> bool {
        self.names.are_asked_at(to) || self.egress.allows(to)
    }
}

/// An open way out of a network. When the last who has it drops it, it is closed, behind what was sent before.
#[derive(Debug)]
pub(crate) struct Outlet {
    _open: watch::Sender<()>,
}

/// What the daemon has in the network.
struct Inside {
    network: OwnedFd,
    listener: TcpListener,
    datagrams: UdpSocket,
    redirection: Redirection,
}

impl Outlet {
    /// Opens it in the network that a thread is in which has called `enter`; names are resolved as on this node. Must be called within the
    /// runtime.
    ///
    /// # Errors
    /// The network cannot be entered, or the kernel lets nothing be redirected there.
    pub(crate) fn open(egress: Egress, enter: impl FnOnce() -> io::Result<()> + Send) -> io::Result<Self> {
        let rules = Arc::new(Rules { egress, names: Names::of_node() });
        let on_loopback = rules.names.on_loopback();
        let Inside { network, listener, datagrams, redirection } = thread::scope(|scope| {
            let there = || enter().and_then(|()| redirect(&on_loopback));
            let thread = thread::Builder::new().name("egress".to_owned()).spawn_scoped(scope, there)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that opens it panicked")))
        })?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let datagrams = tokio::net::UdpSocket::from_std(datagrams)?;
        let (open, closed) = watch::channel(());
        tokio::spawn(async move {
            let _redirection = redirection;
            tokio::join!(
                streams::serve(listener, rules.clone(), closed.clone()),
                datagrams::serve(datagrams, rules, network, closed),
            );
        });
        Ok(Self { _open: open })
    }
}

/// Has what is sent to others in the calling thread's network come to sockets of ours.
fn redirect(names: &[SocketAddrV4]) -> io::Result<Inside> {
    any_ip::take_all(OWN)?;
    let (listener, datagrams) = (TcpListener::bind(OURS)?, UdpSocket::bind(OURS)?);
    listener.set_nonblocking(true)?;
    datagrams.set_nonblocking(true)?;
    datagram::tell_destination(datagrams.as_fd())?;
    let redirected = Redirected { own: OWN, also: names };
    let redirection = Redirection::start(redirected, listener.as_fd(), datagrams.as_fd())?;
    Ok(Inside { network: namespace::own_network()?, listener, datagrams, redirection })
}
