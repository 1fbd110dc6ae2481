//! The zygotes of a node: which seeds have one, when each was last used, and when it is retired.
//!
//! A zygote belongs to the node, has a directory of its own, and ends with the daemon. After a crash, the next daemon
//! removes the directories of its zygotes.

mod cached_zygote;

use std::collections::{BTreeMap, btree_map};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_api::limits::START_TIMEOUT;
use farfork_api::run_dir::RunDir;
use farfork_api::v1::ZygoteUse;
use farfork_container::{ContainerLimits, ContainerPool, RootProtection};
use farfork_fork::huge_pages::HugePageCollapser;
use farfork_fork::pager::PagingStrategy;
use farfork_fork::restore::{LocalNode, find_zygote_obstacle, has_bound_sockets};
use farfork_fork::resume::SeedSource;
use farfork_fork::zygote::{Zygote, ZygoteRequest, is_late};
use farfork_sys::process_identity::ProcessIdentity;
use farfork_wire::{ChildId, NodeName, SeedId};
use tokio::sync::Notify;

use super::{StartOptions, next_step, random_id};
use crate::network::NetworkMode;
use crate::pager_link::PagerLink;

pub(crate) use cached_zygote::CachedZygote;
use cached_zygote::{release_zygote, remove_directory};

/// Time for which a zygote counts as in use after its last copy.
const IN_USE_AGE_MAX: Duration = Duration::from_secs(3);
/// Longest time of one round that collapses small pages of a zygote into huge ones.
const COLLAPSE_TIME_MAX: Duration = Duration::from_millis(100);
/// Pause before a seed gets another zygote, after one took too long: the machine was too busy, which usually lasts for
/// seconds. Each further try may delay a child.
const LATE_PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of seeds that are recorded as unsuitable for zygotes: more than a node works with at a time.
const UNSUITABLE_MAX: usize = 64;

/// Limits on a node's zygotes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZygoteLimits {
    /// Maximum number of zygotes; 0 for none.
    pub(crate) count_max: usize,
    /// Time after which an unused zygote ends.
    pub(crate) idle_max: Duration,
}

/// The zygotes of a node.
#[derive(Debug)]
pub(crate) struct ZygoteCache {
    node: NodeName,
    run_dir: RunDir,
    pager: Arc<PagerLink>,
    limits: ZygoteLimits,
    table: Mutex<BTreeMap<SeedId, ZygoteState>>,
    copies: AtomicU64,
    /// Number of copies that were prestarted when they were requested.
    prestarted_copies: AtomicU64,
    /// Number of speculative zygotes that were made so far.
    speculative: AtomicU64,
    /// Number of speculative zygotes that were copied.
    speculative_used: AtomicU64,
    /// Notified whenever the state of a seed's zygote changes.
    changed: Notify,
}

/// The reason for which a zygote is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZygoteTrigger {
    /// A child was requested.
    Requested,
    /// A child is expected: a child of the process's previous seed was requested, or the process has no previous seed.
    Speculative,
}

/// The state of a seed's zygote.
///
/// ```text
///  first child restored,
///  speculation, or a
///  fan-out begins ──────▶ Creating ─┬─▶ Ready ─▶ copies … ─▶ retired: unused for long, room for another's,
///                                   │                          seed dropped, or a copy of it failed
///                                   └─▶ Unsuitable: for good, or until a time
/// ```
#[derive(Debug)]
enum ZygoteState {
    Creating,
    Ready {
        zygote: Arc<CachedZygote>,
        used: Instant,
    },
    /// The seed gets no zygote, or none before this time.
    Unsuitable {
        until: Option<Instant>,
    },
}

impl ZygoteState {
    /// Creates the state of a seed whose zygote failed. `is_late`: the zygote took too long.
    fn unsuitable(is_late: bool) -> Self {
        Self::Unsuitable { until: is_late.then(|| Instant::now() + LATE_PAUSE) }
    }
}

/// The reservation of a zygote that is being made. Dropping it, even in a panic, stores the outcome and wakes all
/// waiting tasks. Without a zygote, the seed becomes unsuitable.
#[derive(Debug)]
struct ZygoteReservation<'a> {
    cache: &'a ZygoteCache,
    seed: &'a SeedId,
    trigger: ZygoteTrigger,
    outcome: ZygoteState,
}

impl ZygoteReservation<'_> {
    fn complete(mut self, zygote: Zygote) {
        let pager = self.cache.pager.clone();
        let zygote = Arc::new(CachedZygote {
            zygote: Some(zygote),
            pager,
            is_speculative: self.trigger == ZygoteTrigger::Speculative,
            is_filled: AtomicBool::new(false),
            is_proven: AtomicBool::new(false),
        });
        if zygote.is_speculative {
            self.cache.speculative.fetch_add(1, Ordering::Relaxed);
        }
        self.outcome = ZygoteState::Ready { zygote, used: Instant::now() };
    }
}

