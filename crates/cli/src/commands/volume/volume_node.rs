//! `VolumeNode`: the node of this machine that a `farfork volume` command uses. It sends requests to the node's offload
//! process.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_cluster::catalog::{CatalogContents, ImportSummary};
use farfork_node::volumes::{VolumeLocation, locate_volumes};
use farfork_volume::process::{
    CheckProgress, CheckReport, ControlAnswer, ControlRequest, ExportedCatalog, VolumeCheck, VolumeStatus,
    check_volume, send_control_request,
};
use farfork_wire::NodeName;
use tonic::Code;

use crate::GlobalArgs;

/// Time limit for the start of the processes that serve volumes, on this node or on another one.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Interval between two attempts to reach these processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The node of this machine that a command uses.
pub(super) struct VolumeNode {
    location: VolumeLocation,
    run_dir: PathBuf,
}

impl VolumeNode {
    /// Finds the node of this machine that the options select. Errors name `object`.
    ///
    /// # Errors
    /// The daemon does not answer, or cannot serve volumes.
    pub(super) fn find(global: &GlobalArgs, object: &str) -> Result<Self, Failure> {
        let failure = |code, cause: String| Failure::new(code, object, cause);
        if let Some(address) = global.connection.node_address() {
            let cause = format!("--node {address} may be on another machine, and volumes are served on this one");
            let step = "run the command on that machine, or select a node of this machine with --socket";
            return Err(failure(Code::InvalidArgument, cause).with_next_step(step));
        }
        let socket = global.connection.socket_path();
        let location = locate_volumes(&socket).map_err(|error| {
            let cause = format!("the node at {} does not say where its volumes are: {error}", socket.display());
            let step = "start `farfork node`, or select a node with --socket";
            failure(Code::Unavailable, cause).with_next_step(step)
        })?;
        if let Some(reason) = &location.failure {
            let cause = format!("node {} serves no volumes: {reason}", location.node);
            return Err(failure(Code::FailedPrecondition, cause).with_next_step("correct this; the node tries again"));
        }
        let run_dir = socket.parent().map_or_else(PathBuf::new, PathBuf::from);
        Ok(Self { location, run_dir })
    }

    /// The directory of the node's volume store.
    pub(super) fn store(&self) -> &Path {
        &self.location.store
    }

    /// The path of the log of a mount's background process.
    pub(super) fn mount_log(&self, volume: &str) -> PathBuf {
        self.run_dir.join(format!("mount-{volume}.log"))
    }

    /// Sends a request to the offload process. Returns the volumes of the reply, if it lists any.
    ///
    /// # Errors
    /// The offload process does not answer, or the request fails.
    pub(super) fn request(&self, object: &str, request: &ControlRequest) -> Result<Vec<VolumeStatus>, Failure> {
        match self.exchange(object, |store| send_control_request(store, request))? {
            ControlAnswer::Volumes(volumes) => Ok(volumes),
            _ => Ok(Vec::new()),
        }
    }

    /// Replaces a replica, or drops a volume. Returns why files remain, if they do.
    ///
    /// # Errors
    /// As `request`.
    pub(super) fn remove(&self, object: &str, request: &ControlRequest) -> Result<Option<String>, Failure> {
        match self.exchange(object, |store| send_control_request(store, request))? {
            ControlAnswer::DoneExceptFiles(reason) => Ok(Some(reason)),
            _ => Ok(None),
        }
    }

    /// Checks a volume. Calls `report_progress` for each progress message.
    ///
    /// # Errors
    /// As `request`.
    pub(super) fn check(
        &self,
        object: &str,
        check: &VolumeCheck,
        mut report_progress: impl FnMut(CheckProgress),
    ) -> Result<CheckReport, Failure> {
        match self.exchange(object, |store| check_volume(store, check.clone(), &mut report_progress))? {
            ControlAnswer::Checked(report) => Ok(*report),
            answer => Err(unexpected(object, &answer)),
        }
    }

    /// Reads the catalog.
    ///
    /// # Errors
    /// As `request`.
    pub(super) fn export_catalog(&self, object: &str) -> Result<ExportedCatalog, Failure> {
        match self.exchange(object, |store| send_control_request(store, &ControlRequest::ExportCatalog))? {
            ControlAnswer::Catalog(exported) => Ok(*exported),
            answer => Err(unexpected(object, &answer)),
        }
    }

    /// Writes records of volumes into the catalog.
    ///
    /// # Errors
    /// As `request`.
    pub(super) fn import_catalog(&self, object: &str, contents: CatalogContents) -> Result<ImportSummary, Failure> {
        let request = ControlRequest::ImportCatalog(contents);
        match self.exchange(object, |store| send_control_request(store, &request))? {
            ControlAnswer::Imported(summary) => Ok(summary),
            answer => Err(unexpected(object, &answer)),
        }
    }

    /// Sends a request to the offload process. If the process does not listen yet, retries until [`START_LIMIT`].
    fn exchange(
        &self,
        object: &str,
        mut send: impl FnMut(&Path) -> io::Result<ControlAnswer>,
    ) -> Result<ControlAnswer, Failure> {
        let deadline = Instant::now() + START_LIMIT;
        let answer = loop {
            match send(&self.location.store) {
                // The connection failed before a request was sent, so a retry is safe.
                Err(error) if is_not_listening(&error) && Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
                answer => break answer,
            }
        };
        let node = &self.location.node;
        match answer {
            // The error text of the offload process names the volume, the cause and the next step.
            Ok(ControlAnswer::Failed(text)) => Err(failure_of_text(object, &text)),
            Ok(answer) => Ok(answer),
            Err(error) => {
                let cause = format!("the offload process of node {node} does not answer: {error}");
                let step = format!("see node.log or the journal of node {node}, then repeat the command");
                Err(Failure::new(Code::Unavailable, object, cause).with_next_step(step))
            }
        }
    }

    /// Waits until these nodes serve volumes. A node also starts its volume processes when the catalog has a volume, or
    /// another node that serves volumes.
    ///
    /// # Errors
    /// Some nodes do not serve volumes within [`START_LIMIT`]. The error names them.
    pub(super) fn wait_for_nodes(&self, object: &str, nodes: &[NodeName]) -> Result<(), Failure> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let known = match self.exchange(object, |store| send_control_request(store, &ControlRequest::ListNodes))? {
                ControlAnswer::Nodes(known) => known,
                answer => return Err(unexpected(object, &answer)),
            };
            let missing: Vec<&str> = nodes.iter().filter(|node| !known.contains(node)).map(NodeName::as_str).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let cause = format!("no node {} serves volumes", missing.join(" or "));
                let catalog = &self.location.catalog;
                let step = format!("check the names with `farfork nodes`; each daemon needs --catalog {catalog}");
                return Err(Failure::new(Code::FailedPrecondition, object, cause).with_next_step(step));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

fn unexpected(object: &str, answer: &ControlAnswer) -> Failure {
    Failure::new(Code::Internal, object, format!("unexpected answer: {answer:?}"))
}

fn is_not_listening(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// Makes a failure of `object`. Removes the object from the beginning of the text, because the failure already names
/// it.
pub(super) fn failure_of_text(object: &str, text: &str) -> Failure {
    let cause = text.strip_prefix(object).map_or(text, |rest| rest.trim_start_matches(':').trim_start());
    Failure::new(Code::FailedPrecondition, object, cause)
}
