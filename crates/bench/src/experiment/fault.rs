//! Runs `farfork bench fault`: single page faults of a child on another node, back to back and after idle time, alone
//! and during a stream to another child of that node. They run in turn with the same faults by two minimal programs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::local_cluster::{BenchCluster, ForkOptions};
use crate::baseline::fault::{BareFaults, BareStream, FAULT, WaitMode};
use crate::error::BenchError;
use crate::figure::{ChildPlace, IDLE, MIB_BYTES, Pace};
use crate::parameters::fault::{FaultParameters, FaultSampleKey, FaultSeries};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::fault::FaultSummary;
use crate::workload::micro::{PAGE_BYTES, PAYLOAD_PATH};
use crate::workload::page_touch::{self, PAGE_TOUCH};
use crate::workload::parent::ParentProgram;

/// Memory of the parent whose children fault, in MiB: room for pages that are far apart.
const MEMORY_MIB: u64 = 64;

/// Memory of each of several concurrent streams, in MiB: enough that none ends before the last has begun.
const STREAMED_MIB: u64 = 64;

/// Time between two back-to-back faults: longer than in a scan of memory, but so short that CPUs do not enter deep
/// sleep states.
const GAP: Duration = Duration::from_micros(100);

/// Time between two faults during a stream. With a shorter time, the faults themselves would load the link like a
/// stream.
const GAP_NEXT_TO_STREAM: Duration = Duration::from_millis(1);

/// Runs the benchmark. `show` may end it before a step. `farfork` is the program that runs the daemons.
///
/// # Errors
/// The run ends early.
pub async fn run_fault(
    plan: &FaultParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<FaultSummary, BenchError> {
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let cluster = BenchCluster::start(farfork, plan.encrypted).await?;
    let (program, payload) = (PAGE_TOUCH.install(cluster.scratch())?, PAYLOAD_PATH.as_ref());
    let parents = [MEMORY_MIB, plan.stream_mib].map(|mib| ParentProgram::start(&PAGE_TOUCH, &program, mib, payload));
    let [parent, streamed] = parents;
    let (parent, streamed) = (parent?, streamed?);
    let streams = StreamParents::start(plan, &program)?;
    let floor = FAULT.install(cluster.scratch())?;
    let mut fault_run = FaultRun { plan, cluster, samples, seed: String::new(), stream_seed: String::new() };
    fault_run.seed = fault_run.cluster.prepare(parent.pid()).await?.seed;
    fault_run.stream_seed = fault_run.cluster.prepare(streamed.pid()).await?.seed;
    let mut done = 0;
    let steps = STEPS.into_iter().filter(|step| plan.streams > 0 || !matches!(step, FaultStep::Streams));
    let steps: Vec<FaultStep> = steps.collect();
    for _ in 0..plan.runs {
        for step in steps.iter().copied() {
            report_progress(show, done, plan.runs * steps.len(), step.text())?;
            match step {
                FaultStep::Alone => fault_run.measure_alone().await?,
                FaultStep::BesideStream => fault_run.measure_next_to_stream().await?,
                FaultStep::Streams => fault_run.measure_streams(&streams).await?,
                FaultStep::Bare(waiting) => fault_run.measure_bare(&floor, waiting)?,
                FaultStep::BareBesideStream => fault_run.measure_bare_next_to_stream(&floor)?,
            }
            done += 1;
        }
    }
    fault_run.samples.flush()?;
    fault_run.cluster.stop()?;
    Ok(FaultSummary::new(plan, fault_run.samples))
}

/// The measurements, in turn.
#[derive(Debug, Clone, Copy)]
enum FaultStep {
    Alone,
    BesideStream,
    Bare(WaitMode),
    BareBesideStream,
    Streams,
}

const STEPS: [FaultStep; 6] = [
    FaultStep::Alone,
    FaultStep::Bare(WaitMode::Sleep),
    FaultStep::Bare(WaitMode::Spin),
    FaultStep::BesideStream,
    FaultStep::BareBesideStream,
    FaultStep::Streams,
];

impl FaultStep {
    fn text(self) -> &'static str {
        match self {
            Self::Alone => "faults of a child",
            Self::BesideStream => "faults during a stream",
            Self::Streams => "concurrent streams",
            Self::Bare(WaitMode::Sleep) => "bare programs that sleep",
            Self::Bare(WaitMode::Spin) => "bare programs that spin",
            Self::BareBesideStream => "bare programs during a stream",
        }
    }
}

struct FaultRun<'a> {
    plan: &'a FaultParameters,
    cluster: BenchCluster,
    samples: Samples<FaultSampleKey>,
    seed: String,
    stream_seed: String,
}

