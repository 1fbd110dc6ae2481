//! A network for the nodes of a test: a network namespace for each node, with a link to a bridge in another namespace. The
//! namespaces have no names, so they end with the value and the processes in them.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use farfork_sys::namespace::{enter_network, unshare_network};

/// The link of a node, in the namespace of the node.
const NODE_LINK: &str = "eth0";
const BRIDGE: &str = "br0";

/// Namespaces and links.
pub(crate) struct TestNetwork {
    bridge: OwnedFd,
    nodes: Vec<NodeNetwork>,
}

/// Network namespace and address of the processes of a node.
#[derive(Clone)]
pub(crate) struct NodeNetwork {
    /// None: the network namespace of the test.
    namespace: Option<Arc<OwnedFd>>,
    pub(crate) address: IpAddr,
}

impl TestNetwork {
    /// Creates a network for `nodes` nodes, at most 254.
    pub(crate) fn start(nodes: u8) -> Self {
        let bridge = in_thread(|| unshare_network().unwrap());
        let nodes: Vec<_> = (1..=nodes).map(NodeNetwork::new).collect();
        let mut plan = format!("link add {BRIDGE} type bridge\nlink set {BRIDGE} up\n");
        for (index, node) in nodes.iter().enumerate() {
            let namespace = node.namespace.as_ref().expect("it has its own").as_raw_fd();
            let (port, namespace) = (port(index), format!("/proc/{}/fd/{namespace}", std::process::id()));
            plan += &format!("link add {port} type veth peer name {NODE_LINK} netns {namespace}\n");
            plan += &format!("link set {port} master {BRIDGE} up\n");
        }
        run_ip(&bridge, &plan);
        for node in &nodes {
            let address = node.address;
            let plan = format!("address add {address}/24 dev {NODE_LINK}\nlink set {NODE_LINK} up\n");
            run_ip(node.namespace.as_ref().expect("it has its own"), &plan);
        }
        Self { bridge, nodes }
    }

    /// The network of a node, for its processes.
    pub(crate) fn node(&self, index: usize) -> NodeNetwork {
        self.nodes[index].clone()
    }

    /// Limits the rate at which a node sends, as tc-tbf(8) names it.
    pub(crate) fn limit_rate(&self, index: usize, rate: &str) {
        self.run_tc(
            index,
            &["qdisc", "add", "dev", NODE_LINK, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms"],
        );
    }

    /// Ends `limit_rate`.
    pub(crate) fn remove_rate_limit(&self, index: usize) {
        self.run_tc(index, &["qdisc", "del", "dev", NODE_LINK, "root"]);
    }

    fn run_tc(&self, index: usize, arguments: &[&str]) {
        in_thread(|| {
            self.nodes[index].enter();
            assert!(Command::new("tc").args(arguments).status().unwrap().success(), "tc: {arguments:?}");
        });
    }

    /// Drops all packets of a node's link.
    pub(crate) fn cut_link(&self, index: usize) {
        run_ip(&self.bridge, &format!("link set {} down\n", port(index)));
    }

    /// Delivers packets of a node's link again.
    pub(crate) fn restore_link(&self, index: usize) {
        run_ip(&self.bridge, &format!("link set {} up\n", port(index)));
    }
}

impl NodeNetwork {
    fn new(number: u8) -> Self {
        let namespace = in_thread(|| unshare_network().unwrap());
        Self { namespace: Some(Arc::new(namespace)), address: Ipv4Addr::new(10, 0, 0, number).into() }
    }

    /// The network of the test.
    pub(crate) fn loopback() -> Self {
        Self { namespace: None, address: Ipv4Addr::LOCALHOST.into() }
    }

    /// The command that executes its further arguments in the namespace.
    pub(crate) fn wrapper(&self) -> Vec<String> {
        let namespace = self.namespace.as_ref().expect("it has its own").as_raw_fd();
        vec!["nsenter".to_owned(), format!("--net=/proc/{}/fd/{namespace}", std::process::id())]
    }

    /// Moves the calling thread, and the processes that it starts, into the namespace.
    pub(crate) fn enter(&self) {
        if let Some(namespace) = &self.namespace {
            enter_network(namespace.as_fd()).unwrap();
        }
    }
}

/// The bridge's end of a link.
fn port(node: usize) -> String {
    format!("n{}", node + 1)
}

/// Runs `run` in a thread of its own, which may enter a namespace.
pub(crate) fn in_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Runs commands of ip(8) in a namespace.
fn run_ip(namespace: &OwnedFd, commands: &str) {
    in_thread(|| {
        enter_network(namespace.as_fd()).unwrap();
        let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        ip.stdin.take().expect("it is piped").write_all(commands.as_bytes()).unwrap();
        assert!(ip.wait().unwrap().success(), "ip: {commands}");
    });
}
