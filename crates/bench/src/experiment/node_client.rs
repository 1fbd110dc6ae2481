//! `NodeClient`: the requests of experiments to one node. Each has the same time limit, and its failure names the object.

use std::path::Path;
use std::time::Duration;

use farfork_api::client::{self, Client};
use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::fork_outcome::Result as Outcome;
use farfork_api::v1::inspect_response::Object;
use tonic::{Code, Request, Status, Streaming};

/// Time limit of each request. It is longer than the time after which a node gives up a page, so the node's report of the
/// lost page is received. A child that touches 1 GiB on a busy machine takes seconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(120);

/// A connection to a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeClient {
    client: Client,
    limit: Duration,
}

impl NodeClient {
    /// Connects to the node with this socket.
    pub(super) async fn connect(socket: &Path) -> Result<Self, Failure> {
        Ok(Self { client: client::connect(socket).await?, limit: REQUEST_LIMIT })
    }

    /// Sets the time limit of each request.
    pub(super) fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The connection, for requests that only one experiment sends.
    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// The names of the nodes that the node sees alive.
    pub(crate) async fn list_alive_nodes(&mut self) -> Result<Vec<String>, Failure> {
        let answer = self.client.list_nodes(self.limited(v1::ListNodesRequest {})).await;
        let nodes = answer.map_err(request_failure("the list of nodes"))?.into_inner().nodes;
        let alive = nodes.into_iter().filter(|node| node.state() == v1::NodeState::Alive);
        Ok(alive.map(|node| node.name).collect())
    }

    /// The ids of the seeds and of the living children of the node.
    pub(super) async fn list_own_objects(&mut self) -> Result<Vec<String>, Failure> {
        let request = || v1::ListRequest { this_node_only: true, living_only: true };
        let seeds = self.client.list_seeds(self.limited(request())).await;
        let seeds = seeds.map_err(request_failure("the list of seeds"))?.into_inner().seeds;
        let children = self.client.list_children(self.limited(request())).await;
        let children = children.map_err(request_failure("the list of children"))?.into_inner().children;
        let seeds = seeds.into_iter().map(|seed| format!("seed {}", seed.id));
        Ok(seeds.chain(children.into_iter().map(|child| format!("child {}", child.id))).collect())
    }

    /// Makes a seed of a process of the node's machine.
    pub(crate) async fn prepare(&mut self, request: v1::PrepareRequest) -> Result<v1::Seed, Failure> {
        let object = format!("process {}", request.pid);
        Ok(self.client.prepare(self.limited(request)).await.map_err(request_failure(object))?.into_inner())
    }

    pub(crate) async fn drop_seed(&mut self, seed: &str) -> Result<(), Failure> {
        let request = v1::DropRequest { seed: seed.to_owned(), force: true };
        self.client.drop(self.limited(request)).await.map_err(request_failure(seed)).map(drop)
    }

    /// Forks children.
    pub(crate) async fn fork(&mut self, request: v1::ForkRequest) -> Result<Streaming<v1::ForkOutcome>, Failure> {
        let object = request.seed.clone();
        Ok(self.client.fork(self.limited(request)).await.map_err(request_failure(object))?.into_inner())
    }

    /// Forks one child.
    pub(crate) async fn fork_one(&mut self, request: v1::ForkRequest) -> Result<v1::Child, Failure> {
        let seed = request.seed.clone();
        started_child(self.fork_outcome(request).await?.result, &seed)
    }

    /// Requests one child. The outcome has the child or an error, and the phases of the start.
    pub(crate) async fn fork_outcome(&mut self, request: v1::ForkRequest) -> Result<v1::ForkOutcome, Failure> {
        let seed = request.seed.clone();
        Ok(self.fork(request).await?.message().await.map_err(request_failure(&seed))?.unwrap_or_default())
    }

    /// Inspects a seed, a child or a node.
    pub(crate) async fn inspect(&mut self, id: &str) -> Result<Option<Object>, Failure> {
        let request = v1::InspectRequest { id: id.to_owned() };
        Ok(self.client.inspect(self.limited(request)).await.map_err(request_failure(id))?.into_inner().object)
    }

    /// Inspects a child.
    pub(crate) async fn inspect_child(&mut self, child: &str) -> Result<v1::ChildDetail, Failure> {
        Ok(match self.inspect(child).await? {
            Some(Object::Child(detail)) => detail,
            _ => v1::ChildDetail::default(),
        })
    }

    /// Makes a child fetch all of its memory. Returns after the node's first progress report.
    pub(crate) async fn settle(&mut self, child: &str) -> Result<Streaming<v1::SettleProgress>, Failure> {
        let request = v1::SettleRequest { child: child.to_owned() };
        let mut progress =
            self.client.settle(self.limited(request)).await.map_err(request_failure(child))?.into_inner();
        progress.message().await.map_err(request_failure(child))?;
        Ok(progress)
    }

    /// Sends a signal to a child.
    pub(crate) async fn kill(&mut self, child: &str, signal: i32) -> Result<(), Failure> {
        let request = v1::KillRequest { child: child.to_owned(), signal: signal.cast_unsigned(), by_program: false };
        self.client.kill(self.limited(request)).await.map_err(request_failure(child)).map(drop)
    }

    /// Removes an ended child from its node.
    pub(crate) async fn remove(&mut self, child: &str) -> Result<(), Failure> {
        let request = v1::RemoveRequest { child: child.to_owned() };
        self.client.remove(self.limited(request)).await.map_err(request_failure(child)).map(drop)
    }

    /// Reads the standard output of a child, until its end if `follow` is set.
    pub(crate) async fn logs(&mut self, child: &str, follow: bool) -> Result<Streaming<v1::LogChunk>, Failure> {
        let only = v1::OutputStream::Stdout.into();
        let request = v1::LogsRequest { child: child.to_owned(), follow, only };
        Ok(self.client.logs(self.limited(request)).await.map_err(request_failure(child))?.into_inner())
    }

    /// Waits for the end of children, and reads their output.
    pub(crate) async fn wait(&mut self, children: Vec<String>) -> Result<Streaming<v1::WaitEvent>, Failure> {
        let object = children.first().cloned().unwrap_or_default();
        let request = v1::WaitRequest { children, results: true };
        Ok(self.client.wait(self.limited(request)).await.map_err(request_failure(object))?.into_inner())
    }

    fn limited<T>(&self, message: T) -> Request<T> {
        client::request_with_timeout(self.limit, message)
    }
}

/// The child of an outcome of a fork.
pub(crate) fn started_child(result: Option<Outcome>, seed: &str) -> Result<v1::Child, Failure> {
    match result {
        Some(Outcome::Child(child)) => Ok(child),
        Some(Outcome::Error(error)) => Err(error.into()),
        None => Err(Failure::new(Code::Internal, seed, "the node reported no child")),
    }
}

/// Converts the status of a request about `object` into a [`Failure`].
pub(crate) fn request_failure(object: impl std::fmt::Display) -> impl FnOnce(Status) -> Failure {
    move |status| Failure::from_status(object, &status)
}
