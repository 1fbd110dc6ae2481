//! The state of a node, shared by its requests and background tasks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_api::failure::Failure;
use farfork_api::limits::CONCURRENT_STARTS_MAX;
use farfork_api::v1;
use farfork_cluster::membership::MemberState;
use farfork_fork::capture::ServingPager;
use farfork_fork::pager::PagerCounters;
use farfork_wire::{ChildId, NodeName};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tonic::Code;

use crate::attended::AttendedBatches;
use crate::children::{ChildBudget, ChildSupervisor};
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::pager_link::PagerLink;
use crate::peers::{Peers, unreachable_step};
use crate::pending_starts::PendingStarts;
use crate::seeds::SeedRegistry;
use crate::speculation::ForkHistory;
use crate::volumes::OffloadRequests;

/// The state of a node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: NodeName,
    pub(crate) peers: Arc<Peers>,
    pub(crate) seeds: SeedRegistry,
    pub(crate) children: ChildSupervisor,
    pub(crate) child_budget: ChildBudget,
    pub(crate) engine: Engine,
    pub(crate) pager: Arc<PagerLink>,
    pub(crate) metrics: Metrics,
    /// Permits for starting children: at most `CONCURRENT_STARTS_MAX` at once.
    pub(crate) start_permits: Arc<Semaphore>,
    /// Seeds of which children are being started.
    pub(crate) pending_starts: Arc<PendingStarts>,
    pub(crate) fork_history: ForkHistory,
    pub(crate) attended: AttendedBatches,
    /// Requests to the offload process of the node's volumes.
    pub(crate) offload: OffloadRequests,
    /// Whether the node is stopping. Then the end of a connection does not mean that the peer has disconnected.
    is_stopping: AtomicBool,
    /// Handle with which threads outside the runtime spawn tasks.
    pub(crate) runtime: Handle,
}

impl Node {
    /// Must be called within the runtime.
    pub(crate) fn new(
        peers: Arc<Peers>,
        seeds: SeedRegistry,
        children: ChildSupervisor,
        child_budget: ChildBudget,
        engine: Engine,
        pager: Arc<PagerLink>,
        offload: OffloadRequests,
    ) -> Self {
        let (starting, starts) = (Arc::new(Semaphore::new(CONCURRENT_STARTS_MAX)), Arc::default());
        let (name, metrics) = (peers.local_name(), Metrics::new());
        let (fork_history, runtime) = (ForkHistory::default(), Handle::current());
        Self {
            name,
            peers,
            seeds,
            children,
            child_budget,
            engine,
            pager,
            metrics,
            start_permits: starting,
            pending_starts: starts,
            fork_history,
            attended: AttendedBatches::default(),
            offload,
            is_stopping: AtomicBool::new(false),
            runtime,
        }
    }

    /// Records that the node is stopping.
    pub(crate) fn begin_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Whether the node is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Runs blocking work on a thread that may block.
    ///
    /// # Errors
    /// The error of `work`. A panic of `work` is an internal failure.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| {
            let failure = Failure::new(Code::Internal, format!("node `{}`", self.name), panic);
            Err(failure.with_next_step("see the node's log"))
        })
    }

    /// Requests the pager's counters of a child.
    pub(crate) async fn pager_counters(&self, id: &ChildId) -> Option<PagerCounters> {
        let (pager, id) = (self.pager.clone(), id.clone());
        self.run_blocking(move || Ok(pager.counters(&id))).await.ok().flatten()
    }

    /// Returns a failure for each unreachable node. A request to all nodes skips these nodes.
    pub(crate) fn unreachable_nodes(&self) -> Vec<v1::Error> {
        let views = self.peers.views().into_iter();
        let silent = views.filter(|view| view.state == MemberState::Unreachable);
        let failure = |view: farfork_cluster::membership::MemberView| {
            let cause = format!("it has been silent for {} s", view.silence.as_secs());
            Failure::new(Code::Unavailable, format!("node {}", view.member.name), cause)
                .with_next_step(unreachable_step(&view))
                .into()
        };
        silent.map(failure).collect()
    }

    /// Returns the pager that serves the missing pages of a process, if the process is a child of this node or was
    /// forked by one.
    ///
    /// # Errors
    /// The child is paused, so its processes cannot run injected calls. Or the child has its own user namespace, which
    /// seeds do not support.
    pub(crate) fn lineage_of(&self, pid: u32) -> Result<Option<ServingPager>, Failure> {
        let Some(child) = self.children.find_by_pid(pid) else { return Ok(None) };
        child.require_unpaused(pid)?;
        if child.record().user_namespace {
            let cause = "it is in its child's own user namespace, which seeds do not support yet";
            let refused = Failure::new(Code::FailedPrecondition, format!("process {pid}"), cause);
            return Err(refused.with_next_step("to make seeds of children, fork them without --user-namespace"));
        }
        // The seed names files by their paths in the root of the child's container.
        child.disable_root_reuse();
        Ok(Some(self.engine.lineage(&child, self.seeds.fabric_address())))
    }

    /// Returns the address of the node's control API.
    pub(crate) fn address(&self) -> SocketAddr {
        self.peers.membership().own_member().address
    }
}
