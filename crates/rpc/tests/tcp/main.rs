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
use farfork_rpc::server::{PlainAcceptor, ServerConfig};
use farfork_rpc::{Client, HandlerTable, OutgoingRequest, RequestPayload, Server, SessionHandle};

/// Id of the handler that echoes the payload.
const ECHO: u32 = 1;

/// Starts a server with this many threads.
fn serve(threads: usize, handlers: impl Fn() -> HandlerTable) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = ServerConfig { threads, should_spin: true };
    Server::start(listener, &config, Arc::new(PlainAcceptor), handlers).unwrap()
}

fn echo() -> HandlerTable {
    let mut handlers = HandlerTable::default();
    handlers.add_handler(ECHO, |payload, reply| reply.write(payload));
    handlers
}

fn client_of(address: std::net::SocketAddr) -> (Client, SessionHandle) {
    let mut client = Client::new(Box::new(TcpConnector::new(address)), true);
    let session = client.open_session(1024).unwrap();
    (client, session)
}

fn call(client: &mut Client, session: SessionHandle, handler: u32, payload: &[u8]) -> Vec<u8> {
    let call = OutgoingRequest { handler, tag: u64::MAX, ..OutgoingRequest::default() };
    client.call_blocking(session, &call, RequestPayload::Borrowed(payload), |_| {}).unwrap()
}

/// Polls until the condition holds, and fails after a minute.
fn poll_until(client: &mut Client, mut on_end: impl FnMut(farfork_rpc::Completion<'_>), until: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = Instant::now();
        client.poll(now, &mut on_end);
        if until() {
            return;
        }
        assert!(now < deadline, "the condition does not hold in time: {:?}", client.last_error());
        client.wait_ready(now, Some(now + Duration::from_millis(20))).unwrap();
    }
}