impl FaultRun<'_> {
    fn add(&mut self, timed: FaultSeries, pace: Pace, us: impl IntoIterator<Item = f64>) -> Result<(), BenchError> {
        us.into_iter().try_for_each(|us| self.samples.add(FaultSampleKey { series: timed, pace }, us))
    }

    /// Returns the times of one child's touches. Each touch faults on one page.
    async fn measure_touches(&mut self, count: usize, gap: Duration) -> Result<Vec<f64>, BenchError> {
        let wanted = ForkOptions { strategy: "cow,first", ..ForkOptions::default() };
        let payload = page_touch::payload(count, gap);
        let child = self.cluster.fork_with(&self.seed, ChildPlace::Other, &payload, wanted).await?;
        page_touch::parse_touches_us(&child.output)
    }

    async fn measure_alone(&mut self) -> Result<(), BenchError> {
        let us = self.measure_touches(self.plan.faults, GAP).await?;
        self.add(FaultSeries::Farfork, Pace::BackToBack, us)?;
        let us = self.measure_touches(self.plan.idle_faults, IDLE).await?;
        self.add(FaultSeries::Farfork, Pace::Idle, us)
    }

    /// Measures touches while a paused child fetches all of its memory. If that stream ends before the touches, their
    /// samples are discarded.
    async fn measure_next_to_stream(&mut self) -> Result<(), BenchError> {
        let began = Instant::now();
        let streaming = self.cluster.start_settling(&self.stream_seed, ChildPlace::Other).await?;
        let us = self.measure_touches(self.plan.faults, GAP_NEXT_TO_STREAM).await?;
        let took = began.elapsed();
        let left_mib = self.cluster.end_settling(streaming).await? as f64 / MIB_BYTES;
        if left_mib > 0.0 {
            self.add(FaultSeries::BesideStream, Pace::BackToBack, us)?;
            let fetched_mib = (self.plan.stream_mib as f64 - left_mib).max(0.0);
            self.add(FaultSeries::StreamBeside, Pace::BackToBack, [fetched_mib / took.as_secs_f64()])?;
        }
        Ok(())
    }

    /// Makes paused children of several seeds fetch all of their memory, starting at the same time. Each seed is used
    /// once, because the pages that a child leaves in the node's page cache would serve the next child.
    async fn measure_streams(&mut self, streams: &StreamParents) -> Result<(), BenchError> {
        let mut seeds = Vec::new();
        for parent in &streams.0 {
            seeds.push(self.cluster.prepare(parent.pid()).await?.seed);
        }
        let took = self.cluster.settle_concurrently(&seeds, ChildPlace::Other).await?;
        for seed in &seeds {
            self.cluster.drop_seed(seed).await?;
        }
        let us: Vec<f64> = took.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        let mean = us.iter().sum::<f64>() / us.len() as f64;
        let slowest = us.iter().copied().fold(0.0, f64::max);
        self.add(FaultSeries::Stream, Pace::BackToBack, us)?;
        self.add(FaultSeries::SlowestStream, Pace::BackToBack, [slowest / mean])
    }

    fn measure_bare(&mut self, program: &Path, waiting: WaitMode) -> Result<(), BenchError> {
        let mut bare = BareFaults::open(program, self.cluster.nodes(), waiting)?;
        for (pace, count, gap) in [(Pace::BackToBack, self.plan.faults, GAP), (Pace::Idle, self.plan.idle_faults, IDLE)]
        {
            let served = bare.measure(count, gap)?;
            self.add(FaultSeries::BareTouch { waiting }, pace, served.iter().map(|one| one.touch_us))?;
            self.add(FaultSeries::Floor { waiting }, pace, served.iter().map(|one| one.exchange_us + one.copy_us))?;
        }
        Ok(())
    }

    fn measure_bare_next_to_stream(&mut self, program: &Path) -> Result<(), BenchError> {
        let nodes = self.cluster.nodes();
        let (mut stream, mut bare) =
            (BareStream::open(program, nodes)?, BareFaults::open(program, nodes, WaitMode::Sleep)?);
        let (began, pages) = (Instant::now(), stream.read_pages()?);
        let served = bare.measure(self.plan.faults, GAP_NEXT_TO_STREAM)?;
        let mib = (stream.read_pages()? - pages) as f64 * PAGE_BYTES as f64 / MIB_BYTES;
        let pace = Pace::BackToBack;
        self.add(FaultSeries::BareStreamBeside, pace, [mib / began.elapsed().as_secs_f64()])?;
        self.add(FaultSeries::BareBesideStream, pace, served.iter().map(|one| one.touch_us))?;
        self.add(FaultSeries::FloorBesideStream, pace, served.iter().map(|one| one.exchange_us + one.copy_us))
    }
}

/// Parents whose memory is streamed at the same time.
struct StreamParents(Vec<ParentProgram>);

impl StreamParents {
    fn start(plan: &FaultParameters, program: &Path) -> Result<Self, BenchError> {
        let start = |_| ParentProgram::start(&PAGE_TOUCH, program, STREAMED_MIB, PAYLOAD_PATH.as_ref());
        (0..plan.streams).map(start).collect::<Result<_, _>>().map(Self)
    }
}
