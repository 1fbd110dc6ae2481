//! `farfork prewarm`: copies the descriptor and the working set of a seed to nodes before its first child there.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::{PREWARM_TIMEOUT, QUERY_TIMEOUT};
use farfork_api::v1::prewarm_outcome::Result as Outcome;
use farfork_api::v1::{PrewarmOutcome, PrewarmRequest, Warm};
use serde::Serialize;

use crate::GlobalArgs;
use crate::output::{self, Table, format_bytes};

/// Copy a seed's descriptor and working set to nodes, before the first fork there.
///
/// The working set is the pages that children of the seed touched. Each node keeps them in its page cache as long as
/// the seed exists and the pages are used (see `farfork node --cache`). All later children of the seed on that node
/// read them from the cache. Each node also opens a connection to the seed's node.
///
/// The working set is known after the first child of the seed has run on any node. Before that, nodes get only the
/// descriptor and the connection. A node does not cache the pages of its own seeds.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork prewarm warm-interpreter --to n2,n3
  farfork prewarm $SEED --to n2 --json | jq '.nodes[].cached_bytes'

Exit status: 0 all nodes are ready, 1 at least one is not, 2 wrong usage.")]
pub(crate) struct Prewarm {
    /// Id or name of the seed.
    seed: String,
    /// Names of the nodes, up to 256.
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true)]
    to: Vec<String>,
}

/// The result for one node.
struct NodePrewarm {
    node: String,
    result: Result<Warm, Failure>,
}

/// The result for one node, as JSON.
#[derive(Debug, Serialize)]
struct PrewarmView {
    node: String,
    /// Size of the seed's working set; null if the node failed.
    set_bytes: Option<u64>,
    /// The part of the working set that the node keeps in its page cache.
    cached_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Prewarm {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let request = PrewarmRequest { seed: self.seed.clone(), nodes: self.to };
        let answer = client.prewarm(request_with_timeout(PREWARM_TIMEOUT + 2 * QUERY_TIMEOUT, request)).await;
        let answer =
            answer.map_err(|status| Failure::from_status(format!("seed {}", self.seed), &status))?.into_inner();
        let prewarms: Vec<NodePrewarm> = answer.outcomes.into_iter().map(NodePrewarm::from).collect();
        let failures: Vec<&Failure> = prewarms.iter().filter_map(|prewarm| prewarm.result.as_ref().err()).collect();
        if global.json {
            let nodes: Vec<PrewarmView> = prewarms.iter().map(NodePrewarm::to_view).collect();
            output::print_json(&serde_json::json!({ "seed": answer.seed, "nodes": nodes }));
        } else {
            prewarms_table(&prewarms).print();
        }
        failures.iter().for_each(|failure| output::print_failure(failure));
        Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl From<PrewarmOutcome> for NodePrewarm {
    fn from(outcome: PrewarmOutcome) -> Self {
        let result = match outcome.result {
            Some(Outcome::Warm(warm)) => Ok(warm),
            Some(Outcome::Error(error)) => Err(Failure::from(error)),
            None => Err(Failure::new(tonic::Code::Internal, format!("node {}", outcome.node), "its answer is empty")),
        };
        Self { node: outcome.node, result }
    }
}

impl NodePrewarm {
    fn to_view(&self) -> PrewarmView {
        let Self { node, result } = self;
        PrewarmView {
            node: node.clone(),
            set_bytes: result.as_ref().ok().map(|warm| warm.set_bytes),
            cached_bytes: result.as_ref().ok().map(|warm| warm.cached_bytes),
            error: result.as_ref().err().map(Failure::to_string),
        }
    }
}

/// Makes a table of the nodes that did not fail.
fn prewarms_table(prewarms: &[NodePrewarm]) -> Table {
    let mut table = Table::new(&["NODE", ">WORKING SET", ">KEPT"]);
    for NodePrewarm { node, result } in prewarms {
        let Ok(warm) = result else { continue };
        table.add_row([node.clone(), format_bytes(warm.set_bytes), format_bytes(warm.cached_bytes)]);
    }
    table
}
