//! Huge pages of the parent become huge pages of the child again, where it lives long enough for that to be worth while: its
//! memory comes in small pages, and what is whole is put together in the background (`farfork_fork::huge`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farfork_fork::huge::Tender;
use farfork_wire::ChildId;

use super::Child;
use crate::clock;
use crate::limits::FORGOTTEN_PER_ROUND_MAX;
use crate::node::Node;

/// Between two looks at all children.
const INTERVAL: Duration = Duration::from_secs(1);

/// A child is left alone for so long, in milliseconds: most end sooner, and a huge page costs more than the pages that it is
/// made of did.
const AGE_MS_MIN: u64 = 3_000;

/// For one child at a time, so that all have their turn.
const ROUND_LIMIT: Duration = Duration::from_millis(100);

/// The children that are tended.
#[derive(Default)]
struct Tending {
    /// None for a child that cannot be.
    tended: BTreeMap<ChildId, Option<Tended>>,
}

struct Tended {
    tender: Tender,
    due: Instant,
}

/// Tends all children until the daemon ends.
pub(crate) async fn tend(node: Arc<Node>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tending = Tending::default();
    loop {
        ticks.tick().await;
        let here = node.clone();
        let round = tokio::task::spawn_blocking(move || {
            tending.round(&here.children.all_living());
            here.children.keep_to_limit(FORGOTTEN_PER_ROUND_MAX);
            tending
        });
        tending = round.await.unwrap_or_default();
    }
}

impl Tending {
    fn round(&mut self, children: &[Arc<Child>]) {
        let now_ms = clock::unix_ms(SystemTime::now());
        let is_worth_while = |child: &&Arc<Child>| {
            let record = child.record();
            record.wants_huge_pages && now_ms.saturating_sub(record.started_unix_ms) >= AGE_MS_MIN
        };
        let wanted: Vec<_> = children.iter().filter(is_worth_while).filter(|child| child.lives()).collect();
        self.tended.retain(|id, _| wanted.iter().any(|child| child.record().id == *id));
        for child in wanted {
            let tended = self.tended.entry(child.record().id.clone()).or_insert_with(|| begin(child));
            if let Some(due) = tended.as_mut().filter(|tended| tended.due <= Instant::now())
                && let Err(error) = due.round()
            {
                tracing::warn!(child = %child.record().id, %error, "it gets no huge pages");
                *tended = None;
            }
        }
    }
}

impl Tended {
    fn round(&mut self) -> io::Result<()> {
        self.tender.round(ROUND_LIMIT)?;
        self.due = Instant::now() + self.tender.pause();
        Ok(())
    }
}

fn begin(child: &Child) -> Option<Tended> {
    let tender = child.record().process.parse().and_then(Tender::of).ok().flatten()?;
    Some(Tended { tender, due: Instant::now() })
}
