//! A proxy between requester and owner that damages, cuts or drops bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use farfork_fabric::Address;

/// A fault on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyFault {
    /// One bit of the owner's bytes is flipped.
    FlipReply,
    /// One bit of the requester's bytes is flipped.
    FlipRequest,
    /// The connection is reset.
    Cut,
    /// After some bytes, the owner's bytes are dropped, and the connection stays open.
    Swallow,
}

/// A listening proxy. Its threads end with the test.
pub(crate) struct Proxy {
    at: SocketAddr,
    faults: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts a proxy to `to`. On each of the first `connections` connections, it causes the fault after `after` bytes,
    /// a little later on each.
    pub(crate) fn start(to: SocketAddr, fault: ProxyFault, after: usize, connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, faults) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&faults);
        thread::spawn(move || {
            for (number, requester) in listener.incoming().flatten().enumerate() {
                let owner = TcpStream::connect(to).unwrap();
                let after = if number < connections { after + number * 7 } else { usize::MAX };
                let on_replies = fault != ProxyFault::FlipRequest;
                let wrong = |faulty: bool| if faulty { after } else { usize::MAX };
                pass(&owner, &requester, fault, wrong(on_replies), &count);
                pass(&requester, &owner, fault, wrong(!on_replies), &count);
            }
        });
        Self { at, faults }
    }

    pub(crate) fn address(&self) -> Address {
        Address::Tcp(self.at)
    }

    /// Number of connections on which the fault has occurred.
    pub(crate) fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }
}

/// Forwards one direction. After `after` bytes, causes the fault.
fn pass(from: &TcpStream, to: &TcpStream, fault: ProxyFault, after: usize, count: &Arc<AtomicUsize>) {
    let (mut from, mut to, count) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(count));
    thread::spawn(move || {
        let (mut bytes, mut passed) = (vec![0; 64 << 10], 0);
        while let Ok(read) = from.read(&mut bytes) {
            let fault_offset = after.checked_sub(passed).filter(|at| *at < read);
            let mut passes = read;
            if let Some(at) = fault_offset {
                count.fetch_add(1, Ordering::Relaxed);
                match fault {
                    ProxyFault::FlipReply | ProxyFault::FlipRequest => bytes[at] ^= 0x10,
                    ProxyFault::Cut | ProxyFault::Swallow => passes = at,
                }
            }
            let swallowed = fault == ProxyFault::Swallow && passed > after;
            if read == 0 || (!swallowed && to.write_all(&bytes[..passes]).is_err()) {
                break;
            }
            passed += read;
            if fault_offset.is_some() && fault == ProxyFault::Cut {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
