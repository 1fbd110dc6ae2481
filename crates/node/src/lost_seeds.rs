//! Reports to the pager the seeds that are lost because their node has left the cluster or was revoked. Without the report,
//! children would wait for such a node as for one whose link may recover.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;

use farfork_wire::NodeName;

use crate::node::Node;

/// Reports the seeds of `owner` that children of this node need, except those with an id in `kept`. `cause` is a clause for
/// the children's logs. Does not wait for the pager.
pub(crate) fn report_to_pager(node: &Arc<Node>, owner: &NodeName, kept: &[String], cause: &'static str) {
    let mut lost = BTreeSet::new();
    for child in node.children.all_alive() {
        let record = child.record();
        let needed = iter::once(&record.seed).chain(&record.inherits);
        lost.extend(needed.filter(|seed| seed.node() == owner && !kept.contains(&seed.to_string())).cloned());
    }
    if lost.is_empty() {
        return;
    }
    let pager = node.pager.clone();
    tokio::task::spawn_blocking(move || {
        for seed in lost {
            if let Err(error) =
                pager.client().lose_seed(&seed, &format!("seed {seed} cannot be reached any more: {cause}"))
            {
                tracing::warn!(%seed, %error, "children wait for the pages of a seed that is lost");
            }
        }
    });
}
