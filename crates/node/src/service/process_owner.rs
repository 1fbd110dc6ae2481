//! Finds the node of a process that belongs to another daemon of this machine. A capture refuses such a process for
//! reasons that do not help its user: this node knows neither its container nor its missing pages.

use std::fs;

use farfork_api::failure::Failure;
use farfork_container::node_of_control_group;
use tonic::Code;

use crate::node::Node;

/// Returns the failure of a request about a process that belongs to another node, with the name of that node. Returns
/// `None` for any other process.
pub(super) fn foreign_process_failure(node: &Node, pid: u32) -> Option<Failure> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let owner = groups.lines().find_map(node_of_control_group).filter(|owner| *owner != node.name.as_str())?;
    let cause = format!("it is a process of node {owner}: only that node can read the memory of its children");
    let step = format!(
        "run this command at that node: --socket names its socket, such as /run/farfork/{owner}/node.sock for a node of `farfork up`"
    );
    Some(Failure::new(Code::FailedPrecondition, format!("process {pid}"), cause).with_next_step(step))
}
