//! Sockets that receive packets to any address and port of a network namespace, although bound to one. A BPF program
//! tells the kernel's socket lookup so (Documentation/bpf/prog_sk_lookup.rst; Linux 5.9). With
//! [`any_ip`](crate::any_ip), that is everything that a process in the namespace sends to other hosts.

mod program;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{bpf, namespace};

/// Numbers of the sockets in the program's map.
const STREAMS_KEY: i32 = 0;
const DATAGRAMS_KEY: i32 = 1;

/// A redirection, for as long as this is held and the namespace exists.
#[derive(Debug)]
pub struct Redirection {
    _link: OwnedFd,
}

/// What is redirected: all but what is for the namespace itself.
#[derive(Debug, Clone, Copy)]
pub struct RedirectRule<'a> {
    /// The namespace's address beside those of loopback, 127.0.0.0/8.
    pub namespace_address: Ipv4Addr,
    /// Of these, what is redirected nevertheless.
    pub included: &'a [SocketAddrV4],
}

impl Redirection {
    /// Has the socket `listener` get the TCP connections, and the socket `datagrams` the UDP datagrams, that nobody is connected for. Both
    /// belong to the calling thread's network namespace, and are bound.
    ///
    /// # Errors
    /// EPERM without CAP_BPF and CAP_NET_ADMIN, EINVAL of kernels without such programs, ENOSYS without any.
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

    /// Runs in a network namespace of its own, with both sockets, whose streams say whom they are for.
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
            // Nobody is there any more.
            assert_eq!(TcpStream::connect(SOMEBODY).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        };
        thread::spawn(body).join().unwrap();
    }

    fn said_by(address: SocketAddrV4) -> io::Result<String> {
        let mut text = String::new();
        TcpStream::connect(address)?.read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn connections_to_anybody_are_redirected() {
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
    fn datagrams_say_whom_they_are_for() {
        redirected(|datagrams| {
            let client = UdpSocket::bind((OWN, 0)).unwrap();
            let mut buffer = [0; 64];
            for to in [SOMEBODY, NAMES] {
                client.send_to(b"four", to).unwrap();
                let received = receive(datagrams.as_fd(), &mut buffer).unwrap();
                let from = SocketAddrV4::new(OWN, client.local_addr().unwrap().port());
                assert_eq!((received, &buffer[..4]), (ReceivedDatagram { bytes: 4, from, to }, &b"four"[..]));
                // Who is connected for it gets it, and may answer in that name.
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
