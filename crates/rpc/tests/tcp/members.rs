//! Calls between members of a cluster, with real certificates; nobody else is served.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farfork_fabric::Secured;
use farfork_rpc::client::{CallFailure, TcpConnector};
use farfork_rpc::server::{Config, SecuredAcceptor};
use farfork_rpc::{Body, CallError, Client, Outgoing, Server};
use farfork_trust::{Credentials, Directory, Encryption, NODE_VALID, Role, member};
use farfork_wire::NodeName;

use crate::{ECHO, call, echo};

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

/// A cluster's first node, and another one of it.
fn cluster(scratch: &Path, encryption: Encryption) -> [Credentials; 2] {
    let [first, second] = ["n1", "n2"].map(|node| Directory::new(scratch.join(node)));
    member::init(&first, &name("blue"), &name("n1"), SystemTime::now()).unwrap();
    member::issue_directory(&first, &second, Role::Node, &name("n2"), SystemTime::now(), NODE_VALID).unwrap();
    [first, second].map(|directory| Credentials::open(&directory, encryption).unwrap())
}

fn serve(credentials: &Credentials) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let acceptor = Arc::new(SecuredAcceptor(Arc::new(Secured::new(credentials.clone()))));
    Server::start(listener, &Config { threads: 1, spins: true }, acceptor, echo).unwrap()
}

fn client_of(server: &Server, credentials: &Credentials) -> Client {
    let security = Secured::new(credentials.clone()).to(&name("n1"));
    Client::new(Box::new(TcpConnector::secured(server.address(), security)), true)
}

#[test]
fn members_call_each_other_encrypted_or_in_clear() {
    for encryption in [Encryption::On, Encryption::Off] {
        let scratch = tempfile::tempdir().unwrap();
        let [first, second] = cluster(scratch.path(), encryption);
        let server = serve(&first);
        let mut client = client_of(&server, &second);
        let session = client.open(64).unwrap();
        for bytes in [0, 5, 3000, 200_000, 5_000_000] {
            let payload: Vec<u8> = (0..bytes).map(|at| (at * 7) as u8).collect();
            assert!(call(&mut client, session, ECHO, &payload) == payload, "{bytes} bytes");
        }
    }
}

#[test]
fn strangers_are_not_served_and_disturb_nobody() {
    let (blue, red) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [first, second] = cluster(blue.path(), Encryption::On);
    let [_, stranger] = cluster(red.path(), Encryption::On);
    let server = serve(&first);
    let mut member = client_of(&server, &second);
    let session = member.open(64).unwrap();
    let plain = Client::new(Box::new(TcpConnector::new(server.address())), true);
    for mut client in [client_of(&server, &stranger), plain] {
        let session = client.open(64).unwrap();
        let deadline = Some(Instant::now() + Duration::from_millis(300));
        let request = Outgoing { handler: ECHO, deadline, ..Outgoing::default() };
        let ended = client.call(session, &request, Body::Copied(b"let me in"), |_| {});
        let refused = |cause: &CallError| matches!(cause, CallError::Overdue | CallError::Incompatible(_));
        assert!(matches!(&ended, Err(CallFailure::Call(cause)) if refused(cause)), "{ended:?}");
        assert!(client.last_error().is_some());
    }
    assert_eq!(call(&mut member, session, ECHO, b"a member"), b"a member");
}
