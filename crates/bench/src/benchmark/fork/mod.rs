//! `farfork bench fork`: prepare, resume and execution of a process of several sizes, step by step.
//!
//! Seeds are on the first node, children on both nodes. Memory is touched before anything is measured. `plan` has the order
//! of the steps, `steps` takes their samples, and `results` has the tables.

mod plan;
mod results;
mod steps;
mod strategies;

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;

use self::plan::{ForkOperation, ForkStep, RUNS, ResumeCase, SampleQuota, TIME_MAX, TIME_MAX_WITH_PEER, time_share};
use self::strategies::StrategyFigures;
use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::criu::{self, CriuMode};
use crate::baseline::link_copy::LINK_COPY;
use crate::error::BenchError;
use crate::experiment::local_cluster::BenchCluster;
use crate::figure::{ChildPlace, Figure, Pace};
use crate::machine::description;
use crate::machine::source::MachineSource;
use crate::options::{EncryptionOption, SamplesOption, count, size};
use crate::reference;
use crate::samples::FigureSamples;
use crate::workload::micro::{MICRO, Micro, MicroOptions, PAYLOAD_PATH, PageSize, TouchAccess, TouchOrder};

/// Maximum size, in MiB: a terabyte.
const MIB_MAX: u64 = 1 << 20;

/// Maximum number of additional mappings: half of the kernel's default limit for a process (`vm.max_map_count`).
const MAPPINGS_MAX: u64 = 32_768;

/// Memory that a run needs, as a multiple of the parent's size: the parent, the template's copies of its pages, a
/// child, both ends of the link, and the data that one end compares with.
const MEMORY_FACTOR: u64 = 5;

/// Additional memory for the nodes and the machine itself, in MiB.
const MEMORY_BASE_MIB: u64 = 256;

/// Measure prepare, resume and execution of a process of several sizes.
///
/// The benchmark starts two nodes on this machine. For each size it starts a program with that much private memory. It
/// measures these times, back to back and after 150 ms of idleness:
///
/// Prepare: the time to make a seed of the program, and the time for which the program is stopped.
///
/// Resume: the time from the request for a child to the child's first instruction, on the program's own node and on the
/// other node.
///
/// Execution: the time that the child takes to touch each of its pages once. Each child then compares every byte with its
/// parent's memory. A wrong byte fails the run.
///
/// The report has floors next to each figure, measured in the same run. They are fork(2) of the same process, the same
/// touches in it, and the transfer of the same bytes over the same link by two minimal programs. The report also has a
/// published reference, measured on other machines.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench fork                                   all sizes, in less than five minutes
  farfork bench fork --mib 1,64 --runs 5               a first impression, in seconds
  farfork bench fork --only prepare,resume             no touches of pages
  farfork bench fork --write --samples samples.jsonl   write to the pages, and each sample to a file
  farfork bench fork --huge                            memory in huge pages
  farfork bench fork --threads 4 --mappings 150 --first
                                                       first children of a larger program's seeds
  farfork bench fork --threads 4 --mappings 150 --first --foretold
                                                       the same for a program that was prepared and forked before
  farfork bench fork --threads 4 --mappings 150 --first --fresh
                                                       the same for the first seed of a new program each
  farfork bench fork --strategies cow --strategies eager --strategies prefetch,cache
                                                       these strategies too, side by side
  farfork bench fork --peer criu                       CRIU too, in the same run
  farfork bench fork --inventory HOSTS.toml --hosts n1,n2
                                                       on the nodes of two hosts
  farfork bench fork --json                            one JSON document

