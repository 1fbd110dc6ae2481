//! Children that stand paused between two requests. A turn is: a request is sent, the child goes on, its function answers, it
//! is paused again; as many take turns at once as are wanted.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farfork_node::api::v1;
use farfork_node::client::{self, Client};
use futures_util::future;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::cluster::{Cluster, Wanted, told};
use crate::error::BenchError;
use crate::figure::Place;
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::Parent;
use crate::workload::turns::{self, TURNS, Turn};

/// Where children see the directory of their socket.
const INSIDE: &str = "/run/turns";

/// For any one request to a node.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// For a child to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Such children of one parent, on one node.
#[derive(Debug)]
pub(super) struct Warm {
    client: Client,
    listener: UnixListener,
    directory: PathBuf,
    /// Kept running.
    _parent: Parent,
    seed: String,
    steps: u64,
    containers: Vec<Container>,
    /// The number of the next request.
    next: u64,
}

/// A child, paused.
#[derive(Debug)]
struct Container {
    child: String,
    stream: UnixStream,
}

impl Warm {
    /// Starts their parent, with so much memory, whose children's function takes so many steps.
    pub(super) async fn start(cluster: &mut Cluster, mib: u64, steps: u64) -> Result<Self, BenchError> {
        let program = TURNS.install(cluster.scratch())?;
        let directory = cluster.scratch().join("sockets");
        let failed = |cause| BenchError::File { path: directory.clone(), cause };
        std::fs::create_dir(&directory).map_err(failed)?;
        let listener = UnixListener::bind(directory.join("socket")).map_err(failed)?;
        let parent = Parent::start(&TURNS, &program, mib, PAYLOAD_PATH.as_ref())?;
        let seed = cluster.prepare(parent.pid()).await?.seed;
        let client = client::connect(&cluster.nodes()[0].socket).await?;
        Ok(Self { client, listener, directory, _parent: parent, seed, steps, containers: Vec::new(), next: 1 })
    }

    /// Starts as many as are lacking, each of which has taken its first turn.
    pub(super) async fn grow(&mut self, cluster: &mut Cluster, count: usize) -> Result<(), BenchError> {
        while self.containers.len() < count {
            let payload = turns::payload(self.containers.len(), self.steps, &Path::new(INSIDE).join("socket"));
            let wanted = Wanted { bind: Some((&self.directory, INSIDE.as_ref())), ..Wanted::default() };
            let child = cluster.begin(&self.seed, Place::Own, &payload, wanted).await?;
            let connected = tokio::time::timeout(CONNECT_LIMIT, self.listener.accept()).await;
            let (mut stream, _) = connected.map_err(Into::into).and_then(|accepted| accepted).map_err(broken)?;
            let index = stream.read_u64_le().await.map_err(broken)?;
            if index != self.containers.len() as u64 {
                return Err(BenchError::Wrong { wrong: 1, what: "children that connect" });
            }
            let mut container = Container { child, stream };
            container.turn(self.client.clone(), 0).await?;
            self.containers.push(container);
        }
        Ok(())
    }

    /// Has so many take turns for so long, each at least one, with a gap before each; how long it took, and each turn.
    pub(super) async fn run(
        &mut self,
        parallel: usize,
        time: Duration,
        gap: Duration,
    ) -> Result<(Duration, Vec<Turn>), BenchError> {
        let (first, client, began) = (self.next, &self.client, Instant::now());
        let take_turns = async |(index, container): (usize, &mut Container)| {
            let mut turns: Vec<Turn> = Vec::new();
            while turns.is_empty() || began.elapsed() < time {
                tokio::time::sleep(gap).await;
                let number = first + (index + turns.len() * parallel) as u64;
                turns.push(container.turn(client.clone(), number).await?);
            }
            Ok::<_, BenchError>(turns)
        };
        let all = self.containers.iter_mut().take(parallel).enumerate().map(take_turns);
        let turns = future::try_join_all(all).await?.concat();
        let took = began.elapsed();
        self.next += (turns.len() * parallel) as u64;
        turns::check(&turns, self.steps)?;
        Ok((took, turns))
    }

    /// Ends them.
    pub(super) async fn end(self, cluster: &mut Cluster) -> Result<(), BenchError> {
        for container in &self.containers {
            cluster.kill(&container.child).await?;
        }
        cluster.drop_seed(&self.seed).await
    }
}

impl Container {
    /// Of a child that is paused, or has not been so yet.
    async fn turn(&mut self, mut client: Client, number: u64) -> Result<Turn, BenchError> {
        let child = || self.child.clone();
        self.stream.write_all(&number.to_le_bytes()).await.map_err(broken)?;
        let began = Instant::now();
        let request = v1::UnpauseRequest { child: child() };
        client.unpause(client::within(REQUEST_LIMIT, request)).await.map_err(told(child()))?;
        let unpause = began.elapsed();
        let answered = self.stream.read_u64_le().await.map_err(broken)?;
        let value = self.stream.read_u64_le().await.map_err(broken)?;
        let answer = began.elapsed();
        let request = v1::PauseRequest { child: child() };
        client.pause(client::within(REQUEST_LIMIT, request)).await.map_err(told(child()))?;
        Ok(Turn { number: answered, value, unpause, answer, pause: began.elapsed() - answer })
    }
}

fn broken(cause: std::io::Error) -> BenchError {
    BenchError::Program { program: TURNS.name, cause }
}
