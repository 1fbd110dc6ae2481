//! Egress from a network of children, if it was requested. Packets to other hosts are redirected to sockets of the
//! daemon, which forwards them from the node. Replies have the other hosts' addresses.
//!
//! A child's connection is accepted before the node has connected to the destination. If the node cannot connect, the
//! child's connection is reset.

mod datagrams;
mod policy;
mod resolvers;
mod streams;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;

use farfork_sys::socket_lookup::{RedirectRule, Redirection};
use farfork_sys::{any_ip, datagram, namespace};
use tokio::sync::watch;

pub use policy::EgressDestination;
pub(crate) use policy::EgressPolicy;
use resolvers::DnsResolvers;

/// The child's address in addition to loopback. It is never routed (192.0.0.0/29, RFC 7335).
const CHILD_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// Address of the proxy's sockets in the child's network. The child may be bound to any port on all addresses, so the
/// port is one that no program uses (tcpmux, RFC 1078).
const PROXY_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 0, 3), 1);

/// The destinations that a child may reach, and its DNS resolvers.
#[derive(Debug)]
struct EgressRules {
    egress: EgressPolicy,
    resolvers: DnsResolvers,
}

impl EgressRules {
    fn allows(&self, to: SocketAddrV4) -> bool {
        self.resolvers.has_address(to) || self.egress.allows(to)
    }
}

/// The open egress of a network. When the last reference is dropped, the egress forwards the data that was already
/// sent, and closes.
///
/// ```text
///  child   connect(203.0.113.9:443)                    node   connect(203.0.113.9:443)
///             │                                                    ▲
///             └─▶ its loopback interface ─▶ socket lookup ─▶ our sockets ─▶ EgressRules::allows ── streams, datagrams
/// ```
///
/// The kernel's TCP runs at both ends, so a slow receiver slows down its sender.
#[derive(Debug)]
pub(crate) struct EgressProxy {
    _open: watch::Sender<()>,
}

/// The daemon's sockets in the children's network.
struct ProxySockets {
    network: OwnedFd,
    listener: TcpListener,
    datagrams: UdpSocket,
    redirection: Redirection,
}

impl EgressProxy {
    /// Opens the egress of a network. `enter` makes the calling thread enter that network. Names are resolved as on
    /// this node. Must be called within the runtime.
    ///
    /// # Errors
    /// The network cannot be entered, or the kernel does not support the redirection.
    pub(crate) fn open(egress: EgressPolicy, enter: impl FnOnce() -> io::Result<()> + Send) -> io::Result<Self> {
        let rules = Arc::new(EgressRules { egress, resolvers: DnsResolvers::from_resolv_conf() });
        let on_loopback = rules.resolvers.on_loopback();
        let ProxySockets { network, listener, datagrams, redirection } = thread::scope(|scope| {
            let there = || enter().and_then(|()| install_redirection(&on_loopback));
            let thread = thread::Builder::new().name("egress".to_owned()).spawn_scoped(scope, there)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that opens the egress panicked")))
        })?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let datagrams = tokio::net::UdpSocket::from_std(datagrams)?;
        let (open, closed) = watch::channel(());
        tokio::spawn(async move {
            let _redirection = redirection;
            tokio::join!(
                streams::serve_streams(listener, rules.clone(), closed.clone()),
                datagrams::serve_datagrams(datagrams, rules, network, closed),
            );
        });
        Ok(Self { _open: open })
    }
}

/// In the calling thread's network, redirects packets to other hosts to sockets of the daemon. `names` are the
/// resolvers on the node's loopback interface.
fn install_redirection(names: &[SocketAddrV4]) -> io::Result<ProxySockets> {
    any_ip::enable_any_ip(CHILD_ADDRESS)?;
    let (listener, datagrams) = (TcpListener::bind(PROXY_ADDRESS)?, UdpSocket::bind(PROXY_ADDRESS)?);
    listener.set_nonblocking(true)?;
    datagrams.set_nonblocking(true)?;
    datagram::enable_destination(datagrams.as_fd())?;
    let redirected = RedirectRule { namespace_address: CHILD_ADDRESS, included: names };
    let redirection = Redirection::start(redirected, listener.as_fd(), datagrams.as_fd())?;
    Ok(ProxySockets { network: namespace::open_network_namespace()?, listener, datagrams, redirection })
}
