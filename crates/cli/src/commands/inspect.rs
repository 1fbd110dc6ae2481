//! `farfork inspect`: prints all details of a seed, a child or a node. `inspect_compare` implements `--against`.

use std::process::ExitCode;

use clap::Args;
use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::inspect_response::Object;
use farfork_api::v1::{ChildDetail, InspectRequest, PagerStats, SeedDetail};
use serde::Serialize;

use super::inspect_compare;
use crate::GlobalArgs;
use crate::output::{self, BudgetView, CacheView, ChildView, MemoryView, NodeView, PagerView, SeedView, ZygotesView};
use crate::process_names::{ProcessName, parse_process};

/// Show all details of a seed, a child or a node, one field per line.
///
/// Field names contain the units: `pause_us` is in microseconds, `created_unix_ms` in milliseconds since 1970. The
/// counters of a child's pager, such as `faults`, are absent if the pager no longer has them. `affinity` lists CPUs: of
/// a seed, those that its threads selected; of a child, those on which the node lets its threads run. The fields of a
/// node include its page cache, its zygotes and its memory limits.
///
/// With --against, the command compares a child with its parent: files in /proc, open files, socket options, threads
/// and memory maps. Both are stopped briefly, one after the other. Differences that are allowed are only counted;
/// --json lists them with the reasons. The parent must run on the child's machine. Changes that the parent made after
/// prepare appear as differences.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork inspect $SEED
  farfork inspect $CHILD --json | jq .bytes_fetched
  farfork inspect n2 --json | jq .cache.bytes
  farfork inspect $CHILD --against trainer

Exit status: 0 success, 1 no such object or its node does not answer, 2 wrong usage. \
With --against, also 1 if the child differs.")]
pub(crate) struct Inspect {
    /// Id or name of a seed, id of a child, or name of a node.
    #[arg(value_name = "SEED|CHILD|NODE")]
    id: String,

    /// Compare the child with its parent: a process id on this machine, a name from `farfork run`, or a child of this node.
    #[arg(long, value_name = "PID|NAME|CHILD", value_parser = parse_process)]
    against: Option<ProcessName>,
}

/// A child, with the counters of its pager.
#[derive(Debug, Serialize)]
struct ChildDetailView {
    #[serde(flatten)]
    child: ChildView,
    /// This field and the next three are null if the pager no longer has counters for the child.
    faults: Option<u64>,
    pages_fetched: Option<u64>,
    bytes_fetched: Option<u64>,
    pager: Option<PagerView>,
    memory: Option<MemoryView>,
    directory: String,
    /// CPUs on which the child's threads may run. Each distinct set is listed once.
    affinity: Vec<String>,
}

/// A seed with its details.
#[derive(Debug, Serialize)]
struct SeedDetailView {
    #[serde(flatten)]
    seed: SeedView,
    mappings: u32,
    file_descriptors: u32,
    shared_memory_bytes: u64,
    /// Process id, on the seed's node, of the process that holds the seed's memory.
    template_pid: u32,
    /// Size of the working set: the pages that new children get before they touch them.
    working_set_bytes: u64,
    /// Memory that only the seed's template holds; null if the seed has no template.
    own_bytes: Option<u64>,
    /// Maximum memory that the template can hold; 0 from a node of an earlier release.
    own_bytes_max: u64,
    /// Number of files that the seed's owner keeps open for children.
    held_files: u64,
    /// Paths of files that the parent could write to. Nothing proves that these files did not change since prepare.
    unproved_files: Vec<String>,
    /// CPUs that the parent's threads selected. Each distinct set is listed once.
    affinity: Vec<String>,
}

/// A node with its caches and limits.
#[derive(Debug, Serialize)]
struct NodeDetailView {
    #[serde(flatten)]
    node: NodeView,
    /// Null if the node's pager does not answer.
    cache: Option<CacheView>,
    /// Null from a node of an earlier release.
    zygotes: Option<ZygotesView>,
    /// Null from a node of an earlier release.
    memory: Option<BudgetView>,
}

impl Inspect {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        if let Some(parent) = self.against {
            return inspect_compare::run_comparison(client, self.id, &parent, &global).await;
        }
        let request = InspectRequest { id: self.id.clone() };
        let answer = client.inspect(request_with_timeout(QUERY_TIMEOUT, request)).await;
        let answer = answer.map_err(|status| Failure::from_status(&self.id, &status))?.into_inner();
        let document = match answer.object {
            Some(Object::Child(detail)) => serde_json::to_value(child_view(detail))?,
            Some(Object::Seed(detail)) => serde_json::to_value(seed_view(detail))?,
            Some(Object::Node(detail)) => serde_json::to_value(NodeDetailView {
                node: detail.node.unwrap_or_default().into(),
                cache: detail.cache.map(CacheView::from),
                zygotes: detail.zygotes.map(ZygotesView::from),
                memory: detail.memory.map(BudgetView::from),
            })?,
            None => anyhow::bail!("{}: the node's answer is empty", self.id),
        };
        if global.json {
            output::print_json(&document)
        } else {
            print_fields(&document, "")
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn child_view(detail: ChildDetail) -> ChildDetailView {
    let count = |of: fn(&PagerStats) -> u64| detail.pager.as_ref().map(of);
    ChildDetailView {
        faults: count(|pager| pager.faults),
        pages_fetched: count(|pager| pager.pages_fetched),
        bytes_fetched: count(|pager| pager.bytes_fetched),
        pager: detail.pager.map(PagerView::from),
        memory: detail.memory.map(MemoryView::from),
        child: detail.child.unwrap_or_default().into(),
        directory: detail.directory,
        affinity: detail.affinity,
    }
}

fn seed_view(detail: SeedDetail) -> SeedDetailView {
    SeedDetailView {
        seed: detail.seed.unwrap_or_default().into(),
        mappings: detail.mappings,
        file_descriptors: detail.file_descriptors,
        shared_memory_bytes: detail.shared_memory_bytes,
        template_pid: detail.template_pid,
        working_set_bytes: detail.working_set_bytes,
        own_bytes: detail.own_bytes,
        own_bytes_max: detail.own_bytes_max,
        held_files: detail.held_files,
        unproved_files: detail.unproved_files,
        affinity: detail.affinity,
    }
}

/// Prints one field per line with its JSON name. The name of a nested field begins with the name of the outer field, as
/// in a path of jq(1).
fn print_fields(document: &serde_json::Value, within: &str) {
    let fields = document.as_object().into_iter().flatten();
    for (name, value) in fields.filter(|(_, value)| !value.is_null()) {
        let name = format!("{within}{name}");
        if value.is_object() {
            print_fields(value, &format!("{name}."));
            continue;
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        output::print_line(&format!("{name:24} {text}"));
    }
}
