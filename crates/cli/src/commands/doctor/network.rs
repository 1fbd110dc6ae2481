//! Checks of the network: the addresses of the node, the tool for namespaces, and the clocks of the cluster.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use farfork_api::client::request_with_timeout;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{ListNodesRequest, NodeView};

use super::finding::HostFinding;
use crate::commands::node::default_fabric_port;
use crate::connection::ConnectionArgs;

/// Largest difference between the clocks of two nodes, in milliseconds. Certificates and tokens are valid for hours, but the
/// times of files and logs should agree. A heartbeat may take a few hundred milliseconds on a busy machine.
const CLOCK_DIFFERENCE_MAX_MS: u64 = 1000;

/// Returns the nodes that the daemon of this machine knows; `None` if no daemon answers.
pub(super) async fn list_nodes(connection: &ConnectionArgs) -> Option<Vec<NodeView>> {
    let mut client = connection.open().await.ok()?;
    let answer = client.list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {})).await;
    Some(answer.ok()?.into_inner().nodes)
}

/// `socket` is the socket that the command line selects.
pub(super) fn check(listen: SocketAddr, nodes: Option<&[NodeView]>, socket: Option<&Path>) -> Vec<HostFinding> {
    vec![check_ports(listen, nodes), check_ip_command(), check_clock(nodes, socket)]
}

/// Checks that the daemon can listen at both of its ports.
fn check_ports(listen: SocketAddr, nodes: Option<&[NodeView]>) -> HostFinding {
    let ports = [listen.port(), default_fabric_port(listen)];
    for port in ports {
        let address = SocketAddr::new(listen.ip(), port);
        if let Err(error) = TcpListener::bind(address) {
            return judge_bind_error(address, &error, nodes);
        }
    }
    if listen.port() == 0 {
        return HostFinding::ok("ports", format!("{} has free ports", listen.ip()));
    }
    HostFinding::ok("ports", format!("{} and {} of {} are free", ports[0], ports[1], listen.ip()))
}

fn judge_bind_error(address: SocketAddr, error: &io::Error, nodes: Option<&[NodeView]>) -> HostFinding {
    let own = nodes.into_iter().flatten().find(|node| node.is_self);
    let is_own_port = |own_address: &str| own_address.parse().is_ok_and(|own: SocketAddr| own.port() == address.port());
    // A running node does not explain that the machine lacks the address.
    let own = own.filter(|_| error.kind() == io::ErrorKind::AddrInUse);
    if let Some(own) = own.filter(|own| is_own_port(&own.address) || is_own_port(&own.fabric_address)) {
        return HostFinding::ok("ports", format!("node {} listens at {}", own.name, own.address));
    }
    let found = format!("{address}: {error}");
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("find the program with `ss -ltnp 'sport = :{}'`, or select another port", address.port())
        }
        io::ErrorKind::AddrNotAvailable => "select an address that `ip address` shows".to_owned(),
        _ => "select another port".to_owned(),
    };
    HostFinding::problem("ports", found, remedy)
}

/// `farfork up` needs ip(8).
fn check_ip_command() -> HostFinding {
    match Command::new("ip").arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => HostFinding::ok("ip", "installed"),
        Err(error) => {
            let found = format!("`farfork up` does not work: ip(8): {error}");
            HostFinding::warning("ip", found, "install iproute2 (apt-get install iproute2)")
        }
    }
}

fn check_clock(nodes: Option<&[NodeView]>, socket: Option<&Path>) -> HostFinding {
    let Some(nodes) = nodes else {
        let found = "not compared: no daemon answers";
        return socket.map_or_else(
            || HostFinding::ok("clock", found),
            |path| {
                HostFinding::warning(
                    "clock",
                    format!("{found} at {}", path.display()),
                    "start the daemon, or drop --socket",
                )
            },
        );
    };
    let compared = || nodes.iter().filter_map(|node| Some((&node.name, node.clock_difference_ms?)));
    let Some((name, difference_ms)) = compared().max_by_key(|(_, difference_ms)| difference_ms.unsigned_abs()) else {
        return HostFinding::ok("clock", "not compared: no other node has reported its clock");
    };
    let found =
        format!("differs from {} nodes by at most {} ms ({name})", compared().count(), difference_ms.unsigned_abs());
    if difference_ms.unsigned_abs() <= CLOCK_DIFFERENCE_MAX_MS {
        return HostFinding::ok("clock", found);
    }
    HostFinding::warning("clock", found, "synchronise the clocks (timedatectl set-ntp true, or chronyd)")
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use farfork_api::v1::NodeView;

    use super::super::finding::FindingStatus;
    use super::{check_clock, check_ports};

    #[test]
    fn a_used_port_is_a_problem_unless_the_node_itself_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let used = check_ports(address, None);
        assert_eq!(used.status, FindingStatus::Problem);
        assert!(used.remedy.unwrap().contains(&format!("sport = :{}", address.port())));
        let own =
            NodeView { name: "n1".to_owned(), address: address.to_string(), is_self: true, ..NodeView::default() };
        let missing = SocketAddr::new("203.0.113.1".parse().unwrap(), address.port());
        let own = [own];
        assert_eq!(check_ports(address, Some(&own)).status, FindingStatus::Ok);
        let missing = check_ports(missing, Some(&own));
        assert_eq!(missing.remedy.as_deref(), Some("select an address that `ip address` shows"));
    }

    #[test]
    fn the_clock_that_differs_most_is_named() {
        let node = |name: &str, clock_difference_ms| NodeView {
            name: name.to_owned(),
            clock_difference_ms,
            ..NodeView::default()
        };
        let nodes = [node("n1", None), node("n2", Some(3)), node("n3", Some(-4200))];
        let finding = check_clock(Some(&nodes), None);
        assert_eq!(finding.status, FindingStatus::Warning);
        assert_eq!(finding.found, "differs from 2 nodes by at most 4200 ms (n3)");
        assert_eq!(check_clock(Some(&nodes[..2]), None).status, FindingStatus::Ok);
        assert_eq!(check_clock(None, None).found, "not compared: no daemon answers");
    }
}
