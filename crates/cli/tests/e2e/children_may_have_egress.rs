//! Egress: a child with its own network connects to other hosts through its node, but only to the allowed addresses. It
//! also resolves names.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_child_connects_from_the_address_of_its_node", connected_from_node),
    Test::shared("a_child_reaches_only_allowed_addresses", allowed_addresses),
    Test::shared("datagrams_and_name_lookups_are_answered", datagrams),
    Test::shared("a_connected_udp_socket_works_with_egress", connected_socket),
    Test::shared("an_untrusted_child_connects", untrusted),
    Test::shared("data_sent_just_before_the_end_arrives", data_before_end),
    Test::shared("children_of_a_shared_network_share_egress", shared),
    Test::alone("children_connect_through_a_restarted_daemon", new_daemon),
    Test::shared("egress_with_the_host_network_is_refused", host_network),
];

const LIMIT: Duration = Duration::from_secs(60);

fn parent() -> Parent {
    Parent::start(Program::Situation("networks"), &["nothing"])
}

/// Makes an object, such as a socket, in the network of a node.
fn on_node<T: Send>(cluster: &Cluster, node: usize, make: impl FnOnce() -> io::Result<T> + Send) -> T {
    cluster.in_network_of(node, make).expect("the object is made")
}

/// A server in the network of a node. It answers with a word and the caller's address: `done` if the child may end,
/// `again` otherwise. The server ends with the test run.
struct Server {
    port: u16,
    calls: Arc<AtomicUsize>,
    is_done: Arc<AtomicBool>,
}

impl Server {
    fn start(cluster: &Cluster, node: usize, is_done: bool) -> Self {
        let listener = on_node(cluster, node, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
        let port = listener.local_addr().expect("it is bound").port();
        let server = Self { port, calls: Arc::default(), is_done: Arc::new(is_done.into()) };
        let (calls, is_done) = (server.calls.clone(), server.is_done.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                // The connection fails if the caller has closed it.
                let _ = stream.and_then(|mut stream| {
                    stream.read_exact(&mut [0])?;
                    calls.fetch_add(1, Ordering::Relaxed);
                    let word = if is_done.load(Ordering::Relaxed) { "done" } else { "again" };
                    // A single write: a child reads only the first piece.
                    let ip = stream.peer_addr()?.ip();
                    stream.write_all(format!("{word} {ip}").as_bytes())
                });
            }
        });
        server
    }
}

/// Runs an attached child. Returns the answers that it received.
fn heard(seed: &Seed, payload: &str, options: &[&str]) -> Vec<String> {
    let ended = seed.fork_attached(payload, options);
    assert_eq!(ended.status.code(), Some(42), "{payload} {options:?}: {}{}", ended.stdout, ended.stderr);
    ended.stdout.lines().filter_map(|line| line.strip_prefix("received ")).map(str::to_owned).collect()
}

fn connected_from_node(cluster: &Cluster) {
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let (ip, own) = (cluster.ip(0).to_string(), cluster.ip(1).to_string());
    let server = Server::start(cluster, 0, true);
    let to = ["--to", cluster.name(1), "--egress", "any"];
    let call = format!("5 call {ip} {}", server.port);
    // The first child is restored. The others are copies of a zygote.
    for _ in 0..4 {
        assert_eq!(heard(&seed, &call, &to), [format!("done {own}")]);
    }
    let nobody = on_node(cluster, 0, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()).port();
    let told = heard(&seed, &format!("5 call {ip} {nobody}"), &to);
    assert!(told[0].starts_with("nothing: Connection reset"), "{told:?}");
    let without = heard(&seed, &call, &to[..2]);
    assert!(without[0].starts_with("nothing: Network is unreachable"), "{without:?}");
    let child = &seed.fork_idle(1, &to)[0];
    assert_eq!(cluster.first().json(&["inspect", &child.id])["egress"], serde_json::json!(["any"]));
    parent.require_unharmed();
}

