//! `BenchCluster`: nodes, two by default, and the measured requests, which use the API like any client (`timed_client`).

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farfork_api::v1::wait_event::Event;
use farfork_api::v1::{self, exit::How};

use super::node_client::{NodeClient, request_failure, started_child};
use super::nodes::{ClusterNode, RunningNodes, SIGKILL};
use super::timed_client::{TimedAnswer, TimedClient};
use crate::error::{BenchError, ChildEnd};
use crate::figure::ChildPlace;
use crate::machine::Machine;
use crate::machine::program::EmbeddedProgram;
use crate::machine::source::MachineSource;
use crate::scratch::SCRATCH_PARENT;

/// Time limit for a pager's report of a working set, which follows the child's end; and the interval of checks.
const WORKING_SET_LIMIT: Duration = Duration::from_secs(2);
const WORKING_SET_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Nodes, and a client of the first one. The nodes are stopped when this value is dropped.
#[derive(Debug)]
pub(crate) struct BenchCluster {
    client: NodeClient,
    timed: TimedClient,
    pub(crate) running: RunningNodes,
}

/// A seed, and the times of its prepare.
#[derive(Debug)]
pub(crate) struct PreparedSeed {
    pub(crate) seed: String,
    /// The pause of the parent, as the node reports it.
    pub(crate) pause_us: u64,
    /// Time from the received request to the finished seed, as the node reports it.
    pub(crate) node_us: u64,
    /// Time from the sent request to the received answer.
    pub(crate) round_trip: Duration,
}

/// A child, and the times of its start.
#[derive(Debug)]
pub(crate) struct BenchChild {
    id: String,
    /// When the request for the child was sent, in ns since 1970, by the clock of the child's machine.
    pub(crate) sent_unix_ns: i64,
    /// Time from the sent request to the received answer.
    pub(crate) round_trip: Duration,
    /// The child's output; empty before its end.
    pub(crate) output: String,
    /// The phases of its start, with [`ForkOptions::profile`].
    pub(crate) phases: Vec<v1::Phase>,
}

/// Options of a child.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ForkOptions<'a> {
    /// Its paging strategy; empty for the default.
    pub(crate) strategy: &'a str,
    /// Whether it is paused before its first instruction.
    pub(crate) paused: bool,
    /// A directory of this machine to bind, and its path in the child.
    pub(crate) bind: Option<(&'a Path, &'a Path)>,
    /// Whether its node measures the phases of its start.
    pub(crate) profile: bool,
}

/// A paused child that fetches all of its memory.
#[derive(Debug)]
pub(crate) struct SettlingChild {
    child: String,
    progress: tonic::Streaming<v1::SettleProgress>,
}

impl BenchCluster {
    /// Starts two nodes without zygotes. With `encrypted`, memory transfers are encrypted. Nodes of hosts may have zygotes.
    pub(crate) async fn start(source: &MachineSource, encrypted: bool) -> Result<Self, BenchError> {
        // Benchmarks with two nodes measure the restore of a child, not the fork of a zygote.
        let arguments = ["--zygotes", "0"].map(str::to_owned);
        let arguments = if source.hosts().is_some() { &[] } else { &arguments[..] };
        Self::start_nodes(source, 2, encrypted, arguments).await
    }

    /// Starts this many nodes, with additional arguments. On hosts, connects to the nodes that run there.
    ///
    /// # Errors
    /// On hosts: there are too few, a host has no node, or the arguments would change the nodes.
    pub(crate) async fn start_nodes(
        source: &MachineSource,
        nodes: usize,
        encrypted: bool,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let Some(machines) = source.first_hosts(nodes)? else {
            return Self::start_nodes_in(SCRATCH_PARENT.as_ref(), &source.farfork, nodes, encrypted, arguments).await;
        };
        let encryption = (encrypted != source.encrypts_by_default())
            .then(|| format!("--encryption {}", if encrypted { "on" } else { "off" }));
        match arguments.first().cloned().or(encryption) {
            Some(option) => Err(BenchError::OptionOfNodes { option }),
            None => Self::connect(RunningNodes::on_hosts(machines).await?).await,
        }
    }

