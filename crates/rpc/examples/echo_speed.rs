//! How fast calls are, between two processes: `echo_speed serve IP` and `echo_speed drive IP:PORT CONNECTIONS WINDOW
//! SECONDS [sleep]`. For a first look; `farfork bench rpc` measures in earnest.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_rpc::client::TcpConnector;
use farfork_rpc::server::{Config, PlainAcceptor};
use farfork_rpc::{Body, Client, Handlers, Outgoing, SPIN_MAX_USUAL, Server};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let spin_max = if arguments.iter().any(|it| it == "sleep") { Duration::ZERO } else { SPIN_MAX_USUAL };
    let number = |at: usize| arguments[at].parse::<u64>().expect("a number");
    match arguments[0].as_str() {
        "serve" => serve(&arguments[1], spin_max),
        _ => drive(&arguments[1], number(2), number(3), Duration::from_secs(number(4)), spin_max),
    }
}

fn serve(ip: &str, spin_max: Duration) -> std::io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    let server = Server::start(listener, &Config { threads: 1, spin_max }, Arc::new(PlainAcceptor), || {
        let mut handlers = Handlers::default();
        handlers.on(1, |_, _| {});
        handlers
    })?;
    println!("listening {}", server.address());
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn drive(to: &str, connections: u64, window: u64, lasts: Duration, spin_max: Duration) -> std::io::Result<()> {
    let to = to.parse().expect("an address");
    let mut clients: Vec<_> = (0..connections)
        .map(|_| {
            let mut client = Client::new(Box::new(TcpConnector::new(to)), spin_max);
            let session = client.open(window).expect("the first session");
            (client, session)
        })
        .collect();
    let call = Outgoing { handler: 1, ..Outgoing::default() };
    let (began, mut now, mut answered) = (Instant::now(), Instant::now(), 0u64);
    while now - began < lasts {
        for (client, session) in &mut clients {
            let mut free = window - client.unanswered() as u64;
            while free > 0 && client.submit(now, *session, &call, Body::Copied(&[])).is_ok() {
                free -= 1;
            }
            client.poll(now, |completion| {
                completion.result.expect("an answer");
                answered += 1;
            });
        }
        if let [(client, _)] = &mut clients[..] {
            client.wait(now, None)?;
        }
        now = Instant::now();
    }
    println!(
        "{:.0} a second, {:.2} us each",
        answered as f64 / lasts.as_secs_f64(),
        lasts.as_secs_f64() * 1e6 / answered as f64
    );
    Ok(())
}
