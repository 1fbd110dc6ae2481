//! The networks of a child: a network of its own with published ports, a network shared by all children of a fork, or
//! the node's network. No child disturbs the server of its parent.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_published_port_reaches_the_child", published),
    Test::shared("a_port_that_is_already_published_is_refused", taken_port),
    Test::alone("a_restarted_daemon_serves_published_ports", new_daemon),
    Test::shared("children_of_one_fork_connect_in_a_shared_network", shared),
    Test::shared("the_host_network_has_the_nodes_interfaces", host),
    Test::alone("copies_of_a_zygote_join_the_chosen_network", copies),
    Test::shared("a_taken_port_of_the_host_network_is_refused", port_of_the_node),
    Test::shared("contradicting_network_options_are_refused", contradicting_options),
];

/// Longest wait until a child serves, and until a port is free again.
const LIMIT: Duration = Duration::from_secs(60);
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

fn parent(kind: &str) -> Parent {
    Parent::start(Program::Situation("networks"), &[kind])
}

/// Sends a request from the network of a node. Returns the server's answer.
fn ask(cluster: &Cluster, node: usize, ip: IpAddr, port: u16, path: &str) -> io::Result<String> {
    cluster.in_network_of(node, || request(SocketAddr::new(ip, port), path))
}

fn request(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, REQUEST_LIMIT)?;
    stream.set_read_timeout(Some(REQUEST_LIMIT))?;
    // A single write: the server closes the connection after it has read the first piece.
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().last().unwrap_or_default().to_owned())
}

/// Errors of a request before a child or its node listens, and when the node closes a connection that its child does not
/// accept.
const EARLY_ERRORS: [ErrorKind; 3] = [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];

/// Sends requests from the network of a node until a child gives the expected answer. Before a child has found its
/// payload, it answers like its parent. Before it listens, requests fail or have no answer.
fn wait_for_answer(cluster: &Cluster, node: usize, server: SocketAddr, expected: &str) {
    wait::wait_until(&format!("{server} answers `{expected}`"), LIMIT, || {
        match ask(cluster, node, server.ip(), server.port(), "/") {
            Ok(answer) if answer == expected => return Some(()),
            Ok(answer) => assert!(matches!(&*answer, "" | "parent"), "`{answer}` instead of `{expected}`"),
            Err(error) => assert!(EARLY_ERRORS.contains(&error.kind()), "{error}"),
        }
        None
    });
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Checks the parent's own server, which is in the network of the tests.
fn check_parents_server(port: u16) {
    let answer = request(SocketAddr::new(LOOPBACK, port), "/");
    assert_eq!(answer.expect("the parent's server answers"), "parent");
}

fn port_of(parent: &Parent) -> u16 {
    u16::try_from(parent.expected_answer(0)).expect("the parent prints its port as its hash")
}

fn published(cluster: &Cluster) {
    let mut parent = parent("listen");
    let (seed, port) = (Seed::prepare(cluster.first(), &parent), port_of(&parent));
    let ports = format!("18080:{port}");
    let child = seed.fork_detached(&["7 serve".to_owned()], &["--to", cluster.name(1), "--publish", &ports]);
    wait_for_answer(cluster, 1, SocketAddr::new(LOOPBACK, 18_080), "child 7");
    for (from, ip) in [(1, LOOPBACK), (1, cluster.ip(1)), (0, cluster.ip(1))] {
        assert_eq!(ask(cluster, from, ip, 18_080, "/").expect("the child answers"), "child 7", "from {from} to {ip}");
    }
    check_parents_server(port);
    let said = cluster.first().json(&["inspect", &child[0].id]);
    assert!(said["publish"] == serde_json::json!([ports]) && said["network"] == "private", "{said}");

    assert_eq!(ask(cluster, 1, LOOPBACK, 18_080, "/quit").expect("the child answers"), "child 7");
    seed.check_answers(&parent, &child, &[7]);
    wait::wait_until("the port ends with the child", LIMIT, || ask(cluster, 1, LOOPBACK, 18_080, "/").err());
    check_parents_server(port);
    parent.require_unharmed();
}

fn taken_port(cluster: &Cluster) {
    let mut parent = parent("listen");
    let seed = Seed::prepare(cluster.first(), &parent);
    let options = ["--to", cluster.name(1), "--publish", "18081:80"];
    let child = &seed.fork_idle(1, &options)[0];
    let again = [&["fork", seed.id(), "--detach"], &options[..]].concat();
    let two = [&again[..], &["-n", "2"]].concat();
    let refused = cluster.first().run(&two);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("port 18081") && refused.stderr.contains("another port"), "{}", refused.stderr);
    cluster.first().run_failing(&again).require_mentions(&["port 18081", "in use", "another"]);
    cluster.first().run(&["kill", &child.id, "--signal", "KILL"]);
    cluster.first().run(&["wait", &child.id]);
    wait::wait_until("the port is free again", LIMIT, || cluster.first().run(&again).status.success().then_some(()));
    parent.require_unharmed();
}