fn allowed_addresses(cluster: &Cluster) {
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let (ip, server) = (cluster.ip(0).to_string(), Server::start(cluster, 0, true));
    let call = format!("5 call {ip} {}", server.port);
    let with = |egress: &str| heard(&seed, &call, &["--to", cluster.name(1), "--egress", egress]).remove(0);
    let (exact, other) = (format!("{ip}:{}", server.port), format!("{ip}:{}", server.port ^ 1));
    for may in [format!("192.0.2.0/24,{exact}"), format!("{ip}/8"), ip.clone()] {
        let said = with(&may);
        assert!(said.starts_with("done "), "{may}: {said}");
    }
    let calls = server.calls.load(Ordering::Relaxed);
    for may_not in [other.as_str(), "192.0.2.0/24"] {
        assert!(with(may_not).starts_with("nothing: Connection reset"), "{may_not}");
    }
    // To a server at the node's loopback interface, the connection would look like a local one.
    let on_loopback = heard(&seed, &format!("5 call 127.0.0.1 {}", server.port), &["--egress", "0.0.0.0/0"]);
    assert!(on_loopback[0].starts_with("nothing: Connection refused"), "{on_loopback:?}");
    assert_eq!(server.calls.load(Ordering::Relaxed), calls, "a child without permission connected");
    parent.require_unharmed();
}

/// Answers each DNS query with one address, like a resolver.
fn answer_names(socket: &UdpSocket, address: Ipv4Addr) {
    const HEADER_BYTES: usize = 12;
    const OF_ADDRESSES: [u8; 2] = [0, 1];
    let mut buffer = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let name = &buffer[HEADER_BYTES..length];
        let end = HEADER_BYTES + name.iter().position(|byte| *byte == 0).expect("a name ends") + 5;
        let is_of_addresses = buffer[end - 4..end - 2] == OF_ADDRESSES;
        let mut answer = [&buffer[..2], &[0x81, 0x80, 0, 1, 0, u8::from(is_of_addresses), 0, 0, 0, 0]].concat();
        answer.extend(&buffer[HEADER_BYTES..end]);
        if is_of_addresses {
            // The name of the query, and an address that is valid for a minute.
            answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(address.octets());
        }
        let _ = socket.send_to(&answer, from);
    }
}

/// Starts a UDP echo server on the first node. Returns its port.
fn echo(cluster: &Cluster) -> u16 {
    let socket = on_node(cluster, 0, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let port = socket.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(format!("you are {}", from.ip()).as_bytes(), from);
        }
    });
    port
}

fn datagrams(cluster: &Cluster) {
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let (ip, own) = (cluster.ip(0).to_string(), cluster.ip(1).to_string());
    let port = echo(cluster);
    let send = format!("5 send {ip} {port}");
    let to = |egress| ["--to", cluster.name(1), "--egress", egress];
    assert_eq!(heard(&seed, &send, &to("any")), vec![format!("you are {own}"); 3]);
    let blocked = heard(&seed, &send, &to("192.0.2.0/24"));
    assert!(blocked.iter().all(|line| line.starts_with("nothing: ")), "{blocked:?}");

    let scratch = scratch::directory();
    let resolvers = scratch.path().join("resolv.conf");
    fs::write(&resolvers, format!("nameserver {ip}\n")).expect("it is written");
    let answer = Ipv4Addr::new(203, 0, 113, 9);
    let names = on_node(cluster, 0, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 53)));
    thread::spawn(move || answer_names(&names, answer));
    let bind = format!("{}:/etc/resolv.conf", resolvers.display());
    let options = [&to("any")[..], &["--bind", &bind]].concat();
    assert_eq!(heard(&seed, "5 name far.example", &options), [answer.to_string()]);
    parent.require_unharmed();
}

