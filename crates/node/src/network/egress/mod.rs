//! Egress from a network of children, where it was requested. What they send to other hosts reaches sockets of the
//! daemon, which forwards it from the node, and answers from the other hosts' addresses.
//!
//! A connection is accepted for the child before the node has made its own. Where that fails, the child's is reset.

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

/// The child's own address, beside that of loopback: one of those that are never routed, for hosts that get to others in
/// another way (192.0.0.0/29, RFC 7335).
const CHILD_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// Of our sockets in its network: a further one of those, and a port that no program has (tcpmux, RFC 1078), for the child may be
/// bound to any port at all addresses.
const PROXY_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 0, 3), 1);

/// Where a child gets to, and by whom it has names resolved.
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

/// An open way out of a network. When the last who has it drops it, it is closed, behind what was sent before.
///
/// ```text
///  child   connect(203.0.113.9:443)                    node   connect(203.0.113.9:443)
///             │                                                    ▲
///             └─▶ its loopback interface ─▶ socket lookup ─▶ our sockets ─▶ EgressRules::allows ── streams, datagrams
/// ```
///
/// The kernel's TCP runs at both ends, so that a slow receiver slows its sender down.
#[derive(Debug)]
pub(crate) struct EgressProxy {
    _open: watch::Sender<()>,
}

/// What the daemon has in the network.
struct ProxySockets {
    network: OwnedFd,
    listener: TcpListener,
    datagrams: UdpSocket,
    redirection: Redirection,
}

impl EgressProxy {
    /// Opens it in the network that a thread is in which has called `enter`; names are resolved as on this node. Must be called within the
    /// runtime.
    ///
    /// # Errors
    /// The network cannot be entered, or the kernel lets nothing be redirected there.
    pub(crate) fn open(egress: EgressPolicy, enter: impl FnOnce() -> io::Result<()> + Send) -> io::Result<Self> {
        let rules = Arc::new(EgressRules { egress, resolvers: DnsResolvers::from_resolv_conf() });
        let on_loopback = rules.resolvers.on_loopback();
        let ProxySockets { network, listener, datagrams, redirection } = thread::scope(|scope| {
            let there = || enter().and_then(|()| install_redirection(&on_loopback));
            let thread = thread::Builder::new().name("egress".to_owned()).spawn_scoped(scope, there)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that opens it panicked")))
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

/// Has what is sent to others in the calling thread's network come to sockets of ours.
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
