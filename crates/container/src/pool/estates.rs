//! What containers that have ended leave to others: their roots, until a container is built around each, and these until they are taken.
//!
//! ```text
//!  taken for heirs ─▶ a child runs, ends ─▶ root ─▶ rebuilt by a filler ─▶ ready ─▶ taken …
//!                                             └─▶ spoilt, or one too many: goes
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::config::{ContainerSpec, Heirs};
use crate::error::ContainerError;
use crate::handle::Container;
use crate::root::kept::KeptRoot;

/// Roots for which nobody asks go after so long: less than zygotes stay, since each holds a container.
const UNUSED_LIMIT: Duration = Duration::from_secs(3);

/// For whom nobody has asked for so long makes room for others.
const ROOM_LIMIT: Duration = Duration::from_millis(100);

/// After so many roots, one after the other, in which something was left, no more are kept for so long: children of that line write
/// files now, and others of it may not.
const SPOILT_MAX: u32 = 4;
const SPOILT_PAUSE: Duration = Duration::from_secs(3);

/// Of whom it is, and which kind of container.
pub(super) type Key = (ContainerSpec, Heirs);

/// All that was left to anybody.
#[derive(Debug, Default)]
pub(super) struct Estates {
    table: BTreeMap<Key, Estate>,
    /// Most roots, for all heirs together, with the containers that were built around them.
    kept_max: usize,
}

#[derive(Debug, Default)]
struct Estate {
    roots: Vec<KeptRoot>,
    building: usize,
    ready: VecDeque<Container>,
    /// How many were spoilt since one was not, and until when no more are kept for it.
    spoilt: u32,
    pause: Option<Instant>,
    /// Requests that wait.
    waiting: usize,
    used: Option<Instant>,
}

/// What goes: to be dropped where nobody waits for that.
#[derive(Debug, Default)]
pub(super) struct Stale {
    pub(super) containers: Vec<Container>,
    roots: Vec<KeptRoot>,
}

impl Stale {
    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.roots.is_empty()
    }
}

impl Estates {
    pub(super) fn new(kept_max: usize) -> Self {
        Self { table: BTreeMap::new(), kept_max }
    }

    /// Somebody asks for a container: whether what that leaves is wanted.
    pub(super) fn ask(&mut self, key: &Key, now: Instant) -> bool {
        let estate = self.table.entry(key.clone()).or_default();
        estate.used = Some(now);
        self.kept_max > 0 && estate.is_wanted(now)
    }

    /// Begins or ends to wait.
    pub(super) fn wait(&mut self, key: &Key, begins: bool) {
        let waiting = &mut self.table.entry(key.clone()).or_default().waiting;
        *waiting = if begins { *waiting + 1 } else { waiting.saturating_sub(1) };
    }

    /// How many requests wait that this is for.
    pub(super) fn waiting(&self, key: &Key) -> usize {
        self.table.get(key).map_or(0, |estate| estate.waiting)
    }

    /// Keeps a root, or leaves it for `stale`.
    pub(super) fn keep(&mut self, key: &Key, root: KeptRoot, now: Instant, stale: &mut Stale) {
        let has_room = self.kept() < self.kept_max || self.make_room(now, stale);
        match self.table.get_mut(key).filter(|estate| has_room && estate.is_wanted(now)) {
            Some(estate) => estate.roots.push(root),
            None => stale.roots.push(root),
        }
    }

    /// Gives up what was left to whom nobody has asked for longest, one root of it; tells whether there was one.
    fn make_room(&mut self, now: Instant, stale: &mut Stale) -> bool {
        let unused = self.table.values_mut().filter(|estate| estate.used.is_none_or(|used| used + ROOM_LIMIT <= now));
        let holding = unused.filter(|estate| !estate.roots.is_empty() || !estate.ready.is_empty());
        let Some(estate) = holding.min_by_key(|estate| estate.used) else { return false };
        match estate.roots.pop() {
            Some(root) => stale.roots.push(root),
            None => stale.containers.extend(estate.ready.pop_front()),
        }
        true
    }

