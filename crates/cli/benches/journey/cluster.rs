//! Two nodes on this machine, and the requests that are measured: made through the API, as any client makes them.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalNode};
use farfork_node::api::v1::fork_outcome::Result as Outcome;
use farfork_node::api::v1::wait_event::Event;
use farfork_node::api::v1::{self, exit::How};
use farfork_node::client::{self, Client};
use tempfile::TempDir;

/// The node that has the seeds.
const OWNER: &str = "n1";

/// The node that the children are on.
const TARGET: &str = "n2";

/// Beside the default run directory: what a child costs depends on the file system, too.
const SCRATCH_PARENT: &str = "/run";

/// For the nodes to know each other: a few heartbeats.
const ACQUAINTED_LIMIT: Duration = Duration::from_secs(15);

/// For any one request; a child that touches 1 GiB takes seconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(120);

/// Two nodes; they end with this value.
pub(crate) struct Cluster {
    /// Taken when it ends.
    local: Option<LocalCluster>,
    client: Client,
    /// Paths that children share.
    shared: Vec<String>,
    scratch: TempDir,
}

/// A seed, and how long it took to make it.
pub(crate) struct Prepared {
    pub(crate) seed: String,
    pub(crate) pause_us: f64,
    pub(crate) prepare_us: f64,
    pub(crate) answer_us: f64,
}

/// A child that has ended, and when it did what.
pub(crate) struct Child {
    /// Request sent to first instruction.
    pub(crate) resume_us: f64,
    /// Request sent to the child's own clock_gettime(2).
    pub(crate) spoke_us: f64,
    /// Request received by its node to complete state, as the node tells.
    pub(crate) engine_us: f64,
    /// Request sent to answer received.
    pub(crate) answer_us: f64,
    /// How long it touched its pages; 0 if it was not told to.
    pub(crate) touch_us: f64,
}

impl Cluster {
    /// Starts both nodes with the binary of this build. Children will share these paths of theirs.
    pub(crate) async fn start(shared: Vec<String>) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir_in(SCRATCH_PARENT)?;
        let name = format!("bench-{}", std::process::id());
        let run_dir = scratch.path().join("run");
        let config = LocalClusterConfig::new(&name, run_dir, 2, env!("CARGO_BIN_EXE_farfork"));
        let local = LocalCluster::up(&config, &mut |_| ())?;
        let client = match acquainted(&local.nodes()[0]).await {
            Ok(client) => client,
            Err(error) => {
                local.down()?;
                return Err(error);
            }
        };
        Ok(Self { local: Some(local), client, shared, scratch })
    }

    /// A directory that goes away with the cluster.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Its nodes, the seeds' first.
    pub(crate) fn nodes(&self) -> &[LocalNode] {
        self.local.as_ref().map_or(&[], |local| local.nodes())
    }

    /// Makes a seed.
    pub(crate) async fn prepare(&mut self, pid: u32) -> anyhow::Result<Prepared> {
        let request = v1::PrepareRequest { pid, ..Default::default() };
        let sent = Instant::now();
        let seed = self.client.prepare(client::within(REQUEST_LIMIT, request)).await.map_err(told)?.into_inner();
        let answer_us = sent.elapsed().as_secs_f64() * 1e6;
        Ok(Prepared { pause_us: seed.pause_us as f64, prepare_us: seed.prepare_us as f64, answer_us, seed: seed.id })
    }

    /// Forgets a seed.
    pub(crate) async fn drop_seed(&mut self, seed: &str) -> anyhow::Result<()> {
        let request = v1::DropRequest { seed: seed.to_owned() };
        self.client.drop(client::within(REQUEST_LIMIT, request)).await.map_err(told)?;
        Ok(())
    }

    /// Starts one child on the other node and waits for its end.
    pub(crate) async fn fork(&mut self, seed: &str, payload: &str) -> anyhow::Result<Child> {
        let request = v1::ForkRequest {
            seed: seed.to_owned(),
            nodes: vec![TARGET.to_owned()],
            count: 1,
            payloads: vec![payload.as_bytes().to_vec()],
            options: Some(v1::ChildOptions { shared: self.shared.clone(), ..Default::default() }),
            ..Default::default()
        };
        let (sent, sent_at) = (Instant::now(), SystemTime::now());
        let mut outcomes = self.client.fork(client::within(REQUEST_LIMIT, request)).await.map_err(told)?.into_inner();
        let outcome = outcomes.message().await.map_err(told)?;
        let answer_us = sent.elapsed().as_secs_f64() * 1e6;
        drop(outcomes);
        let child = match outcome.and_then(|outcome| outcome.result).context("the node told of no child")? {
            Outcome::Child(child) => child,
            Outcome::Error(error) => anyhow::bail!("{}: {}", error.object, error.cause),
        };
        let said = self.wait(&child.id).await?;
        let [first_ns, spoke_ns, touch_ns, wrong] = numbers(&said)?;
        anyhow::ensure!(wrong == 0, "{wrong} pages of a child were wrong");
        let sent_ns = sent_at.duration_since(UNIX_EPOCH)?.as_nanos() as i64;
        Ok(Child {
            resume_us: (first_ns - sent_ns) as f64 / 1e3,
            spoke_us: (spoke_ns - sent_ns) as f64 / 1e3,
            engine_us: child.resume_us as f64,
            answer_us,
            touch_us: touch_ns as f64 / 1e3,
        })
    }

    /// What a child wrote until its end, which was a good one. Its node forgets it.
    async fn wait(&mut self, child: &str) -> anyhow::Result<String> {
        let request = v1::WaitRequest { children: vec![child.to_owned()], results: true };
        let mut events = self.client.wait(client::within(REQUEST_LIMIT, request)).await.map_err(told)?.into_inner();
        let mut said = Vec::new();
        while let Some(v1::WaitEvent { event, .. }) = events.message().await.map_err(told)? {
            match event {
                Some(Event::Stdout(piece)) => said.extend(piece),
                Some(Event::Ended(v1::Child { exit: Some(v1::Exit { how: Some(How::Code(0)) }), .. })) => break,
                other => anyhow::bail!("child {child}: {other:?}"),
            }
        }
        let request = v1::RemoveRequest { child: child.to_owned() };
        self.client.remove(client::within(REQUEST_LIMIT, request)).await.map_err(told)?;
        Ok(String::from_utf8(said)?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.local.take().map(LocalCluster::down) {
            eprintln!("the benchmark's cluster is not removed completely: {error}");
        }
    }
}

/// The numbers of a child's line.
fn numbers(said: &str) -> anyhow::Result<[i64; 4]> {
    let parse = || {
        let words = said.trim().strip_prefix("child ")?.split(' ').map(|word| word.parse().ok());
        words.collect::<Option<Vec<i64>>>()?.try_into().ok()
    };
    parse().with_context(|| format!("a child says `{}`", said.trim()))
}

/// A client of a node that hears of the other one.
async fn acquainted(node: &LocalNode) -> anyhow::Result<Client> {
    let mut client = client::connect(&node.socket).await?;
    let give_up = Instant::now() + ACQUAINTED_LIMIT;
    loop {
        let nodes = client.list_nodes(v1::ListNodesRequest {}).await.map_err(told)?.into_inner().nodes;
        if nodes.iter().filter(|node| node.state() == v1::NodeState::Alive).count() == 2 {
            return Ok(client);
        }
        anyhow::ensure!(Instant::now() < give_up, "{OWNER} and {TARGET} do not know each other");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn told(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{}", status.message())
}