impl Drop for ZygoteReservation<'_> {
    fn drop(&mut self) {
        self.cache.complete_reservation(
            self.seed,
            std::mem::replace(&mut self.outcome, ZygoteState::Unsuitable { until: None }),
        );
    }
}

impl ZygoteCache {
    /// Creates an empty cache, and removes the zygotes of an earlier daemon.
    pub(super) fn new(node: NodeName, run_dir: RunDir, pager: Arc<PagerLink>, limits: ZygoteLimits) -> Self {
        for entry in fs::read_dir(run_dir.zygotes_dir()).into_iter().flatten().flatten() {
            match entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                Some(id) => release_zygote(&pager, &id, &entry.path()),
                None => remove_directory(&entry.path()),
            }
        }
        Self {
            node,
            run_dir,
            pager,
            limits,
            table: Mutex::default(),
            copies: AtomicU64::new(0),
            prestarted_copies: AtomicU64::new(0),
            speculative: AtomicU64::new(0),
            speculative_used: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }

    /// Returns the zygote for a child with these options, and marks it as used now.
    pub(super) fn find(&self, source: &SeedSource, options: &StartOptions) -> Option<Arc<CachedZygote>> {
        match self.table().get_mut(&source.key.seed) {
            Some(ZygoteState::Ready { zygote, used }) if can_copy_zygote(source, options) => {
                *used = Instant::now();
                Some(zygote.clone())
            }
            _ => None,
        }
    }

    /// As [`Self::find`], for prestarted children: the pager must have filled the zygote, and a zygote that is not
    /// speculative must have been copied before.
    pub(super) fn find_for_prestart(&self, source: &SeedSource, options: &StartOptions) -> Option<Arc<CachedZygote>> {
        let is_proven = |cached_zygote: &Arc<CachedZygote>| {
            cached_zygote.is_speculative || cached_zygote.is_proven.load(Ordering::Relaxed)
        };
        let cached_zygote = self.find(source, options).filter(is_proven)?;
        let is_filled = cached_zygote.is_filled.load(Ordering::Relaxed) || !cached_zygote.is_filling();
        is_filled.then_some(cached_zygote)
    }

