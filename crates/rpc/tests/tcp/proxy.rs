//! A proxy between client and server that can be cut: all its connections end, but new ones are accepted.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Forwards bytes between its clients and a server.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, ends) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let all = Arc::clone(&ends);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                [&client, &server].iter().for_each(|end| end.set_nodelay(true).unwrap());
                all.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                let (back, forth) = ((server.try_clone().unwrap(), client.try_clone().unwrap()), (client, server));
                for (from, to) in [back, forth] {
                    thread::spawn(move || pass(from, to));
                }
            }
        });
        Self { address, ends }
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        self.ends.lock().unwrap().drain(..).for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 100_000];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
