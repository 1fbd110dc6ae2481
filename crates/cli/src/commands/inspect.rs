//! `farfork inspect`: prints everything known about a seed, a child or a node. `inspect_compare` has `--against`.

use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::inspect_response::Object;
use farfork_node::api::v1::{ChildDetail, InspectRequest, PagerStats, SeedDetail};
use farfork_node::client::request_with_timeout;
use farfork_node::failure::Failure;
use farfork_node::limits::QUERY_TIMEOUT;
use serde::Serialize;

use super::inspect_compare;
use crate::GlobalArgs;
use crate::output::{self, BudgetView, CacheView, ChildView, MemoryView, NodeView, PagerView, SeedView, ZygotesView};

/// Show all that is known of a seed, a child or a node, one field a line.
///
/// Units are in the names: `pause_us` are microseconds, `created_unix_ms` milliseconds since 1970. What a child's pager
/// counted (faults, pages, bytes) is missing where it no longer counts. `affinity` is, of a seed, the CPUs that its threads have
/// chosen, and of a child those that its node lets them run on. A node tells what it keeps of other nodes' seeds.
///
/// With --against, all that the kernel shows of a child is compared with its parent: files of /proc, open files, socket options,
/// threads, memory map. Both stand still for a moment, one after the other. What may differ is left out: --json has it, with the
/// reasons. The parent must be on the child's machine, and must have done nothing since it was prepared that you would not see here.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork inspect $SEED
  farfork inspect $CHILD --json | jq .bytes_fetched
  farfork inspect n2 --json | jq .cache.bytes

  farfork inspect $CHILD --against $(pgrep trainer)

Exit status: 0 shown, and the same where it was compared, 1 it differs, there is no such seed, child or node, or its node cannot be asked, 2 wrong usage.")]
pub(crate) struct Inspect {
    /// Id of a seed or child, or name of a node or seed.
    #[arg(value_name = "SEED|CHILD|NODE")]
    id: String,

    /// Compare a child with its parent, by the parent's process id on this machine.
    #[arg(long, value_name = "PID")]
    against: Option<u32>,
}

/// A child with what its pager counted.
#[derive(Debug, Serialize)]
struct ChildDetailView {
    #[serde(flatten)]
    child: ChildView,
    /// Null where the pager no longer counts for it; so the next two.
    faults: Option<u64>,
    pages_fetched: Option<u64>,
    bytes_fetched: Option<u64>,
    pager: Option<PagerView>,
    memory: Option<MemoryView>,
    directory: String,
    /// CPUs that its threads may run on, each set once.
    affinity: Vec<String>,
}

/// A seed with its parts.
#[derive(Debug, Serialize)]
struct SeedDetailView {
    #[serde(flatten)]
    seed: SeedView,
    mappings: u32,
    file_descriptors: u32,
    shared_memory_bytes: u64,
    /// Process that holds its memory, on its node.
    template_pid: u32,
    /// What its children are known to touch, and get at once.
    working_set_bytes: u64,
    /// What its template alone holds; null where it has none.
    own_bytes: Option<u64>,
    /// Most that it may come to hold alone; of a node of an earlier release 0.
    held_bytes_max: u64,
    /// Files that its owner holds for children.
    held_files: u64,
    /// Files that others may write to without anybody's notice.
    unproved_files: Vec<String>,
    /// CPUs that its threads have chosen, each set once.
    affinity: Vec<String>,
}

/// A node with what it keeps.
#[derive(Debug, Serialize)]
struct NodeDetailView {
    #[serde(flatten)]
    node: NodeView,
    /// Null where its pager does not answer.
    cache: Option<CacheView>,
    /// Null of a node of an earlier release.
    zygotes: Option<ZygotesView>,
    /// So it is.
    memory: Option<BudgetView>,
}

impl Inspect {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        if let Some(pid) = self.against {
            return inspect_compare::run_comparison(&global, self.id, pid).await;
        }
        let mut client = global.connection.open().await?;
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
        held_bytes_max: detail.held_bytes_max,
        held_files: detail.held_files,
        unproved_files: detail.unproved_files,
        affinity: detail.affinity,
    }
}

/// One field a line, under the names that scripts know; those within another have its name in front, as `jq` has it.
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
