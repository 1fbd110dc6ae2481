//! The keeper: keeps the descriptor table open, and a pager and a holder running. `run` is the main function of its
//! process. The three share one table. So every userfaultfd, also those that the kernel adds at a fork, stays open
//! while one of the three lives. If all three are killed together, `child::stub_recovery` restores the children from
//! their stubs' queues. `roles` records which process is which, `fd_holder` is the holder, and `takeover` starts the
//! next pager. `context`, `registry` and `trust_policy` have the state that outlives a pager.

pub(super) mod context;
mod fd_holder;
mod registry;
mod roles;
mod takeover;
pub(super) mod trust_policy;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use farfork_sys::fork::{ForkedSide, fork_sharing_files};
use farfork_sys::pidfd;
use farfork_trust::Credentials;
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use super::server::{PagerServer, ServerExit};
use context::{KeeperContext, PagerError};
use fd_holder::FdHolderExit;
use roles::{ProcessRole, RoleTable};

/// Lifetime after which a pager counts as healthy: its successor is cloned without a pause. A pager that fails while it
/// recovers its state, or at the first fault, does so within a few milliseconds.
const HEALTHY_AFTER: Duration = Duration::from_millis(100);

/// Shortest and longest pause before the next pager is cloned, if the previous ones died early.
const RESTART_BACKOFF_MIN: Duration = Duration::from_millis(1);
const RESTART_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How often a keeper checks which processes live. The end of a process also wakes it.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Exit status of a pager that failed.
const EXIT_FAILED: i32 = 1;
/// Exit status of a pager that is replaced by one with another trust policy.
const EXIT_REPLACED: i32 = 3;
/// Exit status of a pager that panicked, as of every Rust program.
const EXIT_PANICKED: i32 = 101;

/// The result of ensuring that a holder exists.
enum FdHolderStatus {
    /// A holder lives.
    Alive,
    /// No holder can be started for now.
    StartFailed,
    /// This process is a holder that was just cloned.
    BecameHolder,
}

/// The configuration of a pager.
#[derive(Debug, Clone)]
pub struct PagerConfig {
    /// The run directory, with the control socket, the lock and the registry. Only one pager serves it.
    pub run_dir: PathBuf,
    /// The credentials that the pager presents to owners, and those that it trusts. `None` if connections are neither
    /// authenticated nor encrypted.
    pub credentials: Option<Credentials>,
}

/// Why a process stops supervising the pager.
enum SupervisionEnd {
    /// A client has stopped the pager.
    Stopped,
    /// This process was the pager, and its keeper is gone.
    KeeperGone,
    /// This process is the holder.
    BecameHolder,
}

/// Why a keeper stopped waiting.
enum PagerWaitResult {
    /// The pager has ended. The status is `None` if it was already reaped.
    Exited(Option<WaitStatus>),
    /// This process is a holder, which the keeper cloned during the wait.
    BecameHolder,
}

// Which process becomes what:
//
//          clones (CLONE_FILES, not CLONE_VM)            keeper gone
//  keeper ────────────────────────────────▶ pager ─────────────────────▶ becomes the keeper, and clones a pager
//   ▲  │                                      │                          that takes over
//   │  └─ clones ─▶ holder ── both gone ──▶ becomes the keeper
//   └───── reaps it, clones another ──────────┘ killed, crashed

/// Keeps a pager running until a client stops it. Must be called in a single-threaded process with its own session, so
/// that signals to another session do not end it. The process in which this returns is the last keeper.
///
/// # Errors
/// [`PagerError`], before the first pager runs.
pub fn run(config: &PagerConfig) -> Result<(), PagerError> {
    let mut keeper_context = KeeperContext::open(config)?;
    takeover::clear_registry(keeper_context.registry());
    spare_from_oom_killer();
    loop {
        match supervise_pager(&keeper_context) {
            SupervisionEnd::Stopped => {
                keeper_context.remove_socket();
                return Ok(());
            }
            SupervisionEnd::KeeperGone => {
                tracing::warn!("the keeper of the pager is gone: process {} replaces it", std::process::id());
            }
            SupervisionEnd::BecameHolder => {
                match fd_holder::run_fd_holder(keeper_context.roles(), keeper_context.process_title()) {
                    // Exit without dropping anything: the other processes share the descriptor table.
                    FdHolderExit::NotNeeded => std::process::exit(0),
                    FdHolderExit::KeeperAndPagerGone => {
                        tracing::warn!(
                            "keeper and pager are gone: process {}, the holder, replaces them",
                            std::process::id()
                        );
                    }
                }
            }
        }
        // Retry forever: this may be the last process that holds the children's userfaultfds.
        while let Err(error) = keeper_context.become_keeper() {
            tracing::error!("{error}; retrying");
            std::thread::sleep(RESTART_BACKOFF_MAX);
        }
    }
}