Exit status: 0 measured, 1 failed, or a child had a wrong byte, 2 wrong usage.")]
pub(crate) struct BenchFork {
    /// Private memory of the program, in MiB. Can be several sizes
    /// [default: 1,4,8,16,32,64,128,256,512,1024].
    #[arg(long, value_name = "MIB,…", value_delimiter = ',', value_parser = size(1..=MIB_MAX))]
    mib: Vec<u64>,
    /// Measure only these operations [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<ForkOperation>,
    /// Number of samples of each figure [default: 20].
    #[arg(long, value_name = "N", value_parser = count(1..=10_000))]
    runs: Option<usize>,
    /// Time for all samples, in seconds. Slow figures get fewer samples, but at least three while time is left
    /// [default: 240, or 200 with --peer].
    #[arg(long, value_name = "SECONDS", value_parser = size(1..=86_400))]
    within: Option<u64>,
    /// Touch the pages from the first to the last [default: in random order].
    #[arg(long)]
    sequential: bool,
    /// Write to the pages [default: read them].
    #[arg(long)]
    write: bool,
    /// Put the program's memory in huge pages of 2 MiB [default: small pages of 4 KiB].
    #[arg(long)]
    huge: bool,
    /// Number of threads of the program. All threads except the first wait.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = size(1..=1024))]
    threads: u64,
    /// Number of additional mappings of the program. The mapping of the touched memory, and the mappings that every program
    /// has, do not count.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = size(0..=MAPPINGS_MAX))]
    mappings: u64,
    /// Measure the resume of the first child of each seed on a node only [default: of later children too].
    ///
    /// For the first child on another node, the node has to fetch the seed's descriptor.
    #[arg(long)]
    first: bool,
    /// Request the first children as users do, on nodes that keep zygotes. Needs --first.
    ///
    /// The nodes had a child of the program's previous seed. So they may make a zygote of this seed before the request.
    #[arg(long, requires = "first")]
    foretold: bool,
    /// Use a new program for each sample, and the first seed of the program. Needs --first. Not with --foretold.
    ///
    /// The nodes keep zygotes. The program's own node may have made a zygote of the seed before the request.
    #[arg(long, requires = "first", conflicts_with = "foretold")]
    fresh: bool,
    /// Measure this strategy of `farfork fork --strategy` too. Can be repeated.
    ///
    /// The benchmark measures a first child and a second child of a seed on the other node, up to five times.
    #[arg(long, value_name = "STRATEGY")]
    strategies: Vec<String>,
    /// Measure another system too: `criu`, which must be installed. It clones the program by dump and restore.
    #[arg(long, value_name = "NAME", value_enum)]
    peer: Option<PeerSystem>,
    #[command(flatten)]
    encryption: EncryptionOption,
    #[command(flatten)]
    samples: SamplesOption,
}

/// Another system that clones processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PeerSystem {
    /// CRIU: dump and restore.
    Criu,
}

/// A program requests a checkpoint of itself: time from the call to its return.
const CHECKPOINT: Figure = Figure::lower("checkpoint", "prepare", "ms");
/// The part of the checkpoint in which the program is stopped.
const CHECKPOINT_PAUSE: Figure = Figure::lower("checkpoint_pause", "pause", "ms");
/// Time that a parent is stopped when another process requests the seed. For a local fork: time of the call of fork(2).
const PAUSE: Figure = Figure::lower("pause", "pause", "ms");
/// Another process requests a seed of the parent: time from the request to the answer.
const PREPARE: Figure = Figure::lower("prepare", "prepare", "ms");
/// The part of prepare that the daemon measures.
const PREPARE_ON_NODE: Figure = Figure::lower("prepare_on_node", "on the node", "ms");
/// Time from the request for a child to the child's first instruction.
const RESUME: Figure = Figure::lower("resume", "resume", "ms");
/// The same for the first child of a seed on the node, as published.
const FIRST_RESUME: Figure = Figure::lower("first_resume", "first child", "ms");
/// Time from the request for a child until the child could report: it has read a clock into its own memory.
const RESUME_SPOKE: Figure = Figure::lower("resume_spoke", "until it could report", "ms");
/// Time from the request for a child to the answer of the node.
const RESUME_ANSWER: Figure = Figure::lower("resume_answer", "until the answer", "ms");
/// Time for a child to touch each page once. For the link: time to transfer the same number of bytes.
const EXECUTION: Figure = Figure::lower("execution", "execution", "ms");
/// As `EXECUTION`, but the child writes to each page, whatever access the parameters select.
const EXECUTION_WRITING: Figure = Figure::lower("execution_writing", "fork(), writing", "ms");
/// Time to copy the same number of bytes within one process: a lower bound for each link.
const MEMORY_COPY: Figure = Figure::lower("memory_copy", "copy in memory", "ms");

/// The parent, the system that was measured, where the child is, and the state before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct ForkCase {
    /// Private memory of the parent, in MiB.
    mib: u64,
    by: ForkSystem,
    /// `None` if the figure has no child or does not depend on its node.
    node: Option<ChildPlace>,
    pace: Pace,
    unit: &'static str,
}