fn new_daemon() {
    let cluster = Cluster::start(2);
    let mut parent = parent("listen");
    let (seed, port) = (Seed::prepare(cluster.first(), &parent), port_of(&parent));
    let ports = format!("18082:{port}");
    let options = ["--to", cluster.name(1), "--publish", &ports, "--strategy", "eager"];
    let child = seed.fork_detached(&["9 serve".to_owned()], &options);
    let wait_for_child = || wait_for_answer(&cluster, 1, SocketAddr::new(LOOPBACK, 18_082), "child 9");
    wait_for_child();
    cluster.kill_daemon(1);
    cluster.restart_daemon(1);
    wait_for_child();
    cluster.wait_until_all_are_alive();
    assert_eq!(ask(&cluster, 1, LOOPBACK, 18_082, "/quit").expect("the child answers"), "child 9");
    seed.check_answers(&parent, &child, &[9]);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn network_of(pid: i32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).expect("it lives")
}

fn shared(cluster: &Cluster) {
    let mut parent = parent("nothing");
    let seed = Seed::prepare(cluster.first(), &parent);
    let options = ["--to", cluster.name(1), "--net", "shared"];
    let payloads = ["1 host 7000", "2 meet 7000"].map(str::to_owned);
    let children = seed.fork_detached(&payloads, &options);
    assert_eq!(cluster.first().json(&["inspect", &children[0].id])["network"], "shared");
    seed.check_answers(&parent, &children, &[1, 2]);
    let idle = seed.fork_idle(2, &options);
    let other = seed.fork_idle(1, &options);
    let alone = seed.fork_idle(2, &["--to", cluster.name(1)]);
    let networks: Vec<PathBuf> =
        [&idle, &other, &alone].into_iter().flatten().map(|child| network_of(child.pid)).collect();
    assert_eq!(networks[0], networks[1], "children of one fork have different networks");
    for (index, network) in networks.iter().enumerate().skip(2) {
        assert!(!networks[..index].contains(network), "network {index} is another's: {networks:?}");
    }
    assert!(!networks.contains(&network_of(cluster.daemon_pid(1))));
    parent.require_unharmed();
}

/// Returns whether a process or a descriptor of the daemon keeps a network alive.
fn is_held(cluster: &Cluster, network: &Path) -> bool {
    let links = |directory: String| fs::read_dir(directory).into_iter().flatten().flatten();
    let of_daemon = links(format!("/proc/{}/fd", cluster.daemon_pid(1))).map(|entry| entry.path());
    let of_processes = links("/proc".to_owned()).map(|entry| entry.path().join("ns/net"));
    of_daemon.chain(of_processes).any(|link| fs::read_link(link).is_ok_and(|found| found == network))
}

