//! Tests thousands of connections that send nothing: they cost bounded memory, time out, and do not keep other peers
//! out.

use std::net::TcpStream;
use std::time::SystemTime;

use farfork_api::client::{connect_network, request_with_timeout};
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::ListNodesRequest;
use farfork_trust::{Credentials, Encryption, NODE_VALID, Role, TrustDirectory, member};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::{TestDaemon, block_on, name, run_dirs, trust_dir};

pub(crate) const TESTS: &[(&str, fn())] = &[("thousands_of_silent_connections_disturb_no_peer", silent)];

const SILENT: usize = 10_000;

/// Maximum growth of the daemon's memory, in bytes: its limit of handshakes times the memory of one, with a margin.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// Raises the limit of open files to the hard limit, for this process and its daemons.
fn take_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).expect("within the limit");
    assert!(limit.maximum.is_none_or(|most| most > SILENT as u64 + 1000), "this test needs {SILENT} descriptors");
}

fn silent() {
    take_descriptors();
    let (_parent, dir_a, _) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let into = TrustDirectory::new(dir_a.with_file_name("client"));
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    member::issue_client_directory(&first, &into, Role::Client, &name("client"), SystemTime::now(), NODE_VALID)
        .expect("a client");
    let credentials = Credentials::open(&into, Encryption::On).expect("credentials");
    let before = a.memory_bytes();
    let address = a.address();
    let mut held = Vec::with_capacity(SILENT);
    for number in 0..SILENT {
        held.push(TcpStream::connect(address).expect("the kernel takes it"));
        if number % 2500 == 2499 {
            block_on(async {
                let mut client = connect_network(address, &credentials).await.expect("the daemon accepts a member");
                client
                    .list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {}))
                    .await
                    .expect("and is answered");
            });
        }
    }
    let growth = a.memory_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "{SILENT} silent connections cost {growth} bytes");
    a.says(&["connections are in their handshake"]);
    drop(held);
    assert_eq!(a.alive(), ["a"]);
}