impl ForkCase {
    /// Back to back, without a place of a child.
    fn new(mib: u64, by: ForkSystem) -> Self {
        Self { mib, by, node: None, pace: Pace::BackToBack, unit: "ms" }
    }

    fn with_place(self, node: ChildPlace) -> Self {
        Self { node: Some(node), ..self }
    }

    fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }
}

/// The system that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum ForkSystem {
    Farfork,
    /// A floor: `fork(2)` of the same process.
    LocalFork,
    /// A floor: two minimal programs at the ends of the link between the nodes.
    Link,
    /// A peer: CRIU, which reads all memory from its images before the clone runs.
    CriuEager,
    /// A peer: CRIU, which serves pages as the clone touches them.
    CriuLazy,
}

impl BenchFork {
    fn sizes_mib(&self) -> Vec<u64> {
        let mut sizes = if self.mib.is_empty() { reference::SIZES_MIB.to_vec() } else { self.mib.clone() };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn runs(&self) -> usize {
        self.runs.unwrap_or(RUNS)
    }

    fn time_max(&self) -> Duration {
        let usual = if self.peer.is_some() { TIME_MAX_WITH_PEER } else { TIME_MAX };
        self.within.map_or(usual, Duration::from_secs)
    }

    fn order(&self) -> TouchOrder {
        if self.sequential { TouchOrder::Sequential } else { TouchOrder::Random }
    }

    fn access(&self) -> TouchAccess {
        if self.write { TouchAccess::Write } else { TouchAccess::Read }
    }

    fn page_size(&self) -> PageSize {
        if self.huge { PageSize::Huge } else { PageSize::Small }
    }

    fn resume_case(&self) -> ResumeCase {
        match (self.first, self.foretold, self.fresh) {
            (false, ..) => ResumeCase::Later,
            (true, true, _) => ResumeCase::Speculative,
            (true, false, true) => ResumeCase::Fresh,
            (true, false, false) => ResumeCase::First,
        }
    }

    /// Whether an operation is measured.
    fn measures(&self, operation: ForkOperation) -> bool {
        self.only.is_empty() || self.only.contains(&operation)
    }

    /// The options of each measured program.
    fn micro_options(&self) -> MicroOptions {
        let (order, access, page_size) = (self.order(), self.access(), self.page_size());
        MicroOptions { order, access, page_size, threads: self.threads, mappings: self.mappings }
    }
}

impl Benchmark for BenchFork {
    const COMMAND: &'static str = "bench fork";
    const HOSTS_REFUSAL: Option<&'static str> = None;

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        match (run.machines.hosts(), self.peer) {
            // The hosts have other memory than this machine.
            (Some(_), None) => {}
            (Some(_), Some(PeerSystem::Criu)) => {
                let reason = "the benchmark looks for it on this machine; omit --peer";
                return Err(BenchError::NotOnHosts { part: "CRIU", reason });
            }
            (None, _) => require_memory(self)?,
        }
        let (peers, notes) = usable_peer_modes(self).await?;
        let began = Instant::now();
        let samples = FigureSamples::create(&self.samples)?;
        let steps = ForkStep::all_steps(self, &peers);
        run.expect_steps(steps.len());
        run.show("starting two nodes")?;
        let mut fork_run = ForkRun::start(self, &run.machines, samples).await?;
        fork_run.notes = fork_run.cluster.clock_notes().into_iter().chain(notes).collect();
        fork_run.measure_all(&steps, run).await?;
        let ForkRun { cluster, samples, notes, strategies, .. } = fork_run;
        cluster.stop()?;
        Ok(self.results(&samples, &strategies, notes, began.elapsed()))
    }
}

/// A run in progress.
#[derive(Debug)]
struct ForkRun<'a> {
    plan: &'a BenchFork,
    cluster: BenchCluster,
    samples: FigureSamples<ForkCase>,
    strategies: Vec<StrategyFigures>,
    notes: Vec<String>,
}

/// A measured parent, and its seed.
#[derive(Debug)]
struct ForkSubject {
    mib: u64,
    parent: Micro,
    /// Used by all steps that need no new seed; `None` before the first of them.
    seed: Option<String>,
    /// Another parent, which CRIU clones.
    criu: Option<criu::CriuSubject>,
}

