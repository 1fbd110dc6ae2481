//! `Profile`: the output of `farfork fork --profile`. It shows the time of each phase on each node, and the memory
//! counters of the children.

use farfork_api::client::{Client, request_with_timeout};
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::inspect_response::Object;
use farfork_api::v1::{ChildDetail, InspectRequest, MemoryUse, PagerStats, Phase};
use serde_json::Value;
use tokio::task::JoinSet;

use super::outcomes::{ChildOutcome, ForkPhases};
use crate::output::{
    self, MemoryView, PagerView, memory_text, pager_text, phase_table, phase_views, sum_memory_use, sum_pager_stats,
    summarize, summary_table,
};

/// Maximum number of concurrent inspect requests. More would only wait in the daemon's queue.
const CONCURRENT_REQUESTS_MAX: usize = 32;

/// The phases of a fork, and the memory counters of its children.
pub(super) struct Profile {
    /// Phases of the request on the node that received it.
    request: Vec<Phase>,
    /// The children that started, in the order of the request.
    children: Vec<ChildProfile>,
}

struct ChildProfile {
    id: String,
    node: String,
    phases: Vec<Phase>,
    pager: Option<PagerStats>,
    memory: MemoryUse,
}

impl Profile {
    /// Fetches the counters of the started children: their current values, or the last ones of a child that has ended.
    pub(super) async fn collect(client: &Client, outcomes: &[ChildOutcome], phases: ForkPhases) -> Self {
        let ForkPhases { request, mut children } = phases;
        let mut started = Vec::new();
        for (index, outcome) in outcomes.iter().enumerate() {
            let ChildOutcome::Started(child) = outcome else { continue };
            let phases = std::mem::take(&mut children[index]);
            let (id, node) = (child.id.clone(), child.node.clone());
            started.push(ChildProfile { id, node, phases, pager: None, memory: MemoryUse::default() });
        }
        for some in started.chunks_mut(CONCURRENT_REQUESTS_MAX) {
            fetch_details(client, some).await;
        }
        Self { request, children: started }
    }

    /// Prints the profile as text on standard error. Standard output belongs to the children.
    pub(super) fn print(&self) {
        if let Some(Phase { node, .. }) = self.request.first() {
            output::print_note(format_args!("\nthe request, on {node}\n{}", phase_table(&self.request)));
        }
        match &self.children[..] {
            [] => {}
            [child] => {
                output::print_note(format_args!(
                    "\nchild {}, on {}\n{}",
                    child.id,
                    child.node,
                    phase_table(&child.phases)
                ));
                if let Some(pager) = &child.pager {
                    output::print_note(format_args!("\n{}", pager_text(pager)));
                }
                output::print_note(memory_text(&child.memory));
            }
            several => {
                let summary = summarize(several.iter().map(|child| &child.phases[..]));
                output::print_note(format_args!("\n{} children\n{}", several.len(), summary_table(&summary)));
                let counted: Vec<&PagerStats> = several.iter().filter_map(|child| child.pager.as_ref()).collect();
                output::print_note(format_args!(
                    "\ntheir memory, summed up over {}\n{}",
                    counted.len(),
                    pager_text(&sum_pager_stats(counted))
                ));
                output::print_note(memory_text(&sum_memory_use(several.iter().map(|child| &child.memory))));
            }
        }
    }

    /// Adds the profile to the JSON document of the fork, which lists the same children.
    pub(super) fn add_to(&self, document: &mut Value) {
        document["phases"] = to_value(phase_views(&self.request));
        document["summary"] = to_value(summarize(self.children.iter().map(|child| &child.phases[..])));
        for child in document["children"].as_array_mut().into_iter().flatten() {
            let Some(profile) = self.children.iter().find(|profile| child["child"] == *profile.id) else { continue };
            child["phases"] = to_value(phase_views(&profile.phases));
            child["pager"] = to_value(profile.pager.map(PagerView::from));
            child["memory"] = to_value(MemoryView::from(profile.memory));
        }
    }
}

/// Fetches the details of each child. A child gets none if its node does not answer or no longer has its record.
async fn fetch_details(client: &Client, children: &mut [ChildProfile]) {
    let mut requests = JoinSet::new();
    for (index, child) in children.iter().enumerate() {
        let (mut client, request) = (client.clone(), InspectRequest { id: child.id.clone() });
        requests.spawn(async move { (index, client.inspect(request_with_timeout(QUERY_TIMEOUT, request)).await) });
    }
    while let Some(answer) = requests.join_next().await {
        let Ok((index, Ok(answer))) = answer else { continue };
        if let Some(Object::Child(ChildDetail { pager, memory, .. })) = answer.into_inner().object {
            children[index].pager = pager;
            children[index].memory = memory.unwrap_or_default();
        }
    }
}

fn to_value(view: impl serde::Serialize) -> Value {
    serde_json::to_value(view).expect("a view serialises")
}
