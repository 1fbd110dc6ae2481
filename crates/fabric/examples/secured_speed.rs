//! Measures the cost of mutual authentication and of encryption. Runs the same reads in turn over plain TCP, over a
//! connection that is unencrypted after its handshake, and over an encrypted connection.
//!
//! `cargo run --release -p farfork-fabric --example secured_speed [ROUNDS]`

mod own_memory;

use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use farfork_fabric::{TlsSecurity, connect, connect_node, tcp};
use farfork_trust::{Credentials, Encryption, NODE_VALID, Role, TrustDirectory, member};
use farfork_wire::NodeName;

use own_memory::{Course, PAGE};

const MEMORY_BYTES: u64 = 64 << 20;

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(7), |text| text.parse())?;
    let memory: Vec<u8> = (0..MEMORY_BYTES).map(|at| (at / PAGE) as u8).collect();
    let exporter = own_memory::export(&memory)?;
    let scratch = tempfile::tempdir()?;
    let (first, second) =
        (TrustDirectory::new(scratch.path().join("n1")), TrustDirectory::new(scratch.path().join("n2")));
    let (now, n1) = (SystemTime::now(), NodeName::new("n1")?);
    member::create_cluster(&first, &NodeName::new("blue")?, &n1, now)?;
    member::issue_client_directory(&first, &second, Role::Node, &NodeName::new("n2")?, now, NODE_VALID)?;

    let plain = tcp::TcpServer::start(TcpListener::bind("127.0.0.1:0")?, &exporter)?;
    let mut ways = vec![("plain TCP", connect(&plain.address())?)];
    let mut servers = vec![plain];
    for (name, encryption) in
        [("authenticated, in clear", Encryption::Off), ("authenticated, encrypted", Encryption::On)]
    {
        let security = Arc::new(TlsSecurity::new(Credentials::open(&first, encryption)?));
        let server = tcp::TcpServer::start_secured(TcpListener::bind("127.0.0.1:0")?, &exporter, Some(security))?;
        ways.push((name, connect_node(&server.address(), &n1, Some(&Credentials::open(&second, encryption)?))?));
        servers.push(server);
    }
    let key = own_memory::key();
    for (pages, depth, total_bytes) in [(1, 1, 5_000 * PAGE), (1, 32, 40_000 * PAGE), (64, 4, 8 * MEMORY_BYTES)] {
        let course = Course { bytes: pages * PAGE, depth, total_bytes, memory_bytes: MEMORY_BYTES };
        let mut samples = vec![Vec::new(); ways.len()];
        for _ in 0..rounds {
            for ((_, connection), samples) in ways.iter_mut().zip(&mut samples) {
                let took = own_memory::read(&mut **connection, &key, &course, |connection, completions| {
                    connection.poll(Instant::now(), completions);
                });
                samples.push(took.as_secs_f64() * 1e6 / (total_bytes / PAGE) as f64);
            }
        }
        let medians: Vec<f64> = samples.into_iter().map(median).collect();
        for ((name, _), page_us) in ways.iter().zip(&medians) {
            let (rate, ratio) = (PAGE as f64 / page_us / 1e3, page_us / medians[0]);
            println!(
                "{pages:3} pages, {depth:2} in flight: {name:<25} {page_us:7.2} us a page, {rate:5.2} GB/s, x {ratio:.2}"
            );
        }
    }
    Ok(())
}
