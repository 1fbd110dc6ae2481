//! The keeper: keeps the table of descriptors open, and a pager and a holder running.
//!
//! ```text
//!          clones (CLONE_FILES, not CLONE_VM)            keeper gone
//!  keeper ────────────────────────────────▶ pager ─────────────────────▶ is the keeper itself now, and
//!   ▲  │                                      │                          clones a pager that takes over
//!   │  └─ clones ─▶ holder ── both gone ──▶ is the keeper itself now
//!   └───── reaps it, clones another ──────────┘ killed, crashed
//! ```
//!
//! The three share one table, so that every userfaultfd, also those that the kernel puts there at a fork, stays open
//! as long as any of them lives. Only if all three are killed at once is the table gone; what the stubs of the
//! containers hold is taken back then.
//!
//! Who is what is `roles`; the holder's life is `holder`. What outlives a pager is `station` and `registry`, and whom to
//! trust (`trusting`); how the next begins is `takeover`.

mod holder;
mod registry;
mod roles;
pub(super) mod station;
mod takeover;
pub(super) mod trusting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use farfork_sys::fork::{Forked, sharing_files};
use farfork_sys::pidfd;
use farfork_trust::Credentials;
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use super::server::{Ended, Server};
use holder::HolderEnd;
use roles::{Role, RoleTable};
use station::{PagerError, Station};

/// A pager that lived this long was well: the next one is cloned at once. One that fails at what its predecessors left,
/// or at the next fault, does so within a few milliseconds.
const WELL_AFTER: Duration = Duration::from_millis(100);

/// First and longest pause before a pager is cloned whose predecessors died young.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a keeper looks by itself who lives: it is woken when anybody ends.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Exit status of a pager that failed.
const EXIT_FAILED: i32 = 1;
/// Exit status of a pager that makes room for one that trusts others.
const EXIT_REPLACED: i32 = 3;
/// Exit status of a pager that panicked, as of every Rust program that does.
const EXIT_PANICKED: i32 = 101;

/// Whether there is a holder.
enum HolderCheck {
    /// One lives.
    Lives,
    /// None can be started for now.
    Failed,
    /// This process is one that was just cloned.
    IsHolder,
}

/// Where a pager works.
#[derive(Debug, Clone)]
pub struct PagerConfig {
    /// The run directory, for the control socket, the lock and the registry. One pager serves it.
    pub run_dir: PathBuf,
    /// What it shows to owners of pages, and whom it trusts; nothing where connections are in clear.
    pub credentials: Option<Credentials>,
}

/// Why a process keeps no longer.
enum Kept {
    /// The pager ended because a client asked for it.
    Stopped,
    /// This process was the pager, and its keeper is gone.
    Widowed,
    /// This process is the holder.
    Holder,
}

/// What a keeper was woken for.
enum PagerWatch {
    /// The pager ended in this way, where that is known.
    Ended(Option<WaitStatus>),
    /// This process is a holder that was cloned meanwhile.
    Holder,
}

/// Keeps a pager running until a client stops it. To be called in a process of its own, with one thread, and in a
/// session of its own, so that it does not end with another. The process that returns is whichever was the keeper last.
///
/// # Errors
/// [`PagerError`], before the first pager runs.
pub fn run(config: &PagerConfig) -> Result<(), PagerError> {
    let mut station = Station::open(config)?;
    takeover::strike_out(station.registry());
    spare_from_oom_killer();
    loop {
        match keep(&station) {
            Kept::Stopped => {
                station.close();
                return Ok(());
            }
            Kept::Widowed => {
                tracing::warn!("the keeper of the pager is gone: process {} replaces it", std::process::id());
            }
            Kept::Holder => match holder::hold(station.roles(), station.shown()) {
                // Nothing of its own may be dropped: the descriptors stand in others' table too.
                HolderEnd::NotNeeded => std::process::exit(0),
                HolderEnd::KeeperAndPagerGone => {
                    tracing::warn!(
                        "keeper and pager are gone: process {}, the holder, replaces them",
                        std::process::id()
                    );
                }
            },
        }
        // It must not give up: it may be the last one that holds the children's userfaultfds.
        while let Err(error) = station.inherit() {
            tracing::error!("{error}: it is tried again");
            std::thread::sleep(PAUSE_MAX);
        }
    }
}

