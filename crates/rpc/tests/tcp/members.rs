//! Calls between members of a cluster, with real certificates. Peers that are not members are not served.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farfork_fabric::TlsSecurity;
use farfork_rpc::client::{BlockingCallError, TcpConnector};
use farfork_rpc::server::{SecuredAcceptor, ServerConfig};
use farfork_rpc::{CallError, Client, OutgoingRequest, RequestPayload, Server, SessionHandle};
use farfork_trust::{Credentials, Encryption, NODE_VALID, Role, TrustDirectory, member};
use farfork_wire::NodeName;

use crate::{ECHO, call, echo, log};

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

/// Creates a cluster of two nodes. Returns their credentials.
fn cluster(scratch: &Path, encryption: Encryption) -> [Credentials; 2] {
    let [first, second] = ["n1", "n2"].map(|node| TrustDirectory::new(scratch.join(node)));
    member::create_cluster(&first, &name("blue"), &name("n1"), SystemTime::now()).unwrap();
    member::issue_client_directory(&first, &second, Role::Node, &name("n2"), SystemTime::now(), NODE_VALID).unwrap();
    [first, second].map(|directory| Credentials::open(&directory, encryption).unwrap())
}

fn serve(credentials: &Credentials) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let acceptor = Arc::new(SecuredAcceptor(Arc::new(TlsSecurity::new(credentials.clone()))));
    Server::start(listener, &ServerConfig { threads: 1, should_spin: true }, acceptor, echo).unwrap()
}

fn client_of(server: &Server, credentials: &Credentials) -> Client {
    let security = TlsSecurity::new(credentials.clone()).for_node(&name("n1"));
    Client::new(Box::new(TcpConnector::secured(server.address(), security)), true)
}

/// Connects a client, and makes a call in its session.
fn connected(server: &Server, credentials: &Credentials) -> (Client, SessionHandle) {
    let mut client = client_of(server, credentials);
    let session = client.open_session(64).unwrap();
    assert_eq!(call(&mut client, session, ECHO, b"before"), b"before");
    (client, session)
}

#[test]
fn members_call_each_other_with_or_without_encryption() {
    for encryption in [Encryption::On, Encryption::Off] {
        let scratch = tempfile::tempdir().unwrap();
        let [first, second] = cluster(scratch.path(), encryption);
        let server = serve(&first);
        let mut client = client_of(&server, &second);
        let session = client.open_session(64).unwrap();
        for bytes in [0, 5, 3000, 200_000, 5_000_000] {
            let payload: Vec<u8> = (0..bytes).map(|at| (at * 7) as u8).collect();
            assert!(call(&mut client, session, ECHO, &payload) == payload, "{bytes} bytes");
        }
    }
}

#[test]
fn strangers_are_not_served_and_disturb_no_member() {
    let (blue, red) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    log::catch();
    let [first, second] = cluster(blue.path(), Encryption::On);
    let [_, stranger] = cluster(red.path(), Encryption::On);
    let server = serve(&first);
    let mut member = client_of(&server, &second);
    let session = member.open_session(64).unwrap();
    let plain = Client::new(Box::new(TcpConnector::new(server.address())), true);
    for mut client in [client_of(&server, &stranger), plain] {
        let session = client.open_session(64).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // On a busy machine, the deadline may pass before the server refuses.
        while client.last_error().is_none() {
            assert!(Instant::now() < deadline, "it is not refused");
            let deadline = Some(Instant::now() + Duration::from_millis(300));
            let request = OutgoingRequest { handler: ECHO, deadline, ..OutgoingRequest::default() };
            let ended = client.call_blocking(session, &request, RequestPayload::Borrowed(b"let me in"), |_| {});
            let refused = |cause: &CallError| matches!(cause, CallError::DeadlineExceeded | CallError::Incompatible(_));
            assert!(matches!(&ended, Err(BlockingCallError::Call(cause)) if refused(cause)), "{ended:?}");
        }
    }
    log::wait_for(&["ends a connection", "127.0.0.1", "it refuses this node's certificate"]);
    log::wait_for(&["ends a connection", "127.0.0.1", "does not speak TLS"]);
    assert_eq!(call(&mut member, session, ECHO, b"a member"), b"a member");
}

/// Repeats a call until the connection fails. Returns the cause.
fn call_until_refused(client: &mut Client, session: SessionHandle) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    while client.last_error().is_none() {
        assert!(Instant::now() < deadline, "it is still served");
        let deadline = Some(Instant::now() + Duration::from_millis(500));
        let request = OutgoingRequest { handler: ECHO, deadline, ..OutgoingRequest::default() };
        let _ = client.call_blocking(session, &request, RequestPayload::Borrowed(b"still here?"), |_| {});
        std::thread::sleep(Duration::from_millis(50));
    }
    client.last_error().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn an_open_connection_to_a_revoked_server_is_not_used() {
    let scratch = tempfile::tempdir().unwrap();
    let [first, second] = cluster(scratch.path(), Encryption::On);
    let server = serve(&first);
    let (mut client, session) = connected(&server, &second);
    // The server would still serve, but the client must stop sending requests.
    member::revoke_identity(first.directory(), Role::Node, &name("n1"), SystemTime::now).unwrap();
    second.install_roster(&first.directory().read_roster().unwrap().1).unwrap();
    let error = call_until_refused(&mut client, session);
    assert!(error.contains("farfork://blue/node/n1 was revoked"), "{error}");
}

#[test]
fn an_open_connection_of_a_revoked_client_is_closed() {
    log::catch();
    let scratch = tempfile::tempdir().unwrap();
    let [first, second] = cluster(scratch.path(), Encryption::On);
    let server = serve(&first);
    let (mut client, session) = connected(&server, &second);
    member::revoke_identity(first.directory(), Role::Node, &name("n2"), SystemTime::now).unwrap();
    call_until_refused(&mut client, session);
    log::wait_for(&["ends a connection", "farfork://blue/node/n2 at 127.0.0.1", "was revoked"]);
}
