//! `TimedClient`: the requests whose time is a figure. On hosts, a process on the host of the first node sends them:
//! `farfork bench process requester`. So neither the network nor the clock of the coordinator is a part of the figures.
//!
//! The process also drops the seeds of the run when it ends, because the nodes of hosts outlive the run.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_terminal::interrupt::wait_for_interrupt;
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

use super::node_client::NodeClient;
use super::nodes::ClusterNode;
use crate::endpoint::clock::now_unix_ns;
use crate::endpoint::print_line;
use crate::error::BenchError;
use crate::machine::program::RunningProgram;

/// The work of the process, which is also its name in errors.
const REQUESTER: &str = "requester";

/// Requests that wait for the process. The coordinator waits for each answer.
const REQUESTS_QUEUED_MAX: usize = 4;

/// Sends requests to the first node.
#[derive(Debug)]
pub(super) enum TimedClient {
    /// This process does.
    Here(NodeClient),
    /// A process on the host of the node does.
    OnHost(RunningProgram),
}

/// A request. Messages are encoded with protobuf.
#[derive(Debug, Serialize, Deserialize)]
enum TimedRequest {
    /// Make a seed: a `PrepareRequest`. The answer is a `Seed`.
    Prepare(Vec<u8>),
    /// Fork one child: a `ForkRequest`. The answer is a `ForkOutcome`.
    Fork(Vec<u8>),
    /// Drop this seed at the end, if it exists then. The answer is empty.
    Keep(String),
}

/// An answer, and the times of its request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TimedAnswer<T> {
    /// When the request was sent, in ns since 1970.
    pub(super) sent_unix_ns: i64,
    /// Time from the sent request to the received answer, in ns.
    pub(super) round_trip_ns: u64,
    pub(super) message: T,
}

impl TimedClient {
    /// A client of a node, whose connection is `client`.
    pub(super) fn of_node(node: &ClusterNode, client: &NodeClient) -> Result<Self, BenchError> {
        if node.machine().name().is_none() {
            return Ok(Self::Here(client.clone()));
        }
        node.machine().start_process(REQUESTER, REQUESTER, &node.socket).map(Self::OnHost)
    }

    /// Uses another connection for requests that this process sends.
    pub(super) fn reconnect(&mut self, connection: &NodeClient) {
        if let Self::Here(client) = self {
            *client = connection.clone();
        }
    }

    /// Makes a seed.
    pub(super) async fn prepare(&mut self, request: v1::PrepareRequest) -> Result<TimedAnswer<v1::Seed>, BenchError> {
        match self {
            Self::Here(client) => Ok(measure_time(client.prepare(request)).await?),
            Self::OnHost(program) => send(program, &TimedRequest::Prepare(request.encode_to_vec())),
        }
    }

    /// Forks one child. The answer has the child or an error, and the phases of the start.
    pub(super) async fn fork(&mut self, request: v1::ForkRequest) -> Result<TimedAnswer<v1::ForkOutcome>, BenchError> {
        match self {
            Self::Here(client) => Ok(measure_time(client.fork_outcome(request)).await?),
            Self::OnHost(program) => send(program, &TimedRequest::Fork(request.encode_to_vec())),
        }
    }

    /// Makes the nodes of hosts drop a seed after the run that no request of this client has made.
    pub(super) fn drop_at_end(&mut self, seed: &str) -> Result<(), BenchError> {
        match self {
            Self::Here(_) => Ok(()),
            Self::OnHost(program) => send::<v1::DropResponse>(program, &TimedRequest::Keep(seed.to_owned())).map(drop),
        }
    }
}

/// Waits for the answer of a request.
async fn measure_time<T>(request: impl Future<Output = Result<T, Failure>>) -> Result<TimedAnswer<T>, Failure> {
    let (sent, sent_unix_ns) = (Instant::now(), now_unix_ns());
    let message = request.await?;
    let round_trip_ns = sent.elapsed().as_nanos() as u64;
    Ok(TimedAnswer { sent_unix_ns, round_trip_ns, message })
}

/// Sends a request to the process, and waits for the answer.
fn send<T: Message + Default>(
    program: &mut RunningProgram,
    request: &TimedRequest,
) -> Result<TimedAnswer<T>, BenchError> {
    let failed = |cause| BenchError::Program { program: REQUESTER, cause };
    program.send_text(&format!("{}\n", json!(request)))?;
    let line = program.read_line()?;
    let answer: Result<TimedAnswer<Vec<u8>>, Vec<u8>> =
        serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
    match answer {
        Ok(TimedAnswer { sent_unix_ns, round_trip_ns, message }) => {
            let message = T::decode(&message[..]).map_err(|error| failed(io::Error::other(error)))?;
            Ok(TimedAnswer { sent_unix_ns, round_trip_ns, message })
        }
        Err(error) => {
            let error = v1::Error::decode(&error[..]).map_err(|error| failed(io::Error::other(error)))?;
            Err(Failure::from(error).into())
        }
    }
}

/// Sends the requests that it reads to the node whose socket the specification names, and prints the answers. At the end of
/// the input, and after SIGTERM, drops the seeds.
///
/// # Errors
/// The specification is invalid, or standard output failed.
pub(crate) async fn run_requester(specification: &str) -> io::Result<()> {
    let socket: PathBuf = serde_json::from_str(specification)?;
    let mut client = NodeClient::connect(&socket).await.map_err(io::Error::other)?;
    let (sender, mut requests) = mpsc::channel(REQUESTS_QUEUED_MAX);
    // The thread that reads the input ends with the process.
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let mut seeds = BTreeSet::new();
    let mut interrupt = std::pin::pin!(wait_for_interrupt());
    let mut outcome = Ok(());
    while outcome.is_ok() {
        // A request is always completed, so that no seed is forgotten.
        let line = tokio::select! {
            () = &mut interrupt => break,
            line = requests.recv() => line,
        };
        let Some(line) = line else { break };
        let answer = answer(&mut client, serde_json::from_str(&line)?, &mut seeds).await;
        let answer = answer.map_err(|failure| v1::Error::from(failure).encode_to_vec());
        outcome = print_line(&json!(answer).to_string());
    }
    for seed in &seeds {
        // An error means that the seed was dropped before.
        let _ = client.drop_seed(seed).await;
    }
    outcome
}

async fn answer(
    client: &mut NodeClient,
    request: TimedRequest,
    seeds: &mut BTreeSet<String>,
) -> Result<TimedAnswer<Vec<u8>>, Failure> {
    let invalid = |error: prost::DecodeError| Failure::new(tonic::Code::InvalidArgument, REQUESTER, error);
    match request {
        TimedRequest::Prepare(request) => {
            let request = v1::PrepareRequest::decode(&request[..]).map_err(invalid)?;
            let answer = measure_time(client.prepare(request)).await?;
            seeds.insert(answer.message.id.clone());
            Ok(answer.encode())
        }
        TimedRequest::Fork(request) => {
            let request = v1::ForkRequest::decode(&request[..]).map_err(invalid)?;
            Ok(measure_time(client.fork_outcome(request)).await?.encode())
        }
        TimedRequest::Keep(seed) => {
            seeds.insert(seed);
            Ok(TimedAnswer { sent_unix_ns: 0, round_trip_ns: 0, message: Vec::new() })
        }
    }
}

impl<T: Message> TimedAnswer<T> {
    fn encode(&self) -> TimedAnswer<Vec<u8>> {
        let Self { sent_unix_ns, round_trip_ns, ref message } = *self;
        TimedAnswer { sent_unix_ns, round_trip_ns, message: message.encode_to_vec() }
    }
}