fn keep(station: &Station) -> Kept {
    let roles = station.roles();
    let mut pause = Duration::ZERO;
    loop {
        // Before the pager: whoever kills that and this process together finds one.
        if let HolderCheck::IsHolder = check_holder(roles) {
            return Kept::Holder;
        }
        let born = Instant::now();
        match sharing_files(roles.slot(Role::Pager)) {
            Ok(Forked::Child) => return be_pager(station),
            Ok(Forked::Parent { pid }) => {
                let status = match watch(roles, pid) {
                    PagerWatch::Ended(status) => status,
                    PagerWatch::Holder => return Kept::Holder,
                };
                if status.is_some_and(|status| status.exit_status() == Some(0)) {
                    holder::end(roles);
                    return Kept::Stopped;
                }
                if status.is_some_and(|status| status.exit_status() == Some(EXIT_REPLACED)) {
                    pause = Duration::ZERO;
                    continue;
                }
                tracing::error!("the pager, process {pid}, {}: another takes over", describe(status));
            }
            // Memory and processes may come back; the children wait as long.
            Err(error) => {
                roles.assign(Role::Pager, 0);
                tracing::error!("the pager cannot be started: {error}: it is tried again");
            }
        }
        let well = born.elapsed() >= WELL_AFTER;
        pause = if well { Duration::ZERO } else { (2 * pause).clamp(PAUSE_MIN, PAUSE_MAX) };
        std::thread::sleep(pause);
    }
}

/// Waits for the end of the pager that was cloned, and has a holder all the while.
fn watch(roles: &RoleTable, pager: i32) -> PagerWatch {
    loop {
        let limit = match roles.has_begun(pager).then(|| check_holder(roles)) {
            Some(HolderCheck::IsHolder) => return PagerWatch::Holder,
            Some(HolderCheck::Lives) => LOOK_INTERVAL,
            Some(HolderCheck::Failed) => PAUSE_MAX,
            // It may close the pidfd of whoever is cloned now.
            None => PAUSE_MIN,
        };
        let watched = [Role::Pager, Role::Holder].map(|role| roles.number(role));
        let count = if limit == LOOK_INTERVAL { watched.len() } else { 1 };
        pidfd::wait_exit_of_any(&watched[..count], limit);
        if !roles.is_alive(Role::Pager) {
            return PagerWatch::Ended(reap(pager));
        }
    }
}

/// Clones a holder where there is none.
fn check_holder(roles: &RoleTable) -> HolderCheck {
    if roles.is_alive(Role::Holder) {
        return HolderCheck::Lives;
    }
    match holder::start(roles) {
        Ok(Forked::Child) => HolderCheck::IsHolder,
        Ok(Forked::Parent { .. }) if roles.is_alive(Role::Holder) => HolderCheck::Lives,
        Ok(Forked::Parent { .. }) => HolderCheck::Failed,
        Err(error) => {
            tracing::error!("the holder cannot be started: {error}: it is tried again");
            HolderCheck::Failed
        }
    }
}

/// The pager's life. It comes back only to be the keeper; what else it ends with is its exit status. (Nothing of its
/// own may be dropped on the way out: the descriptors stand in the keeper's table too.)
fn be_pager(station: &Station) -> Kept {
    let life = AssertUnwindSafe(|| takeover::begin(station).and_then(|mut server: Server<'_>| server.run()));
    match catch_unwind(life) {
        Ok(Ok(Ended::KeeperGone)) => Kept::Widowed,
        Ok(Ok(Ended::Stopped)) => {
            station.roles().stop();
            std::process::exit(0)
        }
        Ok(Ok(Ended::Replaced)) => std::process::exit(EXIT_REPLACED),
        Ok(Err(error)) => {
            tracing::error!("the pager fails: {error}");
            std::process::exit(EXIT_FAILED)
        }
        Err(_) => std::process::exit(EXIT_PANICKED),
    }
}

fn reap(pid: i32) -> Option<WaitStatus> {
    loop {
        match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Some(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // Only ECHILD remains: it is gone, and somebody else was told how.
            Err(_) => return None,
        }
    }
}

/// How a pager ended, in words.
fn describe(status: Option<WaitStatus>) -> String {
    let signal = status.and_then(|status| status.terminating_signal());
    let exit = status.and_then(|status| status.exit_status());
    match (signal, exit) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, Some(exit)) => format!("failed with status {exit}"),
        (None, None) => "is gone".into(),
    }
}

/// All three processes would have to be killed for a child to be harmed; they are small, and should come last. Lowering the
/// score takes CAP_SYS_RESOURCE, which root of a container may lack.
fn spare_from_oom_killer() {
    const SCORE: &str = "-900";
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", SCORE) {
        tracing::info!("the pager is not spared from the OOM killer: {error}");
    }
}