    async fn connect(running: RunningNodes) -> Result<Self, BenchError> {
        let client = running.connect_when_all_alive(0).await?;
        let timed = TimedClient::of_node(&running.nodes()[0], &client)?;
        Ok(Self { client, timed, running })
    }

    /// Starts nodes whose files are in this directory.
    pub(crate) async fn start_nodes_in(
        parent: &Path,
        farfork: &Path,
        nodes: usize,
        encrypted: bool,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        static CLUSTERS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("bench-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed));
        let running = RunningNodes::start(parent, &name, farfork, nodes, encrypted, arguments)?;
        Self::connect(running).await
    }

    /// The nodes. The first one owns the seeds.
    pub(crate) fn nodes(&self) -> &[ClusterNode] {
        self.running.nodes()
    }

    /// Installs the program of a parent. Its children need it on their own hosts, too.
    pub(crate) fn install(&self, program: &EmbeddedProgram) -> Result<(), BenchError> {
        let is_local = self.machine().name().is_none();
        let machines = self.nodes().iter().take(if is_local { 1 } else { usize::MAX });
        machines.map(ClusterNode::machine).try_for_each(|machine| program.install(machine))
    }

    /// The machine of the first node.
    pub(crate) fn machine(&self) -> &dyn Machine {
        self.nodes()[0].machine()
    }

    /// Reconnects to the first node. Needed after this thread has driven a program for a long time. During that time, the
    /// thread answers no keep-alive probes, so the node closes the connection.
    pub(crate) async fn reconnect(&mut self) -> Result<(), BenchError> {
        self.client = self.running.connect_when_all_alive(0).await?;
        self.timed.reconnect(&self.client);
        Ok(())
    }

    /// Stops the nodes. Returns a sentence for each resource that they have left.
    ///
    /// # Errors
    /// A resource of a node cannot be removed.
    pub(crate) fn stop(mut self) -> Result<Vec<String>, BenchError> {
        Ok(self.running.stop()?)
    }

    /// Makes a seed on the first node.
    pub(crate) async fn prepare(&mut self, pid: u32) -> Result<PreparedSeed, BenchError> {
        let request = v1::PrepareRequest { pid, ..Default::default() };
        let TimedAnswer { round_trip_ns, message: seed, .. } = self.timed.prepare(request).await?;
        let round_trip = Duration::from_nanos(round_trip_ns);
        Ok(PreparedSeed { pause_us: seed.pause_us, node_us: seed.prepare_us, round_trip, seed: seed.id })
    }

    /// Has a seed dropped at the end of the run that a program is about to make, if the nodes continue after the run.
    pub(crate) fn drop_at_end(&mut self, seed: &str) -> Result<(), BenchError> {
        self.timed.drop_at_end(seed)
    }

    /// Drops a seed.
    pub(crate) async fn drop_seed(&mut self, seed: &str) -> Result<(), BenchError> {
        Ok(self.client.drop_seed(seed).await?)
    }

    /// Starts one child, and waits until it has exited with status 0 or 1. A child with wrong pages exits with status 1; its
    /// output has their number.
    pub(crate) async fn fork(
        &mut self,
        seed: &str,
        place: ChildPlace,
        payload: &str,
    ) -> Result<BenchChild, BenchError> {
        // `first` uses no working set, so no sample profits from the pages that earlier children touched.
        self.fork_with(seed, place, payload, ForkOptions { strategy: "first", ..ForkOptions::default() }).await
    }

    /// As `fork`, with options.
    pub(crate) async fn fork_with(
        &mut self,
        seed: &str,
        place: ChildPlace,
        payload: &str,
        wanted: ForkOptions<'_>,
    ) -> Result<BenchChild, BenchError> {
        let child = self.request_child(seed, place, payload, wanted).await?;
        Ok(BenchChild { output: self.wait_output(&child.id).await?, ..child })
    }

    /// As `fork_with`. Also returns the node's details of the child at its end.
    pub(crate) async fn fork_with_detail(
        &mut self,
        seed: &str,
        place: ChildPlace,
        payload: &str,
        wanted: ForkOptions<'_>,
    ) -> Result<(BenchChild, v1::ChildDetail), BenchError> {
        let child = self.request_child(seed, place, payload, wanted).await?;
        let output = self.read_output(&child.id).await?;
        let detail = self.client.inspect_child(&child.id).await?;
        self.client.remove(&child.id).await?;
        Ok((BenchChild { output, ..child }, detail))
    }

    /// Waits until the owner of a seed knows a working set whose size no longer changes. Returns after a time limit if
    /// no report follows.
    pub(crate) async fn wait_for_working_set(&mut self, seed: &str) -> Result<(), BenchError> {
        let give_up = Instant::now() + WORKING_SET_LIMIT;
        let mut last = None;
        while Instant::now() < give_up {
            let Some(v1::inspect_response::Object::Seed(detail)) = self.client.inspect(seed).await? else { break };
            if detail.working_set_bytes > 0 && last == Some(detail.working_set_bytes) {
                break;
            }
            last = Some(detail.working_set_bytes);
            tokio::time::sleep(WORKING_SET_POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Starts a paused child that fetches all of its memory. Returns after the node's first progress report.
    pub(crate) async fn start_settling(&mut self, seed: &str, place: ChildPlace) -> Result<SettlingChild, BenchError> {
        let child =
            self.start_child(seed, place, "none", ForkOptions { paused: true, ..ForkOptions::default() }).await?;
        let progress = self.client.settle(&child).await?;
        Ok(SettlingChild { child, progress })
    }

    /// Starts a paused child of each seed, then makes all of them fetch their memory at the same time. Returns how long
    /// each took, from the common start.
    pub(crate) async fn settle_concurrently(
        &mut self,
        seeds: &[String],
        place: ChildPlace,
    ) -> Result<Vec<Duration>, BenchError> {
        let mut children = Vec::new();
        for seed in seeds {
            // No page is fetched for a paused child before it is settled.
            let wanted = ForkOptions { strategy: "cow,first", paused: true, ..ForkOptions::default() };
            children.push(self.start_child(seed, place, "none", wanted).await?);
        }
        let started_at = Instant::now();
        let settled = children.iter().map(|child| settle_child(self.client.clone(), child));
        let ends = futures_util::future::try_join_all(settled).await?;
        for child in &children {
            self.kill(child).await?;
        }
        Ok(ends.into_iter().map(|end| end.duration_since(started_at)).collect())
    }

    /// Kills a child from [`Self::start_settling`]. Returns how many bytes of its memory were still missing.
    pub(crate) async fn end_settling(&mut self, streaming: SettlingChild) -> Result<u64, BenchError> {
        let SettlingChild { child, progress } = streaming;
        let remote_bytes = self.client.inspect_child(&child).await?.memory.and_then(|memory| memory.remote_bytes);
        drop(progress);
        self.kill(&child).await?;
        Ok(remote_bytes.unwrap_or_default())
    }

    /// Kills a child.
    pub(crate) async fn kill(&mut self, child: &str) -> Result<(), BenchError> {
        self.client.kill(child, SIGKILL).await?;
        // The child ends by a signal, which `wait_output` reports as a failure.
        let _ = self.wait_output(child).await;
        Ok(())
    }

    /// Starts one child, and returns its id.
    pub(crate) async fn start_child(
        &mut self,
        seed: &str,
        place: ChildPlace,
        payload: &str,
        wanted: ForkOptions<'_>,
    ) -> Result<String, BenchError> {
        Ok(self.request_child(seed, place, payload, wanted).await?.id)
    }

    async fn request_child(
        &mut self,
        seed: &str,
        place: ChildPlace,
        payload: &str,
        wanted: ForkOptions<'_>,
    ) -> Result<BenchChild, BenchError> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let bind = wanted.bind.map(|(from, to)| v1::Bind { from: text(from), to: text(to) });
        let options = v1::ChildOptions {
            strategy: wanted.strategy.to_owned(),
            paused: wanted.paused,
            binds: bind.into_iter().collect(),
            ..v1::ChildOptions::default()
        };
        let request = v1::ForkRequest {
            seed: seed.to_owned(),
            nodes: vec![self.node(place).name.clone()],
            count: 1,
            payloads: vec![payload.as_bytes().to_vec()],
            options: Some(options),
            profile: wanted.profile,
            ..Default::default()
        };
        let TimedAnswer { sent_unix_ns, round_trip_ns, message } = self.timed.fork(request).await?;
        let v1::ForkOutcome { result, phases, .. } = message;
        let (id, round_trip) = (started_child(result, seed)?.id, Duration::from_nanos(round_trip_ns));
        let sent_unix_ns = sent_unix_ns + self.node(place).clock.ns;
        Ok(BenchChild { id, sent_unix_ns, round_trip, output: String::new(), phases })
    }

    /// A sentence for each node whose clock may differ from the first one's.
    pub(crate) fn clock_notes(&self) -> Vec<String> {
        let others = self.nodes().iter().skip(1).filter(|node| node.machine().name().is_some());
        let note = |node: &ClusterNode| {
            let [ahead_us, error_us] = [node.clock.ns, node.clock.error_ns].map(|ns| ns as f64 / 1e3);
            let (name, first) = (&node.name, &self.nodes()[0].name);
            format!(
                "The clock of {name} is {ahead_us:.0} ± {error_us:.0} µs ahead of the clock of {first}. Times are corrected."
            )
        };
        others.map(note).collect()
    }

    fn node(&self, place: ChildPlace) -> &ClusterNode {
        match place {
            ChildPlace::Own => &self.nodes()[0],
            ChildPlace::Other => &self.nodes()[1],
        }
    }

    /// The complete output of a child, which is then removed.
    async fn wait_output(&mut self, child: &str) -> Result<String, BenchError> {
        let output = self.read_output(child).await?;
        self.client.remove(child).await?;
        Ok(output)
    }

    /// The complete output of a child.
    async fn read_output(&mut self, child: &str) -> Result<String, BenchError> {
        let mut events = self.client.wait(vec![child.to_owned()]).await?;
        let mut output = Vec::new();
        while let Some(v1::WaitEvent { event, .. }) = events.message().await.map_err(request_failure(child))? {
            match event {
                Some(Event::Stdout(piece)) => output.extend(piece),
                Some(Event::Ended(v1::Child { exit: Some(v1::Exit { how: Some(How::Code(0..=1)), .. }), .. })) => break,
                other => {
                    return Err(BenchError::ChildFailed { child: child.to_owned(), how: ChildEnd::from_event(other) });
                }
            }
        }
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

/// The arguments of a node for the options that have a value.
pub(crate) fn node_arguments(options: &[(&str, Option<u64>)]) -> Vec<String> {
    let arguments = options.iter().filter_map(|(name, value)| Some([(*name).to_owned(), (*value)?.to_string()]));
    arguments.flatten().collect()
}

/// Settles a child. Returns the time at which all of its memory was on its node.
async fn settle_child(mut client: NodeClient, child: &str) -> Result<Instant, BenchError> {
    let mut progress = client.settle(child).await?;
    while let Some(told_now) = progress.message().await.map_err(request_failure(child))? {
        if told_now.is_settled {
            break;
        }
    }
    Ok(Instant::now())
}
