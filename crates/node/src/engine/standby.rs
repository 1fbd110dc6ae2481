//! Children that stand by: copies of zygotes that are made ahead of need, complete, and wait at their gates for whoever asks for the
//! next child. Such a one is told what it is, given its payload, and let go.
//!
//! ```text
//!  a child was started,                                  a child is asked for
//!  and nobody waits ────▶ making ─┬─▶ ready ─┬─────────────────────────▶ told, let go, recorded
//!                                 │          └─▶ dropped: not asked for in time, its seed is gone, its container is out of date
//!                                 └─▶ none: why
//! ```
//!
//! One for each seed that is forked child by child; fan-outs make their copies as fast as they can. It is nobody's until somebody asks, and
//! nothing is left of one that nobody asks for. It has run no instruction of its program, so that who gets it cannot tell; but its clocks go
//! on from its parent's since it stands. Which seeds may have one, is `farfork_fork::restore::unfit_to_wait`'s to say.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_fork::phase;
use farfork_fork::restore::{self, unfit_to_wait};
use farfork_fork::resume::{PAYLOAD_NAME, SeedSource};
use farfork_wire::{SeedId, Token};

use super::start::{Asked, Came, Lot, Standing, Whose};
use super::{Engine, SeedAccess, StartOptions, caller};
use crate::children::Newborn;
use crate::failure::Failure;
use crate::limits::START_TIMEOUT;
use crate::network::{FanOut, Network};

/// One that is not asked for goes after this: by so much its clocks are ahead, and the files that it has open are those of then.
const STANDBY_LIMIT: Duration = Duration::from_secs(3);
/// For one that is being made, when somebody asks for it: longer than any takes, but on a machine that does not come to it.
const MAKING_LIMIT: Duration = Duration::from_millis(100);

/// Which children one may become.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    token: Token,
    /// Of them the time limit does not matter before it runs.
    options: StartOptions,
    has_payload: bool,
}

#[derive(Debug)]
enum Entry {
    /// `is_awaited`: somebody has asked for it already.
    Making {
        number: u64,
        kind: Kind,
        is_awaited: bool,
    },
    Ready {
        kind: Kind,
        standing: Box<Standing>,
        since: Instant,
    },
}

/// The children of a node that stand by.
#[derive(Debug, Default)]
pub(super) struct Standbys {
    table: Mutex<BTreeMap<SeedId, Entry>>,
    changed: Condvar,
    /// How many were begun: who makes one knows it again.
    begun: AtomicU64,
}

/// The place of one that is being made: however that ends, nobody waits for it any longer.
#[derive(Debug)]
struct Reserved<'a> {
    standbys: &'a Standbys,
    seed: &'a SeedId,
    number: u64,
    ready: Option<(Kind, Box<Standing>)>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let ready = self.ready.take();
        let ready = ready.map(|(kind, standing)| Entry::Ready { kind, standing, since: Instant::now() });
        self.standbys.settle(self.seed, self.number, ready);
    }
}

impl Kind {
    /// Of a child that is started so; `None` where none stands by. Where all of a fan-out share a network, it would be of none yet.
    fn of(source: &SeedSource, options: &StartOptions, has_payload: bool) -> Option<Self> {
        let is_plain = !options.paused
            && options.publish.is_empty()
            && options.network != Network::Shared
            && super::zygotes::asks_for_nothing_else(options);
        let options = || StartOptions { timeout: None, ..options.clone() };
        is_plain.then(|| Self { token: source.key.token, options: options(), has_payload })
    }
}

impl Entry {
    /// Whether it may still be given to somebody.
    fn is_current(&self) -> bool {
        match self {
            Self::Making { .. } => true,
            Self::Ready { standing, since, .. } => since.elapsed() < STANDBY_LIMIT && standing.container.is_current(),
        }
    }

    fn is_ready_for(&self, wanted: &Kind) -> bool {
        matches!(self, Self::Ready { kind, .. } if kind == wanted) && self.is_current()
    }

    fn into_standing(self) -> Option<Box<Standing>> {
        match self {
            Self::Making { .. } => None,
            Self::Ready { standing, .. } => Some(standing),
        }
    }
}

impl Standbys {
    /// Whether there is one of a seed, or is going to be.
    fn has(&self, seed: &SeedId) -> bool {
        self.table().contains_key(seed)
    }