fn supervise_pager(keeper_context: &KeeperContext) -> SupervisionEnd {
    let roles = keeper_context.roles();
    let mut pause = Duration::ZERO;
    loop {
        // Start the holder before the pager, so that one process remains if pager and keeper are killed together.
        if let FdHolderStatus::BecameHolder = ensure_fd_holder(roles) {
            return SupervisionEnd::BecameHolder;
        }
        let started_at = Instant::now();
        match fork_sharing_files(roles.pidfd_slot(ProcessRole::Pager)) {
            Ok(ForkedSide::Child) => return run_pager(keeper_context),
            Ok(ForkedSide::Parent { pid }) => {
                let status = match wait_for_pager(roles, pid) {
                    PagerWaitResult::Exited(status) => status,
                    PagerWaitResult::BecameHolder => return SupervisionEnd::BecameHolder,
                };
                if status.is_some_and(|status| status.exit_status() == Some(0)) {
                    fd_holder::stop_fd_holder(roles);
                    return SupervisionEnd::Stopped;
                }
                if status.is_some_and(|status| status.exit_status() == Some(EXIT_REPLACED)) {
                    pause = Duration::ZERO;
                    continue;
                }
                tracing::error!("the pager, process {pid}, {}: another takes over", describe_exit(status));
            }
            // The clone may succeed later, when memory or process ids are available again. Until then the children
            // wait.
            Err(error) => {
                roles.assign(ProcessRole::Pager, 0);
                tracing::error!("the pager cannot be started: {error}; retrying");
            }
        }
        let was_healthy = started_at.elapsed() >= HEALTHY_AFTER;
        pause = if was_healthy { Duration::ZERO } else { (2 * pause).clamp(RESTART_BACKOFF_MIN, RESTART_BACKOFF_MAX) };
        std::thread::sleep(pause);
    }
}

/// Waits for the end of the pager, and keeps a holder running.
fn wait_for_pager(roles: &RoleTable, pager: i32) -> PagerWaitResult {
    loop {
        let limit = match roles.is_pager_ready(pager).then(|| ensure_fd_holder(roles)) {
            Some(FdHolderStatus::BecameHolder) => return PagerWaitResult::BecameHolder,
            Some(FdHolderStatus::Alive) => LIVENESS_CHECK_INTERVAL,
            Some(FdHolderStatus::StartFailed) => RESTART_BACKOFF_MAX,
            // Clone no holder while the pager starts: the pager might close the new pidfd.
            None => RESTART_BACKOFF_MIN,
        };
        let watched = [ProcessRole::Pager, ProcessRole::FdHolder].map(|role| roles.pidfd_number(role));
        let count = if limit == LIVENESS_CHECK_INTERVAL { watched.len() } else { 1 };
        pidfd::wait_any_exit_raw(&watched[..count], limit);
        if !roles.is_alive(ProcessRole::Pager) {
            return PagerWaitResult::Exited(reap_process(pager));
        }
    }
}

/// Clones a holder if there is none.
fn ensure_fd_holder(roles: &RoleTable) -> FdHolderStatus {
    if roles.is_alive(ProcessRole::FdHolder) {
        return FdHolderStatus::Alive;
    }
    match fd_holder::start_fd_holder(roles) {
        Ok(ForkedSide::Child) => FdHolderStatus::BecameHolder,
        Ok(ForkedSide::Parent { .. }) if roles.is_alive(ProcessRole::FdHolder) => FdHolderStatus::Alive,
        Ok(ForkedSide::Parent { .. }) => FdHolderStatus::StartFailed,
        Err(error) => {
            tracing::error!("the holder cannot be started: {error}; retrying");
            FdHolderStatus::StartFailed
        }
    }
}

/// The main function of the pager. Returns only if this process must become the keeper; otherwise exits with a status,
/// without dropping anything, because the keeper shares the descriptor table.
fn run_pager(keeper_context: &KeeperContext) -> SupervisionEnd {
    let serve = AssertUnwindSafe(|| {
        takeover::start_server(keeper_context).and_then(|mut server: PagerServer<'_>| server.run())
    });
    match catch_unwind(serve) {
        Ok(Ok(ServerExit::KeeperGone)) => SupervisionEnd::KeeperGone,
        Ok(Ok(ServerExit::Stopped)) => {
            keeper_context.roles().set_stopped();
            std::process::exit(0)
        }
        Ok(Ok(ServerExit::Replaced)) => std::process::exit(EXIT_REPLACED),
        Ok(Err(error)) => {
            tracing::error!("the pager fails: {error}");
            std::process::exit(EXIT_FAILED)
        }
        Err(_) => std::process::exit(EXIT_PANICKED),
    }
}

fn reap_process(pid: i32) -> Option<WaitStatus> {
    loop {
        match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Some(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // The only other error is ECHILD: the process was already reaped.
            Err(_) => return None,
        }
    }
}

/// Describes how a pager ended.
fn describe_exit(status: Option<WaitStatus>) -> String {
    let signal = status.and_then(|status| status.terminating_signal());
    let exit = status.and_then(|status| status.exit_status());
    match (signal, exit) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, Some(exit)) => format!("failed with status {exit}"),
        (None, None) => "is gone".into(),
    }
}

/// Lowers the OOM score of keeper, pager and holder: killing these small processes frees little memory and harms all
/// children. Needs CAP_SYS_RESOURCE, which root in a container may lack.
fn spare_from_oom_killer() {
    const SCORE: &str = "-900";
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", SCORE) {
        tracing::info!("the pager's oom_score_adj cannot be lowered: {error}");
    }
}
