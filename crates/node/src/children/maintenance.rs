//! Background maintenance of children: collapses small pages into huge ones, and evicts ended children.
//!
//! Where the parent had huge pages, the child still gets small ones. `farfork_fork::huge_pages` merges complete ranges
//! of small pages in the background, in children older than [`AGE_MS_MIN`].

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farfork_api::limits::EVICTED_PER_ROUND_MAX;
use farfork_fork::huge_pages::HugePageCollapser;
use farfork_wire::ChildId;

use super::Child;
use crate::clock;
use crate::node::Node;

/// Interval between two rounds.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum age of a child, in milliseconds. Most children end sooner, so that the work for a huge page would not pay.
const AGE_MS_MIN: u64 = 3_000;

/// Longest time per child and round, so that one child does not delay the others.
const COLLAPSE_TIME_MAX: Duration = Duration::from_millis(100);

/// The children whose pages are collapsed.
#[derive(Default)]
struct HugePageCollapse {
    /// By child. `None`: the child's pages cannot be collapsed.
    targets: BTreeMap<ChildId, Option<CollapseTarget>>,
}

struct CollapseTarget {
    collapser: HugePageCollapser,
    due: Instant,
}

/// Maintains all children until the daemon ends.
pub(crate) async fn run_child_maintenance(node: Arc<Node>) {
    let mut ticks = tokio::time::interval(MAINTENANCE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut collapse = HugePageCollapse::default();
    loop {
        ticks.tick().await;
        let task_node = node.clone();
        let round = tokio::task::spawn_blocking(move || {
            collapse.collapse_due(&task_node.children.all_alive());
            task_node.children.evict_ended(EVICTED_PER_ROUND_MAX);
            collapse
        });
        collapse = round.await.unwrap_or_default();
    }
}

impl HugePageCollapse {
    fn collapse_due(&mut self, children: &[Arc<Child>]) {
        let now_ms = clock::unix_ms(SystemTime::now());
        let is_worth_while = |child: &&Arc<Child>| {
            let record = child.record();
            record.wants_huge_pages && now_ms.saturating_sub(record.started_unix_ms) >= AGE_MS_MIN
        };
        let wanted: Vec<_> = children.iter().filter(is_worth_while).filter(|child| child.is_alive()).collect();
        self.targets.retain(|id, _| wanted.iter().any(|child| child.record().id == *id));
        for child in wanted {
            let collapse_target = self.targets.entry(child.record().id.clone()).or_insert_with(|| open_target(child));
            if let Some(due) = collapse_target.as_mut().filter(|collapse_target| collapse_target.due <= Instant::now())
                && let Err(error) = due.collapse()
            {
                tracing::warn!(child = %child.record().id, %error, "it gets no huge pages");
                *collapse_target = None;
            }
        }
    }
}

impl CollapseTarget {
    fn collapse(&mut self) -> io::Result<()> {
        self.collapser.run_round(COLLAPSE_TIME_MAX)?;
        self.due = Instant::now() + self.collapser.pause();
        Ok(())
    }
}

fn open_target(child: &Child) -> Option<CollapseTarget> {
    let huge_page_collapser = child.record().process.parse().and_then(HugePageCollapser::open).ok().flatten()?;
    Some(CollapseTarget { collapser: huge_page_collapser, due: Instant::now() })
}
