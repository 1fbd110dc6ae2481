//! redis-server: a hundred thousand keys, while a client increments a counter.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::harness::service::{self, RequestLoad};
use crate::harness::{Cluster, Seed, Service, require_fresh_child_same};

const KEYS: usize = 100_000;

/// Number of keys in one request.
const KEYS_AT_ONCE: usize = 10_000;

pub(super) fn redis(cluster: &Cluster) {
    let (port, other_port) = (service::free_port(), service::free_port());
    let mut server = start(port);
    require_fresh_child_same(cluster.first(), cluster.name(1), server.pid());
    let never_forked = start(other_port);
    let mut client = Client::new(port);
    fill(&mut client);
    fill(&mut Client::new(other_port));
    let expected = Client::new(other_port).digest();
    drop(never_forked);

    let load = RequestLoad::start(port, |stream| {
        let mut client = Client(BufReader::new(stream.try_clone().expect("a descriptor is left")));
        client.ask(&["INCR", "count"]);
    });
    while client.ask(&["GET", "count"]).parse::<u64>().unwrap_or(0) < 100 {}
    let seed = Seed::prepare_process(cluster.first(), &server.pid_text(), &[]);
    let children = seed.fork_idle(2, &["--to", &cluster.names(&[1, 2])]);
    for child in &children {
        service::run_in_network_of(child.pid, || check_child(port, &child.id, &expected));
    }
    let most = load.stop();
    assert_eq!(client.ask(&["GET", "count"]), most.to_string(), "the parent lost answers");
    assert_eq!(client.ask(&["GET", "only here"]), "nil", "a child's write is in the parent");
    client.ask(&["SET", "only here", "parent"]);
    for child in &children {
        let said = service::run_in_network_of(child.pid, || Client::new(port).ask(&["GET", "only here"]));
        assert_eq!(said, child.id, "another server's write is in {}", child.id);
    }
    client.ask(&["DEL", "count", "only here"]);
    assert_eq!(client.digest(), expected, "the parent");
    server.require_alive();
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    cluster.first().json(&[&["kill", "--signal", "KILL"], &ids[..]].concat());
}

/// Checks that a child has the same keys as a server that was never forked, accepts a write, and saves its keys.
fn check_child(port: u16, id: &str, expected: &str) {
    let mut client = Client::new(port);
    let counted: u64 = client.ask(&["GET", "count"]).parse().expect("it was counted before the fork");
    assert_eq!(
        client.ask(&["INCR", "count"]),
        (counted + 1).to_string(),
        "another client increments the counter of {id}"
    );
    client.ask(&["DEL", "count"]);
    assert_eq!(client.ask(&["DBSIZE"]), KEYS.to_string(), "{id}");
    assert_eq!(client.digest(), expected, "{id}");
    client.ask(&["SET", "only here", id]);
    assert_eq!(client.ask(&["SAVE"]), "OK", "{id} cannot save its keys");
}

fn start(port: u16) -> Service {
    Service::start(port, |directory| {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--enable-debug-command", "yes", "--dir"]);
        command.arg(directory);
        command
    })
}

fn fill(client: &mut Client) {
    for first in (0..KEYS).step_by(KEYS_AT_ONCE) {
        let number = |index: usize| ["SET".to_owned(), format!("key {index}"), format!("value {}", index * index)];
        let commands: Vec<u8> = (first..first + KEYS_AT_ONCE).flat_map(|index| encode(&number(index))).collect();
        client.0.get_mut().write_all(&commands).expect("the server reads");
        (0..KEYS_AT_ONCE).for_each(|_| assert_eq!(client.answer(), "OK"));
    }
}

/// A client of the server's protocol.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(port: u16) -> Self {
        Self(BufReader::new(service::connect(port)))
    }

    fn ask(&mut self, words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        self.0.get_mut().write_all(&encode(&words)).expect("the server reads");
        self.answer()
    }

    /// Returns a digest of all keys and values, which does not depend on their order.
    fn digest(&mut self) -> String {
        self.ask(&["DEBUG", "DIGEST"])
    }

    /// Reads an answer: a number, a word, or a string with a length.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        let (kind, text) = line.trim_end().split_at_checked(1).unwrap_or_else(|| panic!("no answer but `{line}`"));
        match kind {
            "$" if text == "-1" => "nil".to_owned(),
            "$" => {
                let mut bytes = vec![0; text.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("the server answers");
                String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()
            }
            _ => text.to_owned(),
        }
    }
}

fn encode(words: &[String]) -> Vec<u8> {
    let word = |word: &String| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>()).into_bytes()
}
