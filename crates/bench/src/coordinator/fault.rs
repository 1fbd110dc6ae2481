//! The course of `farfork bench fault`: single faults of a child on another node, back to back and after idleness, alone and
//! beside a stream to another child of that node, in turn with what two bare programs need for the same.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cluster::{Cluster, Wanted};
use crate::baseline::fault::{BareFaults, BareStream, FAULT, Waiting};
use crate::error::BenchError;
use crate::figure::{IDLE, MIB_BYTES, Pace, Place};
use crate::plan::fault::{FaultPlan, Key, Timed};
use crate::progress::{Show, tell};
use crate::report::fault::FaultReport;
use crate::samples::Samples;
use crate::workload::micro::{PAGE_BYTES, PAYLOAD_PATH};
use crate::workload::parent::Parent;
use crate::workload::single::{self, SINGLE};

/// Memory of the parent of the children that fault, in MiB: pages far from each other.
const MEMORY_MIB: u64 = 64;

/// Memory of each of several that stream side by side, in MiB: enough that none is done before the last has begun.
const STREAMED_MIB: u64 = 64;

/// Between two faults back to back: who thinks for so long does not scan memory, and the machine is still awake.
const GAP: Duration = Duration::from_micros(100);

/// Beside a stream no fault follows the one before at once, or it would be a stream of its own.
const GAP_BESIDE: Duration = Duration::from_millis(1);

/// Measures. `show` may end it before a step. `farfork` is the program whose `node` command the daemons are.
///
/// # Errors
/// What ended it early.
pub async fn run_fault(plan: &FaultPlan, farfork: PathBuf, show: Show<'_>) -> Result<FaultReport, BenchError> {
    let samples = Samples::written_to(plan.samples_file.as_deref())?;
    let cluster = Cluster::start(farfork, plan.encrypted).await?;
    let (program, payload) = (SINGLE.install(cluster.scratch())?, PAYLOAD_PATH.as_ref());
    let parents = [MEMORY_MIB, plan.stream_mib].map(|mib| Parent::start(&SINGLE, &program, mib, payload));
    let [parent, streamed] = parents;
    let (parent, streamed) = (parent?, streamed?);
    let streams = Streams::start(plan, &program)?;
    let floor = FAULT.install(cluster.scratch())?;
    let mut course = Course { plan, cluster, samples, seed: String::new(), stream_seed: String::new() };
    course.seed = course.cluster.prepare(parent.pid()).await?.seed;
    course.stream_seed = course.cluster.prepare(streamed.pid()).await?.seed;
    let mut done = 0;
    let steps = STEPS.into_iter().filter(|step| plan.streams > 0 || !matches!(step, Step::Streams));
    let steps: Vec<Step> = steps.collect();
    for _ in 0..plan.runs {
        for step in steps.iter().copied() {
            tell(show, done, plan.runs * steps.len(), step.text())?;
            match step {
                Step::Alone => course.alone().await?,
                Step::BesideStream => course.beside_stream().await?,
                Step::Streams => course.streams(&streams).await?,
                Step::Bare(waiting) => course.bare(&floor, waiting)?,
                Step::BareBesideStream => course.bare_beside_stream(&floor)?,
            }
            done += 1;
        }
    }
    course.samples.flush()?;
    course.cluster.end()?;
    Ok(FaultReport::new(plan, course.samples))
}

/// What is measured in turn.
#[derive(Debug, Clone, Copy)]
enum Step {
    Alone,
    BesideStream,
    Bare(Waiting),
    BareBesideStream,
    Streams,
}

const STEPS: [Step; 6] = [
    Step::Alone,
    Step::Bare(Waiting::Sleep),
    Step::Bare(Waiting::Spin),
    Step::BesideStream,
    Step::BareBesideStream,
    Step::Streams,
];

impl Step {
    fn text(self) -> &'static str {
        match self {
            Self::Alone => "faults of a child",
            Self::BesideStream => "faults beside a stream",
            Self::Streams => "streams side by side",
            Self::Bare(Waiting::Sleep) => "bare programs that sleep",
            Self::Bare(Waiting::Spin) => "bare programs that spin",
            Self::BareBesideStream => "bare programs beside a stream",
        }
    }
}

struct Course<'a> {
    plan: &'a FaultPlan,
    cluster: Cluster,
    samples: Samples<Key>,
    seed: String,
    stream_seed: String,
}

