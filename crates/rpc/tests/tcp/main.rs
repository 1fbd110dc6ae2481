//! Client and server over real sockets on loopback.

mod calls;
mod faults;
#[path = "../../../fabric/tests/fabric/log.rs"]
mod log;
mod members;
mod proxy;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_rpc::client::TcpConnector;
use farfork_rpc::server::{Config, PlainAcceptor};
use farfork_rpc::{Body, Client, Handlers, Outgoing, Server, SessionKey};

/// Echoes.
const ECHO: u32 = 1;

/// A server of so many threads.
fn serve(threads: usize, handlers: impl Fn() -> Handlers) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config { threads, spins: true };
    Server::start(listener, &config, Arc::new(PlainAcceptor), handlers).unwrap()
}

fn echo() -> Handlers {
    let mut handlers = Handlers::default();
    handlers.on(ECHO, |payload, reply| reply.write(payload));
    handlers
}

fn client_of(address: std::net::SocketAddr) -> (Client, SessionKey) {
    let mut client = Client::new(Box::new(TcpConnector::new(address)), true);
    let session = client.open(1024).unwrap();
    (client, session)
}

fn call(client: &mut Client, session: SessionKey, handler: u32, payload: &[u8]) -> Vec<u8> {
    let call = Outgoing { handler, tag: u64::MAX, ..Outgoing::default() };
    client.call(session, &call, Body::Copied(payload), |_| {}).unwrap()
}

/// Polls until this holds; a test that waits for longer than a minute hangs.
fn poll_until(client: &mut Client, mut on_end: impl FnMut(farfork_rpc::Completion<'_>), until: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let now = Instant::now();
        client.poll(now, &mut on_end);
        if until() {
            return;
        }
        assert!(now < give_up, "nothing comes: {:?}", client.last_error());
        client.wait(now, Some(now + Duration::from_millis(20))).unwrap();
    }
}