    /// A root around which a container is to be built. `is_due`: where there are so many of a kind, and so many requests wait.
    pub(super) fn next(&mut self, is_due: impl Fn(ContainerSpec, usize, usize) -> bool) -> Option<(Key, KeptRoot)> {
        let is_next = |(key, estate): &(&Key, &mut Estate)| {
            !estate.roots.is_empty() && is_due(key.0, estate.ready.len() + estate.building, estate.waiting)
        };
        let (key, estate) = self.table.iter_mut().find(is_next)?;
        estate.building += 1;
        Some((key.clone(), estate.roots.pop()?))
    }

    /// What came of it. Tells whether there is a container.
    pub(super) fn add(&mut self, key: &Key, built: Result<Container, ContainerError>, now: Instant) -> bool {
        let estate = self.table.entry(key.clone()).or_default();
        estate.building = estate.building.saturating_sub(1);
        let outcome = built.map(|container| estate.ready.push_back(container));
        match &outcome {
            Ok(()) => (estate.spoilt, estate.pause) = (0, None),
            Err(error @ ContainerError::Spoilt { .. }) => {
                estate.spoilt += 1;
                estate.pause = (estate.spoilt >= SPOILT_MAX).then(|| now + SPOILT_PAUSE);
                tracing::debug!(%error, line = &*key.1.line, "not used again");
            }
            Err(error) => tracing::warn!(%error, line = &*key.1.line, "a root was not used again"),
        }
        outcome.is_ok()
    }

    /// The container that has waited longest.
    pub(super) fn pop(&mut self, key: &Key) -> Option<Container> {
        self.table.get_mut(key)?.ready.pop_front()
    }

    /// Gives up what nobody has asked for since long, or of heirs that are no more; tells when the next is to go.
    pub(super) fn give_up(
        &mut self,
        now: Instant,
        is_over: impl Fn(&Heirs) -> bool,
        stale: &mut Stale,
    ) -> Option<Instant> {
        let mut next = None;
        self.table.retain(|(_, heirs), estate| {
            let goes = estate.used.map_or(now, |used| used + UNUSED_LIMIT);
            if goes > now && !is_over(heirs) {
                next = next.into_iter().chain([goes]).min();
                return true;
            }
            stale.containers.extend(estate.ready.drain(..));
            stale.roots.append(&mut estate.roots);
            estate.waiting > 0
        });
        next
    }

    /// How many roots there are, in whatever state.
    pub(super) fn kept(&self) -> usize {
        self.table.values().map(|estate| estate.roots.len() + estate.building + estate.ready.len()).sum()
    }

    /// How many containers wait around a root that another had.
    pub(super) fn ready(&self) -> usize {
        self.table.values().map(|estate| estate.ready.len()).sum()
    }
}

impl Estate {
    fn is_wanted(&self, now: Instant) -> bool {
        self.pause.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_spoils_roots_leaves_none_for_a_while() {
        let (mut estates, now) = (Estates::new(8), Instant::now());
        let key = |line: &str| (ContainerSpec::default(), Heirs { line: line.into(), fan_out: None });
        let spoil = |estates: &mut Estates, line: &str, now| {
            let error = ContainerError::Spoilt { what: "/".to_owned(), why: "it was changed".to_owned() };
            assert!(!estates.add(&key(line), Err(error), now));
        };
        for _ in 0..SPOILT_MAX {
            assert!(estates.ask(&key("writes"), now));
            spoil(&mut estates, "writes", now);
        }
        assert!(!estates.ask(&key("writes"), now));
        assert!(estates.ask(&key("another"), now));
        let later = now + SPOILT_PAUSE;
        assert!(estates.ask(&key("writes"), later), "one is tried");
        spoil(&mut estates, "writes", later);
        assert!(!estates.ask(&key("writes"), later), "and tells");
    }
}
