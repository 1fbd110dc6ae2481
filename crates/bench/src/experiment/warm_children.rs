//! Children that are paused between two requests. For each request a child is unpaused, its function answers, and it is
//! paused again. Several children run in parallel.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_api::child_freezer::ChildFreezer;
use farfork_api::client::{self, Client};
use farfork_api::v1;
use futures_util::future;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::local_cluster::{BenchCluster, ForkOptions};
use super::node_client::request_failure;
use crate::error::BenchError;
use crate::figure::ChildPlace;
use crate::workload::functions::FunctionParent;
use crate::workload::warm_function::{FAILED_CALL, FAILURE_BYTES_MAX, FunctionRun, WARM_FUNCTION, WarmParent};

/// The directory with the socket, as a path inside the children.
const SOCKET_DIR: &str = "/run/turns";

/// Time limit of each request to a node.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for the error text of a child that has ended.
const FAILURE_LIMIT: Duration = Duration::from_secs(1);

/// Time limit for a child to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// The paused children of one parent, on one node.
#[derive(Debug)]
pub(super) struct WarmChildren {
    client: Client,
    listener: UnixListener,
    directory: PathBuf,
    parent: WarmParent,
    seed: String,
    children: Vec<PausedChild>,
    /// The number of the next request.
    next: u64,
}

/// One child, paused between requests.
#[derive(Debug)]
struct PausedChild {
    child: String,
    stream: UnixStream,
    /// Time limit of each answer; `None` for no limit.
    answer_limit: Option<Duration>,
    /// `None` if the node has no cgroup freezer of version 2.
    freezer: Option<Arc<ChildFreezer>>,
}

impl WarmChildren {
    /// Makes the seed of the children. Takes over the parent.
    pub(super) async fn start(cluster: &mut BenchCluster, parent: WarmParent) -> Result<Self, BenchError> {
        let directory = cluster.machine().scratch().join(format!("sockets-{}", parent.program.pid()));
        let failed = |cause| BenchError::File { path: directory.clone(), cause };
        std::fs::create_dir(&directory).map_err(failed)?;
        let listener = UnixListener::bind(directory.join("socket")).map_err(failed)?;
        let seed = cluster.prepare(parent.program.pid()).await?.seed;
        let client = cluster.nodes()[0].connect().await?.client().clone();
        Ok(Self { client, listener, directory, parent, seed, children: Vec::new(), next: 1 })
    }

    /// The parent's function, if it has one.
    pub(super) fn function(&mut self) -> Option<&mut FunctionParent> {
        self.parent.program.function()
    }

    /// Starts the missing children. Each takes its first turn.
    pub(super) async fn ensure_children(&mut self, cluster: &mut BenchCluster, count: usize) -> Result<(), BenchError> {
        while self.children.len() < count {
            let payload = self.parent.payload(self.children.len(), &Path::new(SOCKET_DIR).join("socket"));
            let wanted = ForkOptions { bind: Some((&self.directory, SOCKET_DIR.as_ref())), ..ForkOptions::default() };
            let child = cluster.start_child(&self.seed, ChildPlace::Own, &payload, wanted).await?;
            let connected = tokio::time::timeout(CONNECT_LIMIT, self.listener.accept()).await;
            let (mut stream, _) = connected.map_err(Into::into).and_then(|accepted| accepted).map_err(socket_error)?;
            let index = stream.read_u64_le().await.map_err(socket_error)?;
            if index != self.children.len() as u64 {
                return Err(BenchError::WrongMemory { count: 1, what: "indexes of connected children" });
            }
            let freezer = ChildFreezer::open(&mut self.client, &child).await.ok().map(Arc::new);
            let answer_limit = self.function().map(|function| function.answer_limit());
            let mut container = PausedChild { child, stream, answer_limit, freezer };
            container.run_function(self.client.clone(), 0).await?;
            self.children.push(container);
        }
        Ok(())
    }

