//! Lets two sockets receive the packets to any address and port of a network namespace, although each is bound to one. A BPF
//! program redirects the kernel's socket lookup (Documentation/bpf/prog_sk_lookup.rst; Linux 5.9). With
//! [`any_ip`](crate::any_ip), the sockets receive everything that processes in the namespace send to other hosts.

mod program;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{bpf, namespace};

/// Keys of the sockets in the program's map.
const STREAMS_KEY: i32 = 0;
const DATAGRAMS_KEY: i32 = 1;

/// Redirects packets until it is dropped, or the namespace ends.
#[derive(Debug)]
pub struct Redirection {
    _link: OwnedFd,
}

/// Selects the packets to redirect: all packets except those to the namespace's own addresses.
#[derive(Debug, Clone, Copy)]
pub struct RedirectRule<'a> {
    /// The namespace's own address, other than loopback (127.0.0.0/8).
    pub namespace_address: Ipv4Addr,
    /// Loopback destinations that are redirected as well.
    pub included: &'a [SocketAddrV4],
}

impl Redirection {
    /// Redirects TCP connections to the socket `listener`, and UDP datagrams that belong to no connected socket to the
    /// socket `datagrams`. Both sockets must be bound, in the calling thread's network namespace.
    ///
    /// # Errors
    /// EPERM without CAP_BPF and CAP_NET_ADMIN; EINVAL if the kernel has no such programs; ENOSYS if it has no BPF.
    pub fn start(rule: RedirectRule<'_>, listener: BorrowedFd<'_>, datagrams: BorrowedFd<'_>) -> io::Result<Self> {
        let sockets = bpf::create_sockmap(2)?;
        bpf::update_sockmap(sockets.as_fd(), STREAMS_KEY, listener)?;
        bpf::update_sockmap(sockets.as_fd(), DATAGRAMS_KEY, datagrams)?;
        let program = bpf::load_socket_lookup(&program::build_program(rule, sockets.as_fd()))?;
        let namespace = namespace::open_network_namespace()?;
        Ok(Self { _link: bpf::attach_socket_lookup(program.as_fd(), namespace.as_fd())? })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::thread;

    use super::*;
    use crate::any_ip;
    use crate::datagram::{ReceivedDatagram, enable_destination, receive};

    const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
    const NAMES: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 53), 53);
    const SOMEBODY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 443);

    /// Runs a test in a new network namespace with both sockets. The listener writes to each connection the destination
    /// address of the connection.
    fn redirected(test: impl FnOnce(UdpSocket) + Send + 'static) {
        let body = move || {
            namespace::unshare_network().unwrap();
            any_ip::enable_any_ip(OWN).unwrap();
            any_ip::enable_any_ip(OWN).unwrap();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            enable_destination(datagrams.as_fd()).unwrap();
            let rule = RedirectRule { namespace_address: OWN, included: &[NAMES] };
            let redirection = Redirection::start(rule, listener.as_fd(), datagrams.as_fd()).unwrap();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let destination = stream.local_addr().unwrap();
                    stream.write_all(destination.to_string().as_bytes()).unwrap();
                }
            });
            test(datagrams);
            drop(redirection);
            // Without the redirection no socket listens.
            assert_eq!(TcpStream::connect(SOMEBODY).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        };
        thread::spawn(body).join().unwrap();
    }

    fn said_by(address: SocketAddrV4) -> io::Result<String> {
        let mut text = String::new();
        TcpStream::connect(address)?.read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn connections_to_any_address_are_redirected() {
        redirected(|_| {
            for address in [SOMEBODY, NAMES, SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 1)] {
                assert_eq!(said_by(address).unwrap(), address.to_string());
            }
            for address in
                [SocketAddrV4::new(OWN, 443), SocketAddrV4::new(*NAMES.ip(), 54), "127.0.0.1:53".parse().unwrap()]
            {
                assert_eq!(said_by(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{address}");
            }
            let of_version_6 = TcpStream::connect((std::net::Ipv6Addr::LOCALHOST, 443)).unwrap_err();
            assert_eq!(of_version_6.kind(), io::ErrorKind::ConnectionRefused);
            let own = TcpListener::bind((OWN, 0)).unwrap();
            let client = TcpStream::connect(own.local_addr().unwrap()).unwrap();
            assert_eq!(own.accept().unwrap().1, client.local_addr().unwrap());
        });
    }

    #[test]
    fn redirected_datagrams_have_their_destination() {
        redirected(|datagrams| {
            let client = UdpSocket::bind((OWN, 0)).unwrap();
            let mut buffer = [0; 64];
            for to in [SOMEBODY, NAMES] {
                client.send_to(b"four", to).unwrap();
                let received = receive(datagrams.as_fd(), &mut buffer).unwrap();
                let from = SocketAddrV4::new(OWN, client.local_addr().unwrap().port());
                assert_eq!((received, &buffer[..4]), (ReceivedDatagram { bytes: 4, from, to }, &b"four"[..]));
                // A socket that is connected to the client gets the datagram, and may reply from the datagram's destination.
                let connected = UdpSocket::bind(to).unwrap();
                connected.connect(from).unwrap();
                client.send_to(b"again", to).unwrap();
                assert_eq!(connected.recv(&mut buffer).unwrap(), 5);
                connected.send(b"answer").unwrap();
                assert_eq!(client.recv_from(&mut buffer).unwrap(), (6, to.into()));
            }
        });
    }
}