    /// Counts a child that was made from a zygote.
    pub(super) fn record_copy(&self, cached_zygote: &CachedZygote) {
        let is_first = !cached_zygote.is_proven.swap(true, Ordering::Relaxed);
        self.speculative_used.fetch_add(u64::from(is_first && cached_zygote.is_speculative), Ordering::Relaxed);
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a prestarted child of a seed that is now requested.
    pub(super) fn record_prestarted_copy(&self, seed: &SeedId) {
        self.prestarted_copies.fetch_add(1, Ordering::Relaxed);
        match self.table().get_mut(seed) {
            Some(ZygoteState::Ready { zygote, used }) => {
                *used = Instant::now();
                self.record_copy(zygote);
            }
            // The zygote has ended since the child was prestarted.
            _ => drop(self.copies.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Whether the node makes zygotes.
    pub(super) fn is_enabled(&self) -> bool {
        self.limits.count_max > 0
    }

    /// Waits until no zygote of a seed is being made.
    pub(crate) async fn wait_created(&self, seed: &SeedId) {
        loop {
            let changed = self.changed.notified();
            if !matches!(self.table().get(seed), Some(ZygoteState::Creating)) {
                return;
            }
            changed.await;
        }
    }

    /// Returns a seed's zygote, unless it is known to be filled.
    pub(crate) fn find_filling(&self, seed: &SeedId) -> Option<Arc<CachedZygote>> {
        match self.table().get(seed) {
            Some(ZygoteState::Ready { zygote, .. }) if !zygote.is_filled.load(Ordering::Relaxed) => {
                Some(zygote.clone())
            }
            _ => None,
        }
    }

    /// Returns the numbers of zygotes, and of children that were made from them.
    pub(crate) fn counts(&self) -> ZygoteUse {
        let ready_count = self.table().values().filter(|entry| matches!(entry, ZygoteState::Ready { .. })).count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let [children, stood_by, foretold, foretold_used] =
            [&self.copies, &self.prestarted_copies, &self.speculative, &self.speculative_used]
                .map(|count| count.load(Ordering::Relaxed));
        ZygoteUse {
            kept: count(ready_count),
            kept_max: count(self.limits.count_max),
            children,
            stood_by,
            foretold,
            foretold_used,
        }
    }

    /// Whether the cache has no entry for a seed.
    pub(crate) fn has_no_entry(&self, seed: &SeedId) -> bool {
        !self.table().contains_key(seed)
    }

    /// Whether a seed has a zygote, gets one, or is unsuitable; always true if the node makes no zygotes.
    pub(super) fn is_decided(&self, seed: &SeedId) -> bool {
        self.limits.count_max == 0 || self.table().contains_key(seed)
    }

    /// Makes a seed's zygote, if children with these options use one and the seed has no entry. A speculative zygote
    /// does not replace another one.
    pub(super) fn create(
        &self,
        source: &SeedSource,
        options: &StartOptions,
        trigger: ZygoteTrigger,
        node: &LocalNode,
        pool: &ContainerPool,
    ) {
        let seed = &source.key.seed;
        if self.limits.count_max == 0 || !can_copy_zygote(source, options) {
            return;
        }
        let Some(mut reservation) = self.reserve(seed, trigger) else { return };
        if let Some(reason) = find_zygote_obstacle(&source.descriptor, node) {
            tracing::debug!(%seed, reason, "it has no zygote");
            return;
        }
        match self.fork_zygote(source, node, pool) {
            Ok(zygote) => {
                tracing::debug!(%seed, zygote = %zygote.id(), pid = zygote.pid(), "a zygote is ready");
                reservation.complete(zygote);
            }
            Err(error) if trigger == ZygoteTrigger::Speculative => {
                tracing::debug!(%seed, %error, "no speculative zygote could be created");
                drop(reservation);
                // Most probably the seed was dropped. Otherwise the next request for a child makes another zygote.
                self.retire(seed);
            }
            Err(error) if next_step::is_missing_file(&*error) => {
                tracing::debug!(%seed, %error, "it has no zygote: one of its files is missing on this node");
            }
            Err(error) => {
                reservation.outcome = ZygoteState::unsuitable(error.downcast_ref().is_some_and(is_late));
                tracing::warn!(%seed, %error, "no zygote could be made: children are restored one by one");
            }
        }
    }

    fn fork_zygote(
        &self,
        source: &SeedSource,
        node: &LocalNode,
        pool: &ContainerPool,
    ) -> Result<Zygote, Box<dyn std::error::Error>> {
        let id = ChildId::new(self.node.clone(), random_id()?);
        let directory = self.run_dir.zygotes_dir().join(id.to_string());
        DirBuilder::new().mode(0o700).create(&directory)?;
        let made = pool.start_host_init().map_err(Into::into).and_then(|process| {
            let (id, limit) = (id.clone(), START_TIMEOUT);
            let request = ZygoteRequest { id, directory: &directory, process, source, limit };
            Zygote::start(request, node, self.pager.client()).map_err(Into::into)
        });
        if made.is_err() {
            release_zygote(&self.pager, &id, &directory);
        }
        made
    }

    /// Reserves the zygote of a seed, which the caller makes. `None` if the seed has an entry, or if a speculative zygote
    /// would replace another one.
    fn reserve<'a>(&'a self, seed: &'a SeedId, why: ZygoteTrigger) -> Option<ZygoteReservation<'a>> {
        let mut table = self.table();
        let is_one = |entry: &&ZygoteState| !matches!(entry, ZygoteState::Unsuitable { .. });
        if why == ZygoteTrigger::Speculative && table.values().filter(is_one).count() >= self.limits.count_max {
            return None;
        }
        match table.entry(seed.clone()) {
            btree_map::Entry::Vacant(vacant) => vacant.insert(ZygoteState::Creating),
            btree_map::Entry::Occupied(_) => return None,
        };
        Some(ZygoteReservation { cache: self, seed, trigger: why, outcome: ZygoteState::Unsuitable { until: None } })
    }

    /// Stores the outcome of a reservation, unless the seed's entry was removed. If there are too many zygotes, an
    /// unused speculative one ends, or else the least recently used one.
    fn complete_reservation(&self, seed: &SeedId, entry: ZygoteState) {
        let mut removed = Vec::new();
        {
            let mut table = self.table();
            match table.get_mut(seed) {
                Some(reserved) => *reserved = entry,
                None => removed.push(entry),
            }
            let used = |entry: &ZygoteState| match entry {
                ZygoteState::Ready { zygote, used } => Some((!zygote.is_unused_speculation(), *used)),
                _ => None,
            };
            let ready = table.values().filter_map(used).count();
            if ready > self.limits.count_max
                && let Some((_, oldest)) =
                    table.iter().filter_map(|(seed, entry)| Some((used(entry)?, seed.clone()))).min()
            {
                removed.extend(table.remove(&oldest));
            }
            if table.len() - ready.min(table.len()) > UNSUITABLE_MAX {
                table.retain(|_, entry| !matches!(entry, ZygoteState::Unsuitable { .. }));
            }
        }
        self.changed.notify_waiters();
        // Drop the removed zygotes after the lock is released, because ending them takes a while.
        drop(removed);
    }

    /// Ends a seed's zygote. The seed may get another one at once.
    pub(super) fn retire(&self, seed: &SeedId) {
        let removed = self.table().remove(seed);
        self.changed.notify_waiters();
        drop(removed);
    }

    /// Ends a zygote that failed. The seed gets no other zygote; or, if this one only took too long, none for
    /// [`LATE_PAUSE`].
    pub(super) fn retire_failed(&self, seed: &SeedId, is_late: bool) {
        let removed = self.table().insert(seed.clone(), ZygoteState::unsuitable(is_late));
        self.changed.notify_waiters();
        drop(removed);
    }

    /// Whether no seed has an entry.
    pub(super) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// Ends zygotes that were not used for long, zygotes of dropped seeds, and unused speculative zygotes whose seeds
    /// are only forked on other nodes (`is_in_vain`).
    pub(super) fn evict_unused(&self, is_dropped: impl Fn(&SeedId) -> bool, is_in_vain: impl Fn(&SeedId) -> bool) {
        let is_over = |(seed, entry): &(&SeedId, &ZygoteState)| match entry {
            _ if is_dropped(seed) => true,
            ZygoteState::Ready { zygote, used } => {
                used.elapsed() > self.limits.idle_max || (zygote.is_unused_speculation() && is_in_vain(seed))
            }
            ZygoteState::Unsuitable { until } => until.is_some_and(|until| until <= Instant::now()),
            ZygoteState::Creating => false,
        };
        let over: Vec<SeedId> = self.table().iter().filter(is_over).map(|(seed, _)| seed.clone()).collect();
        over.iter().for_each(|seed| self.retire(seed));
    }

    /// Collapses small pages of zygotes in use into huge ones, because a fork copies a page-table entry for each small
    /// page. Returns the seeds whose zygotes have more huge pages now.
    pub(super) fn collapse_huge_pages(&self) -> Vec<SeedId> {
        // Hold no reference to a zygote during the collapse, so that the zygote may end.
        let collapsers: Vec<_> = self
            .in_use()
            .into_iter()
            .map(|(seed, cached_zygote)| (seed, open_collapser(cached_zygote.zygote())))
            .collect();
        let collapse = |(seed, collapser): (SeedId, io::Result<Option<HugePageCollapser>>)| {
            let made = collapser.and_then(|huge_page_collapser| {
                huge_page_collapser
                    .map_or(Ok(0), |mut huge_page_collapser| huge_page_collapser.run_round(COLLAPSE_TIME_MAX))
            });
            match &made {
                Ok(0) => {}
                Ok(made) => tracing::debug!(%seed, made, "huge pages of a zygote"),
                Err(error) => tracing::debug!(%seed, %error, "a zygote gets no huge pages"),
            }
            matches!(made, Ok(1..)).then_some(seed)
        };
        collapsers.into_iter().filter_map(collapse).collect()
    }

    fn in_use(&self) -> Vec<(SeedId, Arc<CachedZygote>)> {
        let in_use = |(seed, entry): (&SeedId, &ZygoteState)| match entry {
            ZygoteState::Ready { zygote, used } if used.elapsed() < IN_USE_AGE_MAX => {
                Some((seed.clone(), zygote.clone()))
            }
            _ => None,
        };
        self.table().iter().filter_map(in_use).collect()
    }

    /// Ends all zygotes.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.table());
        self.changed.notify_waiters();
        drop(all);
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<SeedId, ZygoteState>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a child of a seed with these options is to be a copy of a zygote. A child whose sockets' addresses may be in
/// use is not: its failure would retire a zygote that works.
fn can_copy_zygote(source: &SeedSource, options: &StartOptions) -> bool {
    has_copyable_options(options) && (options.network == NetworkMode::Private || !has_bound_sockets(&source.descriptor))
}

/// Whether a child with these options can be a copy of a zygote, if its seed allows it. A memory limit would not count
/// pages that are shared with the zygote as expected. Bound paths and another root may replace files that the zygote maps. A
/// request for another strategy would not get that strategy: the zygote makes the reads of a new copy. An untrusted child
/// shares no memory with others.
pub(super) fn has_copyable_options(options: &StartOptions) -> bool {
    let of_zygotes = PagingStrategy { uses_cache: options.strategy.uses_cache, ..PagingStrategy::default() };
    options.strategy == of_zygotes
        && options.root_directory.is_none()
        && options.binds.is_empty()
        && options.limits == ContainerLimits::default()
        && options.protection == RootProtection::default()
}

/// Opens a collapser for a zygote's memory; `None` if the zygote has ended.
fn open_collapser(zygote: &Zygote) -> io::Result<Option<HugePageCollapser>> {
    Ok(HugePageCollapser::open(ProcessIdentity::of(zygote.pid())?)?.map(HugePageCollapser::include_shared))
}

#[cfg(test)]
mod tests;