impl<'a> ForkRun<'a> {
    async fn start(
        plan: &'a BenchFork,
        source: &MachineSource,
        samples: FigureSamples<ForkCase>,
    ) -> Result<Self, BenchError> {
        let cluster = match plan.resume_case().has_zygotes() {
            false => BenchCluster::start(source, plan.encryption.encrypted).await?,
            true => BenchCluster::start_nodes(source, 2, plan.encryption.encrypted, &[]).await?,
        };
        cluster.install(&MICRO)?;
        cluster.nodes().iter().try_for_each(|node| LINK_COPY.install(node.machine()))?;
        let (strategies, notes) = Default::default();
        let fork_run = Self { plan, cluster, samples, strategies, notes };
        fork_run.warm_up()?;
        Ok(fork_run)
    }

    /// Touches as much memory as the largest size needs. The first touch of memory that a hypervisor has not yet given
    /// to this machine takes much longer than later ones.
    fn warm_up(&self) -> Result<(), BenchError> {
        let largest = self.plan.sizes_mib().into_iter().max().unwrap_or(0);
        self.start_micro(largest * (MEMORY_FACTOR - 1)).map(drop)
    }

    async fn measure_all(&mut self, steps: &[ForkStep], run: &BenchRun) -> Result<(), BenchError> {
        let end = Instant::now() + self.plan.time_max();
        let mut fork_subject: Option<ForkSubject> = None;
        for (done, step) in steps.iter().enumerate() {
            run.show(format!("a process of {} MiB", step.mib))?;
            self.cluster.reconnect().await?;
            let is_next_size = fork_subject.as_ref().is_none_or(|fork_subject| fork_subject.mib != step.mib);
            if is_next_size {
                // Free the memory of the previous size before the next one is allocated.
                self.finish(fork_subject.take()).await?;
                fork_subject = Some(self.start_subject(step.mib)?);
            }
            let fork_subject = fork_subject.as_mut().expect("made above");
            if is_next_size {
                let figures = self.sample_strategies(fork_subject).await?;
                self.strategies.extend(figures);
            }
            let left = end.saturating_duration_since(Instant::now());
            let deadline = Instant::now() + time_share(&steps[done..], self.plan.runs(), left);
            let quota = SampleQuota::new(step.runs_min(left), self.plan.runs(), deadline);
            self.run_step(step.kind, fork_subject, quota).await?;
            run.complete_step();
        }
        self.finish(fork_subject).await
    }

    fn start_subject(&self, mib: u64) -> Result<ForkSubject, BenchError> {
        Ok(ForkSubject { mib, parent: self.start_micro(mib)?, seed: None, criu: None })
    }

    fn start_micro(&self, mib: u64) -> Result<Micro, BenchError> {
        let node = &self.cluster.nodes()[0];
        Micro::start(node.machine(), mib, self.plan.micro_options(), PAYLOAD_PATH.as_ref(), Some(&node.socket))
    }

    async fn finish(&mut self, fork_subject: Option<ForkSubject>) -> Result<(), BenchError> {
        match fork_subject.and_then(|fork_subject| fork_subject.seed) {
            Some(seed) => {
                self.cluster.reconnect().await?;
                self.cluster.drop_seed(&seed).await
            }
            None => Ok(()),
        }
    }
}

/// Returns the modes of the peer that can be measured, and notes for the summary why others cannot.
async fn usable_peer_modes(plan: &BenchFork) -> Result<(Vec<CriuMode>, Vec<String>), BenchError> {
    let Some(PeerSystem::Criu) = plan.peer else {
        return Ok((Vec::new(), Vec::new()));
    };
    Ok(match criu::check_criu().await? {
        None => (vec![CriuMode::Eager, CriuMode::Lazy], Vec::new()),
        Some(reason) => (vec![CriuMode::Eager], vec![format!("CRIU, lazy: not measured: {reason}")]),
    })
}

fn require_memory(plan: &BenchFork) -> Result<(), BenchError> {
    let mib = plan.sizes_mib().into_iter().max().unwrap_or(0);
    description::require_memory(mib, mib * MEMORY_FACTOR + MEMORY_BASE_MIB, "--mib")
}