impl Course<'_> {
    fn add(&mut self, timed: Timed, pace: Pace, us: impl IntoIterator<Item = f64>) -> Result<(), BenchError> {
        us.into_iter().try_for_each(|us| self.samples.add(Key { timed, pace }, us))
    }

    /// The touches of one child, each of which is a fault for one page.
    async fn touches(&mut self, count: usize, gap: Duration) -> Result<Vec<f64>, BenchError> {
        let wanted = Wanted { strategy: "cow,first", ..Wanted::default() };
        let payload = single::payload(count, gap);
        let child = self.cluster.fork_as(&self.seed, Place::Other, &payload, wanted).await?;
        single::touches_us(&child.said)
    }

    async fn alone(&mut self) -> Result<(), BenchError> {
        let us = self.touches(self.plan.faults, GAP).await?;
        self.add(Timed::Farfork, Pace::BackToBack, us)?;
        let us = self.touches(self.plan.idle_faults, IDLE).await?;
        self.add(Timed::Farfork, Pace::Idle, us)
    }

    /// A child that never runs takes all of its memory meanwhile. Where the stream ends too early, nothing is counted.
    async fn beside_stream(&mut self) -> Result<(), BenchError> {
        let began = Instant::now();
        let streaming = self.cluster.start_streaming(&self.stream_seed, Place::Other).await?;
        let us = self.touches(self.plan.faults, GAP_BESIDE).await?;
        let took = began.elapsed();
        let left_mib = self.cluster.end_streaming(streaming).await? as f64 / MIB_BYTES;
        if left_mib > 0.0 {
            self.add(Timed::BesideStream, Pace::BackToBack, us)?;
            let came_mib = (self.plan.stream_mib as f64 - left_mib).max(0.0);
            self.add(Timed::StreamBeside, Pace::BackToBack, [came_mib / took.as_secs_f64()])?;
        }
        Ok(())
    }

    /// Children of several seeds that never run take all of their memory, all from the same moment on. Each has its seed for this
    /// once: what one leaves behind on its node, the next would find.
    async fn streams(&mut self, streams: &Streams) -> Result<(), BenchError> {
        let mut seeds = Vec::new();
        for parent in &streams.0 {
            seeds.push(self.cluster.prepare(parent.pid()).await?.seed);
        }
        let took = self.cluster.stream_all(&seeds, Place::Other).await?;
        for seed in &seeds {
            self.cluster.drop_seed(seed).await?;
        }
        let us: Vec<f64> = took.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        let mean = us.iter().sum::<f64>() / us.len() as f64;
        let slowest = us.iter().copied().fold(0.0, f64::max);
        self.add(Timed::Stream, Pace::BackToBack, us)?;
        self.add(Timed::SlowestStream, Pace::BackToBack, [slowest / mean])
    }

    fn bare(&mut self, program: &Path, waiting: Waiting) -> Result<(), BenchError> {
        let mut bare = BareFaults::open(program, self.cluster.nodes(), waiting)?;
        for (pace, count, gap) in [(Pace::BackToBack, self.plan.faults, GAP), (Pace::Idle, self.plan.idle_faults, IDLE)]
        {
            let served = bare.serve(count, gap)?;
            self.add(Timed::BareTouch { waiting }, pace, served.iter().map(|one| one.touch_us))?;
            self.add(Timed::Floor { waiting }, pace, served.iter().map(|one| one.exchange_us + one.copy_us))?;
        }
        Ok(())
    }

    fn bare_beside_stream(&mut self, program: &Path) -> Result<(), BenchError> {
        let nodes = self.cluster.nodes();
        let (mut stream, mut bare) =
            (BareStream::open(program, nodes)?, BareFaults::open(program, nodes, Waiting::Sleep)?);
        let (began, pages) = (Instant::now(), stream.pages()?);
        let served = bare.serve(self.plan.faults, GAP_BESIDE)?;
        let mib = (stream.pages()? - pages) as f64 * PAGE_BYTES as f64 / MIB_BYTES;
        let pace = Pace::BackToBack;
        self.add(Timed::BareStreamBeside, pace, [mib / began.elapsed().as_secs_f64()])?;
        self.add(Timed::BareBesideStream, pace, served.iter().map(|one| one.touch_us))?;
        self.add(Timed::FloorBesideStream, pace, served.iter().map(|one| one.exchange_us + one.copy_us))
    }
}

/// Parents whose memory is streamed at the same time.
struct Streams(Vec<Parent>);

impl Streams {
    fn start(plan: &FaultPlan, program: &Path) -> Result<Self, BenchError> {
        let start = |_| Parent::start(&SINGLE, program, STREAMED_MIB, PAYLOAD_PATH.as_ref());
        (0..plan.streams).map(start).collect::<Result<_, _>>().map(Self)
    }
}
