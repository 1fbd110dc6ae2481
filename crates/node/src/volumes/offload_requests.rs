//! `OffloadRequests`: sends requests to the offload process of this node, and starts the processes of the volumes before.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::limits::VOLUME_REQUESTS_MAX;
use farfork_cluster::catalog::CatalogLocation;
use farfork_volume::process::{
    ControlAnswer, ControlRequest, VolumeStore, send_control_request, send_control_request_within,
};
use farfork_wire::NodeName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Code;

use super::supervision::{StartRequests, VolumeServiceConfig};

/// Time limit for the start of the processes that serve volumes, on this node or on another one.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Time limit for each message of the reply to a query. The offload process asks other nodes and the catalog, with shorter limits.
const QUERY_LIMIT: Duration = Duration::from_secs(60);
/// Interval between two attempts to reach these processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Sends requests to the offload process of this node. All requests block.
#[derive(Debug)]
pub(crate) struct OffloadRequests {
    node: NodeName,
    store: PathBuf,
    catalog: CatalogLocation,
    starts: StartRequests,
    permits: Arc<Semaphore>,
}

impl OffloadRequests {
    pub(super) fn new(config: &VolumeServiceConfig, starts: StartRequests) -> Self {
        let (node, store, catalog) = (config.node.clone(), config.options.store.clone(), config.catalog.clone());
        Self { node, store, catalog, starts, permits: Arc::new(Semaphore::new(VOLUME_REQUESTS_MAX)) }
    }

    /// The directory of the node's replicas.
    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// Waits until fewer than [`VOLUME_REQUESTS_MAX`] requests of clients are in progress. The request ends when the permit is
    /// dropped.
    pub(crate) async fn admit(&self) -> OwnedSemaphorePermit {
        self.permits.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Sends a request about `object`.
    ///
    /// # Errors
    /// The offload process cannot start or does not answer, or the request fails.
    pub(crate) fn request(&self, object: &str, request: &ControlRequest) -> Result<ControlAnswer, Failure> {
        self.exchange(object, |store| send_control_request(store, request))
    }

    /// As `request`, for a request that changes nothing. An offload process that was stopped must not occupy all permits.
    ///
    /// # Errors
    /// As `request`.
    pub(crate) fn query(&self, object: &str, request: &ControlRequest) -> Result<ControlAnswer, Failure> {
        self.exchange(object, |store| send_control_request_within(store, request, QUERY_LIMIT))
    }

    /// Calls `send`. Starts the processes of the volumes before. While the offload process does not listen yet, retries until
    /// [`START_LIMIT`].
    ///
    /// # Errors
    /// As `request`.
    pub(crate) fn exchange(
        &self,
        object: &str,
        mut send: impl FnMut(&Path) -> io::Result<ControlAnswer>,
    ) -> Result<ControlAnswer, Failure> {
        self.require_processes(object)?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match send(&self.store) {
                // The error text of the offload process names the volume, the cause and the next step.
                Ok(ControlAnswer::Failed(text)) => return Err(failure_of_text(object, &text)),
                Ok(answer) => return Ok(answer),
                // The connection failed before a request was sent, so a retry is safe.
                Err(error) if is_not_listening(&error) && Instant::now() < deadline => {
                    if let Some(reason) = VolumeStore::new(&self.store).start_failure() {
                        return Err(self.serves_no_volumes(Code::Unavailable, object, &reason));
                    }
                    thread::sleep(POLL_INTERVAL);
                }
                Err(error) => {
                    let node = &self.node;
                    let cause = format!("the offload process of node {node} does not answer: {error}");
                    let step = format!("see node.log or the journal of node {node}, then repeat the command");
                    return Err(Failure::new(Code::Unavailable, object, cause).with_next_step(step));
                }
            }
        }
    }

    /// Starts the processes of the volumes, if they do not run.
    ///
    /// # Errors
    /// They cannot run, or the daemon stops.
    pub(crate) fn require_processes(&self, object: &str) -> Result<(), Failure> {
        match self.starts.request(START_LIMIT) {
            Some(None) => Ok(()),
            Some(Some(reason)) => Err(self.serves_no_volumes(Code::FailedPrecondition, object, &reason)),
            None => {
                let cause = format!("node {} does not start the processes of its volumes", self.node);
                Err(Failure::new(Code::Unavailable, object, cause)
                    .with_next_step("see node.log or the journal of the node"))
            }
        }
    }

    fn serves_no_volumes(&self, code: Code, object: &str, reason: &str) -> Failure {
        let cause = format!("node {} serves no volumes: {reason}", self.node);
        Failure::new(code, object, cause).with_next_step("correct this; the node tries again")
    }

    /// Waits until these nodes serve volumes. A node also starts its volume processes when the catalog has a volume, or
    /// another node that serves volumes.
    ///
    /// # Errors
    /// Some nodes do not serve volumes within [`START_LIMIT`]. The error names them.
    pub(crate) fn wait_for_nodes(&self, object: &str, nodes: &[NodeName]) -> Result<(), Failure> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let known = match self.request(object, &ControlRequest::ListNodes)? {
                ControlAnswer::Nodes(known) => known,
                answer => return Err(unexpected_answer(object, &answer)),
            };
            let missing: Vec<&str> = nodes.iter().filter(|node| !known.contains(node)).map(NodeName::as_str).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let cause = format!("no node {} serves volumes", missing.join(" or "));
                let catalog = &self.catalog;
                let step = format!("check the names with `farfork nodes`; each daemon needs --catalog {catalog}");
                return Err(Failure::new(Code::FailedPrecondition, object, cause).with_next_step(step));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The failure of a request whose answer has the wrong type.
pub(crate) fn unexpected_answer(object: &str, answer: &ControlAnswer) -> Failure {
    Failure::new(Code::Internal, object, format!("unexpected answer: {answer:?}"))
}

fn is_not_listening(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// Makes a failure of `object`. Removes the object from the beginning of the text, because the failure already names
/// it.
pub(crate) fn failure_of_text(object: &str, text: &str) -> Failure {
    let cause = text.strip_prefix(object).map_or(text, |rest| rest.trim_start_matches(':').trim_start());
    Failure::new(Code::FailedPrecondition, object, cause)
}