/// Forks children with each kind of network in turn from one zygote.
fn copies() {
    const EACH: usize = 3;
    let cluster = Cluster::start(2);
    let mut parent = parent("nothing");
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = ["--to", cluster.name(1)];
    wait::wait_until("a zygote that children are forked from", LIMIT, || {
        let ended = seed.fork_attached("5 look", &to);
        assert_eq!(ended.status.code(), Some(42), "{}{}", ended.stdout, ended.stderr);
        (cluster.zygote_count(1, "children") > 0).then_some(())
    });
    let before = cluster.zygote_count(1, "children");
    let of_node = network_of(cluster.daemon_pid(1));
    let in_turn = |net: &str| {
        let children = seed.fork_idle(EACH, &[&to[..], &["--net", net]].concat());
        let networks: Vec<PathBuf> = children.iter().map(|child| network_of(child.pid)).collect();
        (children, networks)
    };
    let mut seen: Vec<PathBuf> = vec![of_node.clone()];
    // The inode number of a network that has ended may be reused. A network that is still open keeps its number.
    let mut open = Vec::new();
    for _ in 0..2 {
        let (ended, shared) = in_turn("shared");
        open.push(File::open(format!("/proc/{}/ns/net", ended[0].pid)).expect("it lives"));
        assert!(
            shared.iter().all(|network| *network == shared[0]) && !seen.contains(&shared[0]),
            "{shared:?} {seen:?}"
        );
        assert!(is_held(&cluster, &shared[0]));
        let (_, host) = in_turn("host");
        assert!(host.iter().all(|network| *network == of_node), "{host:?} {of_node:?}");
        let (_, private) = in_turn("private");
        seen.push(shared[0].clone());
        for network in private {
            assert!(!seen.contains(&network), "{network:?} {seen:?}");
            seen.push(network);
        }
        for child in &ended {
            cluster.first().run(&["kill", &child.id, "--signal", "KILL"]);
        }
        wait::wait_until("a shared network ends with its children", LIMIT, || {
            (!is_held(&cluster, &shared[0])).then_some(())
        });
    }
    assert_eq!(
        cluster.zygote_count(1, "children") - before,
        6 * EACH as u64,
        "not every child is a copy of the zygote"
    );
    // Children that share a network can connect to each other, whether or not they are copies of a zygote.
    let meeting = ["1 host 7000", "2 meet 7000"].map(str::to_owned);
    let children = seed.fork_detached(&meeting, &[&to[..], &["--net", "shared"]].concat());
    seed.check_answers(&parent, &children, &[1, 2]);
    parent.require_unharmed();
    drop((seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn host(cluster: &Cluster) {
    let mut parent = parent("nothing");
    let seed = Seed::prepare(cluster.first(), &parent);
    let interfaces = |options: &[&str]| {
        let ended = seed.fork_attached("5 look", &[&["--to", cluster.name(1)], options].concat());
        assert_eq!(ended.status.code(), Some(42), "{}{}", ended.stdout, ended.stderr);
        let lines = ended.stdout.lines().filter_map(|line| line.strip_prefix("interface "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(interfaces(&[]), ["lo"]);
    assert_eq!(interfaces(&["--net", "shared"]), ["lo"]);
    let of_node = interfaces(&["--net", "host"]);
    assert!(of_node.contains(&"lo".to_owned()) && of_node.contains(&"eth0".to_owned()), "{of_node:?}");
    let child = &seed.fork_idle(1, &["--to", cluster.name(1), "--net", "host"])[0];
    assert_eq!(network_of(child.pid), network_of(cluster.daemon_pid(1)));
    assert_eq!(cluster.first().json(&["inspect", &child.id])["network"], "host");
    parent.require_unharmed();
}

fn port_of_the_node(cluster: &Cluster) {
    let mut parent = parent("listen");
    let (seed, port) = (Seed::prepare(cluster.first(), &parent), port_of(&parent));
    let options = ["--to", cluster.name(1), "--net", "host"];
    // The parent is in another network, where it continues to use its port.
    let child = seed.fork_detached(&["3 serve".to_owned()], &options);
    wait_for_answer(cluster, 0, SocketAddr::new(cluster.ip(1), port), "child 3");
    let again = [&["fork", seed.id(), "--detach"], &options[..]].concat();
    cluster.first().run_failing(&again).require_mentions(&[
        "making a socket",
        &format!(":{port}"),
        "in use",
        "--net private",
    ]);
    assert_eq!(ask(cluster, 0, cluster.ip(1), port, "/").expect("the first child still answers"), "child 3");
    assert_eq!(ask(cluster, 1, LOOPBACK, port, "/quit").expect("the child answers"), "child 3");
    seed.check_answers(&parent, &child, &[3]);
    check_parents_server(port);
    parent.require_unharmed();
}

fn contradicting_options(cluster: &Cluster) {
    let mut sharing = parent("share");
    let (seed, port) = (Seed::prepare(cluster.first(), &sharing), port_of(&sharing));
    let refused = |options: &[&str]| cluster.first().run_failing(&[&["fork", seed.id(), "--detach"], options].concat());
    refused(&["--net", "host"]).require_mentions(&[
        "fd 3",
        &format!(":{port}"),
        "would receive traffic of other processes",
    ]);
    refused(&["--net", "host", "--untrusted"]).require_mentions(&["untrusted", "--net host"]);
    refused(&["--net", "shared", "--publish", "18083:80"]).require_mentions(&["published ports", "--net"]);
    check_parents_server(port);
    sharing.require_unharmed();
}