fn connected_socket(cluster: &Cluster) {
    let (ip, own, port) = (cluster.ip(0).to_string(), cluster.ip(1).to_string(), echo(cluster).to_string());
    let mut parent = Parent::start(Program::Situation("networks"), &["connected", &ip, &port]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = ["--to", cluster.name(1)];
    for net in ["private", "shared"] {
        let without = heard(&seed, "5 speak", &[&to[..], &["--net", net]].concat());
        assert!(without.iter().all(|line| line.starts_with("nothing: Network is unreachable")), "{net}: {without:?}");
    }
    let with = heard(&seed, "5 speak", &[&to[..], &["--egress", "any"]].concat());
    assert_eq!(with, vec![format!("you are {own}"); 3]);
    parent.require_unharmed();
}

fn untrusted(cluster: &Cluster) {
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let (ip, server) = (cluster.ip(0).to_string(), Server::start(cluster, 0, true));
    let call = format!("5 call {ip} {}", server.port);
    let to = ["--to", cluster.name(1), "--egress", &ip, "--untrusted"];
    for options in [&to[..], &[&to[..], &["--user-namespace"]].concat()] {
        assert!(heard(&seed, &call, options)[0].starts_with("done "), "{options:?}");
    }
    parent.require_unharmed();
}

fn data_before_end(cluster: &Cluster) {
    const CHILDREN: usize = 20;
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let ip = cluster.ip(0).to_string();
    let (listener, socket) = on_node(cluster, 0, || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let socket = UdpSocket::bind(listener.local_addr()?)?;
        Ok((listener, socket))
    });
    let port = listener.local_addr().expect("it is bound").port();
    let heard: Arc<[AtomicUsize; 2]> = Arc::default();
    let [streams, datagrams] = [heard.clone(), heard.clone()];
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut said = String::new();
            let whole = stream.and_then(|mut stream| stream.read_to_string(&mut said));
            streams[0].fetch_add(usize::from(whole.is_ok() && said == "bye"), Ordering::Relaxed);
        }
    });
    thread::spawn(move || {
        let mut said = [0; 8];
        while let Ok((length, _)) = socket.recv_from(&mut said) {
            datagrams[1].fetch_add(usize::from(&said[..length] == b"bye"), Ordering::Relaxed);
        }
    });
    for number in 0..CHILDREN {
        let payload = format!("{number} leave {ip} {port}");
        let ended = seed.fork_attached(&payload, &["--to", cluster.name(1), "--egress", "any"]);
        assert_eq!(ended.status.code(), Some(42), "{}{}", ended.stdout, ended.stderr);
    }
    wait::wait_until("the server gets requests of each child", LIMIT, || {
        let counts = heard.each_ref().map(|count| count.load(Ordering::Relaxed));
        (counts == [CHILDREN; 2]).then_some(())
    });
    parent.require_unharmed();
}

fn shared(cluster: &Cluster) {
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let (ip, server) = (cluster.ip(0).to_string(), Server::start(cluster, 0, false));
    let first = Server::start(cluster, 0, true);
    let payloads = [format!("5 call {ip} {}", first.port), format!("6 calls {ip} {}", server.port)];
    for options in [&["--net", "shared"][..], &["--net", "shared", "--untrusted", "--user-namespace"]] {
        let options = [&["--to", cluster.name(1), "--egress", "any"], options].concat();
        let children = seed.fork_detached(&payloads, &options);
        seed.check_answers(&parent, &children[..1], &[5]);
        // The other child continues to call.
        let before = server.calls.load(Ordering::Relaxed);
        wait::wait_until("the server gets a request of the other child", LIMIT, || {
            (server.calls.load(Ordering::Relaxed) > before).then_some(())
        });
        server.is_done.store(true, Ordering::Relaxed);
        seed.check_answers(&parent, &children[1..], &[6]);
        server.is_done.store(false, Ordering::Relaxed);
    }
    parent.require_unharmed();
}

fn new_daemon() {
    let cluster = Cluster::start(2);
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let (ip, server) = (cluster.ip(0).to_string(), Server::start(&cluster, 0, false));
    let call = |number: u32| format!("{number} calls {ip} {}", server.port);
    let options = ["--to", cluster.name(1), "--egress", "any", "--strategy", "eager"];
    let mut children = seed.fork_detached(&[call(5)], &options);
    let in_one = [&options[..], &["--net", "shared"]].concat();
    children.extend(seed.fork_detached(&[call(6), call(7)], &in_one));
    let calls = || server.calls.load(Ordering::Relaxed);
    wait::wait_until("the server gets a request of the child", LIMIT, || (calls() > 0).then_some(()));
    cluster.kill_daemon(1);
    let before = calls();
    cluster.restart_daemon(1);
    wait::wait_until("the server gets a request of the child through the new daemon", LIMIT, || {
        (calls() > before).then_some(())
    });
    cluster.wait_until_all_are_alive();
    server.is_done.store(true, Ordering::Relaxed);
    seed.check_answers(&parent, &children, &[5, 6, 7]);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn host_network(cluster: &Cluster) {
    let mut parent = parent();
    let seed = Seed::prepare(cluster.first(), &parent);
    let options = ["fork", seed.id(), "--detach", "--net", "host", "--egress", "any"];
    cluster.first().run_failing(&options).require_mentions(&["egress", "--egress", "--net"]);
    parent.require_unharmed();
}
