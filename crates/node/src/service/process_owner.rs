//! Finds the node of a process that belongs to another daemon of this machine. A capture refuses such a process for
//! reasons that do not help its user: this node knows neither its container nor its missing pages.

use std::fs;

use farfork_api::failure::Failure;
use farfork_wire::NodeName;
use tonic::Code;

use crate::node::Node;

/// Length of the hash of the run directory, in hexadecimal digits, at the end of a control group's name.
const FINGERPRINT_DIGITS: usize = 8;

/// Returns the failure of a request about a process that belongs to another node, with the name of that node. Returns
/// `None` for any other process.
pub(super) fn other_owner_failure(node: &Node, pid: u32) -> Option<Failure> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let owner = groups.lines().find_map(find_owner).filter(|owner| *owner != node.name)?;
    let cause = format!("it is a process of node {owner}: only that node can read the memory of its children");
    let step = format!(
        "run this command at that node: --socket names its socket, such as /run/farfork/{owner}/node.sock for a node of `farfork up`"
    );
    Some(Failure::new(Code::FailedPrecondition, format!("process {pid}"), cause).with_next_step(step))
}

/// Returns the node that made a control group: `…/farfork/NODE-FINGERPRINT/…`.
fn find_owner(membership: &str) -> Option<NodeName> {
    // The last such part: the daemon's own group may be below a group of another node.
    let (_, below) = membership.rsplit_once("/farfork/")?;
    let (name, fingerprint) = below.split('/').next()?.rsplit_once('-')?;
    let is_hash = fingerprint.len() == FINGERPRINT_DIGITS && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit());
    NodeName::new(name).ok().filter(|_| is_hash)
}

#[cfg(test)]
mod tests {
    use super::find_owner;

    #[test]
    fn the_group_of_a_child_names_its_node() {
        let owner = |line| find_owner(line).map(|name| name.to_string());
        assert_eq!(owner("0::/farfork-local/n2/farfork/n2-01abcdef/pool-7").as_deref(), Some("n2"));
        assert_eq!(owner("4:memory:/a/farfork/my-node-01abcdef/children").as_deref(), Some("my-node"));
        for other in ["0::/", "0::/farfork-local/n2/farfork-daemon", "0::/farfork/n2", "0::/farfork/n2-x/pool-7"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