    /// Takes that of a seed, if it is of this kind. One that is being made is waited for, by one who asks.
    fn take(&self, seed: &SeedId, kind: &Kind) -> Option<Box<Standing>> {
        let until = Instant::now() + MAKING_LIMIT;
        let (mut table, mut waits) = (self.table(), false);
        loop {
            match table.get_mut(seed)? {
                Entry::Making { kind: made, is_awaited, .. } if made == kind && (waits || !*is_awaited) => {
                    (*is_awaited, waits) = (true, true);
                }
                // Another's, or too old, goes when nobody waits for that.
                entry if !entry.is_ready_for(kind) => return None,
                _ => return table.remove(seed).and_then(Entry::into_standing),
            }
            let left = until.checked_duration_since(Instant::now())?;
            table = self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The place of a seed's, for who is to make it; `None` where there is one, or somebody makes it.
    fn reserve<'a>(&'a self, seed: &'a SeedId, kind: &Kind) -> Option<Reserved<'a>> {
        let mut table = self.table();
        let is_there = |entry: &Entry| matches!(entry, Entry::Making { .. }) || entry.is_ready_for(kind);
        if table.get(seed).is_some_and(is_there) {
            return None;
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let stale = table.insert(seed.clone(), Entry::Making { number, kind: kind.clone(), is_awaited: false });
        drop(table);
        drop(stale);
        Some(Reserved { standbys: self, seed, number, ready: None })
    }

    /// Enters what came of the making of one, unless its seed was forgotten meanwhile.
    fn settle(&self, seed: &SeedId, number: u64, ready: Option<Entry>) {
        let mut table = self.table();
        let is_ours = matches!(table.get(seed), Some(Entry::Making { number: made, .. }) if *made == number);
        let gone = match ready {
            Some(ready) if is_ours => table.insert(seed.clone(), ready),
            None if is_ours => table.remove(seed),
            unwanted => unwanted,
        };
        drop(table);
        self.changed.notify_all();
        // Its end takes a while: not under the lock.
        drop(gone);
    }

    /// Lets go of that of a seed.
    pub(super) fn forget(&self, seed: &SeedId) {
        let gone = self.table().remove(seed);
        drop(gone);
    }

    /// Lets go of those that nobody asked for in time.
    pub(super) fn let_go(&self) {
        let gone: Vec<Entry> =
            self.table().extract_if(.., |_, entry| !entry.is_current()).map(|(_, entry)| entry).collect();
        drop(gone);
    }

    /// Lets go of all.
    pub(super) fn end_all(&self) {
        let all = std::mem::take(&mut *self.table());
        drop(all);
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// Every change is complete under its lock.
    fn table(&self) -> MutexGuard<'_, BTreeMap<SeedId, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Starts a child by letting one go that stands by; `None` where there is none, and where it was of no use.
    pub(super) fn start_standby(&self, asked: Asked<'_>, lot: Lot<'_>) -> Option<Result<Newborn, Failure>> {
        let Asked { source, options, requested, .. } = asked;
        if !self.standbys.has(&source.key.seed) {
            return None;
        }
        let kind = Kind::of(source, options, lot.payload.is_some())?;
        let mut standing = phase!("resume.standby", self.standbys.take(&source.key.seed, &kind))?;
        if let Err(error) = phase!("resume.tell", tell(&mut standing, source, lot)) {
            tracing::debug!(seed = %source.key.seed, %error, "a child that stood by is of no use");
            return None;
        }
        let gate = standing.gate.as_ref().expect("a copy of a zygote has one");
        let left = START_TIMEOUT.saturating_sub(requested.elapsed());
        let gone = phase!("resume.go", restore::wait_gone(gate.as_fd(), &source.descriptor, left));
        let settled = match gone {
            Ok(restored) => {
                standing.restored = restored;
                self.settle(*standing, asked)
            }
            Err(error) => Err(self.broken(source, &error)),
        };
        if settled.is_ok() {
            self.zygotes.stood_by();
        }
        Some(settled.map_err(|broken| broken.failure))
    }

    /// Has a child stand by for the next request like this one, where its seed has a zygote of which there were copies.
    pub(super) fn stand_by(&self, access: &SeedAccess, options: &StartOptions, has_payload: bool) {
        let requested = Instant::now();
        let Ok(source) = self.source(access, requested) else { return };
        let Some(kind) = Kind::of(&source, options, has_payload) else { return };
        let Some(kept) = self.zygotes.proven(&source, options) else { return };
        if let Some(reason) = unfit_to_wait(&source.descriptor) {
            return tracing::trace!(seed = %source.key.seed, reason, "no child of it stands by");
        }
        let Some(mut place) = self.standbys.reserve(&source.key.seed, &kind) else { return };
        let asked = Asked { source: &source, options: &kind.options, fan_out: &FanOut::default(), requested };
        match self.stand(Some(&kept), asked, Whose::Unknown { has_payload }) {
            Ok(standing) => place.ready = Some((kind, Box::new(standing))),
            Err(broken) => {
                tracing::debug!(failure = %broken.failure, "no child stands by");
                if broken.came != Came::Nowhere {
                    self.give_up_zygote(&source, &kept);
                }
            }
        }
    }
}

/// Tells a child that stands by whose it is, and lets it go.
///
/// # Errors
/// It has not run.
fn tell(standing: &mut Standing, source: &SeedSource, lot: Lot<'_>) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(payload) = lot.payload {
        standing.container.put_file(PAYLOAD_NAME, payload, 0o444)?;
    }
    if let Some(line) = standing.line.take() {
        let identity = caller::Identity { child: standing.unfinished.id(), seed: &source.key.seed, index: lot.index };
        line.answer(identity, lot.payload)?;
    }
    let gate = standing.gate.as_ref().expect("a copy of a zygote has one");
    Ok(restore::go_and_tell(gate.as_fd())?)
}