    /// Makes `parallel` children work concurrently for `time`. Each runs turns one after the other, at least one, with
    /// a gap before each. Returns the elapsed time and all turns.
    pub(super) async fn run(
        &mut self,
        parallel: usize,
        time: Duration,
        gap: Duration,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        let (first, client, began) = (self.next, &self.client, Instant::now());
        let take_turns = async |(index, container): (usize, &mut PausedChild)| {
            let mut turns: Vec<FunctionRun> = Vec::new();
            while turns.is_empty() || began.elapsed() < time {
                tokio::time::sleep(gap).await;
                let number = first + (index + turns.len() * parallel) as u64;
                turns.push(container.run_function(client.clone(), number).await?);
            }
            Ok::<_, BenchError>(turns)
        };
        let all = self.children.iter_mut().take(parallel).enumerate().map(take_turns);
        let turns = future::try_join_all(all).await?.concat();
        let took = began.elapsed();
        self.next += (turns.len() * parallel) as u64;
        self.parent.expected.check(&turns)?;
        Ok((took, turns))
    }

    /// As `run`, but with the children's cgroup freezers, and a thread for each child. Returns no turns if the node has
    /// no freezer of version 2. If the returned future is dropped, the threads end with the children.
    pub(super) async fn run_with_handles(
        &mut self,
        parallel: usize,
        time: Duration,
        gap: Duration,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        let (first, began) = (self.next, Instant::now());
        let take_turns = move |index: usize, freezer: &ChildFreezer, stream: &mut BlockingStream| {
            let mut turns: Vec<FunctionRun> = Vec::new();
            while turns.is_empty() || began.elapsed() < time {
                thread::sleep(gap);
                let number = first + (index + turns.len() * parallel) as u64;
                turns.push(run_with_handle(freezer, stream, number)?);
            }
            stream.set_nonblocking(true).map_err(socket_error)?;
            Ok::<_, BenchError>(turns)
        };
        let mut threads = Vec::new();
        for (index, child) in self.children.iter().take(parallel).enumerate() {
            let Some(freezer) = child.freezer.clone() else { continue };
            let mut stream = child.blocking_stream()?;
            threads.push(tokio::task::spawn_blocking(move || take_turns(index, &freezer, &mut stream)));
        }
        let ended = future::join_all(threads).await.into_iter();
        let turns = ended.map(|turns| turns.expect("a turn does not panic")).collect::<Result<Vec<_>, BenchError>>()?;
        let (took, turns) = (began.elapsed(), turns.concat());
        self.next += (turns.len() * parallel) as u64;
        self.parent.expected.check(&turns)?;
        Ok((took, turns))
    }

    /// Kills the children, and drops their seed.
    pub(super) async fn stop(self, cluster: &mut BenchCluster) -> Result<(), BenchError> {
        for container in &self.children {
            cluster.kill(&container.child).await?;
        }
        cluster.drop_seed(&self.seed).await
    }
}

impl PausedChild {
    /// Duplicates the child's connection, and makes it blocking. O_NONBLOCK is common to both descriptors, so the
    /// caller must set it again afterwards.
    fn blocking_stream(&self) -> Result<BlockingStream, BenchError> {
        let stream = BlockingStream::from(self.stream.as_fd().try_clone_to_owned().map_err(socket_error)?);
        stream.set_nonblocking(false).map_err(socket_error)?;
        stream.set_read_timeout(self.answer_limit).map_err(socket_error)?;
        Ok(stream)
    }

    /// Runs one turn of a child that is paused or was never paused.
    async fn run_function(&mut self, client: Client, number: u64) -> Result<FunctionRun, BenchError> {
        match self.request_run(client, number).await {
            // The node refuses to unpause or pause a child that has ended. The child may have sent the cause.
            Err(BenchError::Request(refused)) => {
                let read = tokio::time::timeout(FAILURE_LIMIT, self.read_answer()).await;
                Err(read.ok().and_then(Result::err).unwrap_or(BenchError::Request(refused)))
            }
            run => run,
        }
    }

