//! An HTTP server in Go that keeps sums, and the functions that all tests of servers use.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::harness::service::{self, RequestLoad};
use crate::harness::{Cluster, Program, Seed, Service, StartedChild, require_fresh_child_same};

/// The server adds numbers and answers with the sum. Children and parent must answer like a server that was never
/// forked.
pub(super) fn go_server(cluster: &Cluster) {
    let port = service::free_port();
    let mut server = Service::start(port, |_| {
        let mut command = Program::Real("sums.go").command();
        command.arg(port.to_string());
        command
    });
    require_fresh_child_same(cluster.first(), cluster.name(1), server.pid());
    let load = RequestLoad::start(port, |stream| drop(get(stream, "/add?name=load&number=1")));
    let mut stream = service::connect(port);
    assert_eq!(get(&mut stream, "/add?name=mine&number=40"), "40");
    while get(&mut stream, "/add?name=load&number=0").parse::<u64>().expect("a sum") < 50 {}
    let (_seed, children) = children_of(cluster, &server, &[]);
    for child in &children {
        let said = service::run_in_network_of(child.pid, || {
            let mut stream = service::connect(port);
            // /work makes the garbage collector run. Goroutines continue to wait for timers.
            let work = get(&mut stream, "/work");
            [get(&mut stream, "/add?name=mine&number=2"), work, get(&mut stream, "/add?name=mine&number=3")]
        });
        assert_eq!((said[0].as_str(), said[2].as_str()), ("42", "45"), "{}", child.id);
        assert_eq!(said[1], get(&mut stream, "/work"), "{}: the parent computes another result", child.id);
    }
    let asked = load.stop();
    assert_eq!(get(&mut stream, "/add?name=load&number=0"), asked.to_string(), "the parent lost answers");
    assert_eq!(get(&mut stream, "/add?name=mine&number=1"), "41", "a child's sum is in the parent");
    server.require_alive();
    end(cluster, &children);
}

/// Forks two children of a server. The caller must keep the seed while the children fetch its pages.
pub(super) fn children_of(cluster: &Cluster, server: &Service, options: &[&str]) -> (Seed, Vec<StartedChild>) {
    let seed = Seed::prepare_process(cluster.first(), &server.pid_text(), &[]);
    let children = seed.fork_idle(2, &[&["--to", &cluster.names(&[1, 2])], options].concat());
    (seed, children)
}

pub(super) fn end(cluster: &Cluster, children: &[StartedChild]) {
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    cluster.first().json(&[&["kill", "--signal", "KILL"], &ids[..]].concat());
}

/// Sends a request, and returns the body of the answer. The connection stays open.
pub(super) fn get(stream: &mut TcpStream, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    let mut reader = BufReader::new(stream);
    let (mut line, mut bytes) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).expect("the server answers") > 0, "no answer to {path}");
        let (name, value) = line.split_once(": ").unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            bytes = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; bytes];
    reader.read_exact(&mut body).expect("the server answers");
    String::from_utf8(body).expect("text")
}