    async fn request_run(&mut self, mut client: Client, number: u64) -> Result<FunctionRun, BenchError> {
        let child = || self.child.clone();
        self.stream.write_all(&number.to_le_bytes()).await.map_err(socket_error)?;
        let began = Instant::now();
        let request = v1::UnpauseRequest { child: child() };
        client.unpause(client::request_with_timeout(REQUEST_LIMIT, request)).await.map_err(request_failure(child()))?;
        let unpause = began.elapsed();
        let (number, value) = match self.answer_limit {
            None => self.read_answer().await?,
            Some(limit) => {
                let answered = tokio::time::timeout(limit, self.read_answer()).await;
                answered.map_err(|elapsed| socket_error(elapsed.into()))??
            }
        };
        let answer = began.elapsed();
        let request = v1::PauseRequest { child: self.child.clone() };
        let paused = client.pause(client::request_with_timeout(REQUEST_LIMIT, request)).await;
        paused.map_err(request_failure(&self.child))?;
        Ok(FunctionRun { number, value, unpause, answer, pause: began.elapsed() - answer })
    }

    /// Reads the number of a request and its value.
    ///
    /// # Errors
    /// The call failed, or ended the child.
    async fn read_answer(&mut self) -> Result<(u64, u64), BenchError> {
        let number = self.stream.read_u64_le().await.map_err(socket_error)?;
        let value = self.stream.read_u64_le().await.map_err(socket_error)?;
        if number == FAILED_CALL {
            let mut text = Vec::new();
            let mut stream = (&mut self.stream).take(value.min(FAILURE_BYTES_MAX));
            stream.read_to_end(&mut text).await.map_err(socket_error)?;
            return Err(call_failure(&text));
        }
        Ok((number, value))
    }
}

/// Runs one turn of a paused child with its freezer: unpauses the child, and pauses it again after its answer.
fn run_with_handle(
    freezer: &ChildFreezer,
    stream: &mut BlockingStream,
    number: u64,
) -> Result<FunctionRun, BenchError> {
    stream.write_all(&number.to_le_bytes()).map_err(socket_error)?;
    let began = Instant::now();
    freezer.unpause()?;
    let unpause = began.elapsed();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).map_err(socket_error)?;
    let answered = began.elapsed();
    let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().expect("eight bytes"));
    let (number, value) = (word(0), word(8));
    if number == FAILED_CALL {
        let mut text = Vec::new();
        stream.take(value.min(FAILURE_BYTES_MAX)).read_to_end(&mut text).map_err(socket_error)?;
        return Err(call_failure(&text));
    }
    freezer.pause()?;
    let pause = began.elapsed() - answered;
    Ok(FunctionRun { number, value, unpause, answer: answered, pause })
}

/// The error of a call whose child sent this text.
fn call_failure(text: &[u8]) -> BenchError {
    let text = String::from_utf8_lossy(text);
    let why = text.strip_prefix("failed ").unwrap_or(&text).to_owned();
    BenchError::ProgramFailed { program: WARM_FUNCTION.name, why }
}

fn socket_error(cause: std::io::Error) -> BenchError {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    // SO_RCVTIMEO ends read(2) with EAGAIN.
    if matches!(cause.kind(), TimedOut | WouldBlock) {
        let why = "a child of farfork gave no answer in time".to_owned();
        return BenchError::ProgramFailed { program: WARM_FUNCTION.name, why };
    }
    if matches!(cause.kind(), UnexpectedEof | BrokenPipe | ConnectionReset) {
        let why = "a call in a child of farfork ended the process; it may have taken longer than --timeout".to_owned();
        return BenchError::ProgramFailed { program: WARM_FUNCTION.name, why };
    }
    BenchError::Program { program: WARM_FUNCTION.name, cause }
}
