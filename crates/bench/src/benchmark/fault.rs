//! `farfork bench fault`: single page faults of a child on another node, back to back and after idle time, alone and during
//! a stream to another child of that node. They run in turn with the same faults by two minimal programs.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::fault::{BareFaults, BareStream, FAULT, WaitMode};
use crate::error::BenchError;
use crate::experiment::local_cluster::{BenchCluster, ForkOptions};
use crate::figure::{ChildPlace, Figure, IDLE, MIB_BYTES, Pace};
use crate::machine::program::RunningProgram;
use crate::options::{EncryptionOption, SamplesOption, count, size};
use crate::report::number_text::format_value;
use crate::report::plot::{ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::samples::FigureSamples;
use crate::workload::micro::PAGE_BYTES;
use crate::workload::page_touch::{self, PAGE_TOUCH};
use crate::workload::start_parent;

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

/// Measure single page faults: from a touch in a child to the arrival of its parent's page from another node.
///
/// The benchmark starts two nodes on this machine. Children on one node touch pages far from each other, one by one, and
/// report the time of each touch. They do so back to back, after 150 ms of idleness, and while all of another child's memory
/// arrives at the same node. Also, children of several seeds fetch all of their memory at the same time. The report has the
/// time of the slowest child next to the mean.
///
/// Next to each time of a touch, the report has two more figures, measured in turn in the same run. The floor is the time
/// that two minimal programs need to exchange a request for a page over the same link and to map a copy of the page. The
/// other figure is the time of a touch in a thread whose page faults these programs serve. Both are measured alone, and
/// while two more minimal programs transfer pages over that link and map them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench fault                               about half a minute
  farfork bench fault --runs 2 --faults 50          a first impression
  farfork bench fault --encryption off --json --samples samples.jsonl

Exit status: 0 measured, 1 failed or a page was wrong, 2 wrong usage.")]
pub(crate) struct BenchFault {
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=1000))]
    runs: usize,
    /// Number of faults of a round, back to back and again during a stream.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = count(1..=10_000))]
    faults: usize,
    /// Number of faults of a round after idleness.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=10_000))]
    idle_faults: usize,
    /// Memory of the stream that runs during faults, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = size(64..=1 << 20))]
    stream_mib: u64,
    /// Number of children that fetch all of their memory at the same time, once per round; 0 for none.
    ///
    /// Each child has its own seed, of 64 MiB.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count(0..=64))]
    streams: usize,
    #[command(flatten)]
    encryption: EncryptionOption,
    #[command(flatten)]
    samples: SamplesOption,
}

/// Time of a fault, or of a stream.
const TIME: Figure = Figure::lower("time", "time", "µs");
/// Rate of a stream during faults.
const STREAM_RATE: Figure = Figure::higher("rate", "rate", "MiB/s");
/// The longest time of several concurrent streams divided by their mean.
const SLOWEST_RATIO: Figure = Figure::lower("ratio", "the slowest ÷ the mean", "×");

/// The fault that a series of samples measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
enum FaultSeries {
    /// A touch in a child of farfork.
    Farfork,
    /// A touch in a child of farfork, while another child's memory streams to the same node.
    BesideStream,
    /// A touch in a minimal program.
    BareTouch {
        /// How the program waits for data.
        waiting: WaitMode,
    },
    /// Time in which one of several children fetches all of its memory, while the others also fetch theirs.
    Stream,
    /// The longest of the `Stream` times divided by their mean: a ratio, not a time.
    SlowestStream,
    /// The floor: the exchange of a request and a page, and the kernel's copy.
    Floor {
        /// How the program waits for data.
        waiting: WaitMode,
    },
    /// A touch in a minimal program that sleeps, while two others stream pages over the same link and map them.
    BareBesideStream,
    /// The floor of `BareBesideStream`: exchange and copy.
    FloorBesideStream,
    /// The rate of the stream during a child's faults, in MiB/s.
    StreamBeside,
    /// As `StreamBeside`, for the stream of the minimal programs.
    BareStreamBeside,
}

/// The fault, and the state before it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct FaultCase {
    #[serde(flatten)]
    series: FaultSeries,
    pace: Pace,
}

impl FaultCase {
    const fn back_to_back(series: FaultSeries) -> Self {
        Self { series, pace: Pace::BackToBack }
    }
}

/// The floor of faults without a stream.
const SLEEPING_FLOOR: FaultSeries = FaultSeries::Floor { waiting: WaitMode::Sleep };

/// The rows of the table, with their names.
const ROWS: [(FaultSeries, Pace, &str); 12] = [
    (FaultSeries::Farfork, Pace::BackToBack, "a child of farfork"),
    (FaultSeries::Floor { waiting: WaitMode::Sleep }, Pace::BackToBack, "floor: page there and copy, sleeping"),
    (FaultSeries::BareTouch { waiting: WaitMode::Sleep }, Pace::BackToBack, "a bare pager, sleeping"),
    (FaultSeries::Floor { waiting: WaitMode::Spin }, Pace::BackToBack, "floor: page there and copy, spinning"),
    (FaultSeries::BareTouch { waiting: WaitMode::Spin }, Pace::BackToBack, "a bare pager, spinning"),
    (FaultSeries::BesideStream, Pace::BackToBack, "a child of farfork, during a stream"),
    (FaultSeries::FloorBesideStream, Pace::BackToBack, "floor: sleeping, during a bare stream"),
    (FaultSeries::BareBesideStream, Pace::BackToBack, "a bare pager, during a bare stream"),
    (FaultSeries::Farfork, Pace::Idle, "a child of farfork, after idle"),
    (FaultSeries::Floor { waiting: WaitMode::Sleep }, Pace::Idle, "floor: sleeping, after idle"),
    (FaultSeries::BareTouch { waiting: WaitMode::Sleep }, Pace::Idle, "a bare pager, sleeping, after idle"),
    (FaultSeries::BareTouch { waiting: WaitMode::Spin }, Pace::Idle, "a bare pager, spinning, after idle"),
];

/// The lines of a plot.
const PLOTTED: [(&str, SeriesRole, FaultSeries); 4] = [
    ("farfork, alone", SeriesRole::Measured, FaultSeries::Farfork),
    ("farfork, next to a stream", SeriesRole::Measured, FaultSeries::BesideStream),
    ("floor, alone", SeriesRole::Floor, FaultSeries::Floor { waiting: WaitMode::Sleep }),
    ("floor, next to a stream", SeriesRole::Floor, FaultSeries::FloorBesideStream),
];

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

impl Benchmark for BenchFault {
    const COMMAND: &'static str = "bench fault";
    const HOSTS_REFUSAL: Option<&'static str> = None;

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let samples = FigureSamples::create(&self.samples)?;
        let cluster = BenchCluster::start(&run.machines, self.encryption.encrypted).await?;
        cluster.install(&PAGE_TOUCH)?;
        let start = |mib| start_parent(&PAGE_TOUCH, cluster.machine(), mib, None);
        let (parent, streamed) = (start(MEMORY_MIB)?, start(self.stream_mib)?);
        let streams = (0..self.streams).map(|_| start(STREAMED_MIB)).collect::<Result<Vec<_>, _>>()?;
        cluster.nodes().iter().try_for_each(|node| FAULT.install(node.machine()))?;
        let mut faults = FaultRun { plan: self, cluster, samples, seed: String::new(), stream_seed: String::new() };
        faults.seed = faults.cluster.prepare(parent.pid()).await?.seed;
        faults.stream_seed = faults.cluster.prepare(streamed.pid()).await?.seed;
        let steps = STEPS.into_iter().filter(|step| self.streams > 0 || !matches!(step, FaultStep::Streams));
        let steps = steps.collect::<Vec<_>>().repeat(self.runs);
        run.expect_steps(steps.len());
        for step in steps {
            run.show(step.text())?;
            match step {
                FaultStep::Alone => faults.measure_alone().await?,
                FaultStep::BesideStream => faults.measure_next_to_stream().await?,
                FaultStep::Streams => faults.measure_streams(&streams).await?,
                FaultStep::Bare(waiting) => faults.measure_bare(waiting)?,
                FaultStep::BareBesideStream => faults.measure_bare_next_to_stream()?,
            }
            run.complete_step();
        }
        faults.cluster.stop()?;
        Ok(self.results(&faults.samples))
    }
}

struct FaultRun<'a> {
    plan: &'a BenchFault,
    cluster: BenchCluster,
    samples: FigureSamples<FaultCase>,
    seed: String,
    stream_seed: String,
}

impl FaultRun<'_> {
    fn add(&mut self, series: FaultSeries, pace: Pace, us: impl IntoIterator<Item = f64>) -> Result<(), BenchError> {
        let case = FaultCase { series, pace };
        us.into_iter().try_for_each(|us| self.samples.add(&case, TIME, us))
    }

    fn add_one(&mut self, series: FaultSeries, figure: Figure, value: f64) -> Result<(), BenchError> {
        self.samples.add(&FaultCase::back_to_back(series), figure, value)
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
            self.add_one(FaultSeries::StreamBeside, STREAM_RATE, fetched_mib / took.as_secs_f64())?;
        }
        Ok(())
    }

    /// Makes paused children of several seeds fetch all of their memory, starting at the same time. Each seed is used
    /// once, because the pages that a child leaves in the node's page cache would serve the next child.
    async fn measure_streams(&mut self, streams: &[RunningProgram]) -> Result<(), BenchError> {
        let mut seeds = Vec::new();
        for parent in streams {
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
        self.add_one(FaultSeries::SlowestStream, SLOWEST_RATIO, slowest / mean)
    }

    fn measure_bare(&mut self, waiting: WaitMode) -> Result<(), BenchError> {
        let mut bare = BareFaults::open(self.cluster.nodes(), waiting)?;
        let rounds = [(Pace::BackToBack, self.plan.faults, GAP), (Pace::Idle, self.plan.idle_faults, IDLE)];
        for (pace, count, gap) in rounds {
            let served = bare.measure(count, gap)?;
            self.add(FaultSeries::BareTouch { waiting }, pace, served.iter().map(|one| one.touch_us))?;
            self.add(FaultSeries::Floor { waiting }, pace, served.iter().map(|one| one.exchange_us + one.copy_us))?;
        }
        Ok(())
    }

    fn measure_bare_next_to_stream(&mut self) -> Result<(), BenchError> {
        let nodes = self.cluster.nodes();
        let (mut stream, mut bare) = (BareStream::open(nodes)?, BareFaults::open(nodes, WaitMode::Sleep)?);
        let (began, pages) = (Instant::now(), stream.read_pages()?);
        let served = bare.measure(self.plan.faults, GAP_NEXT_TO_STREAM)?;
        let mib = (stream.read_pages()? - pages) as f64 * PAGE_BYTES as f64 / MIB_BYTES;
        let pace = Pace::BackToBack;
        self.add_one(FaultSeries::BareStreamBeside, STREAM_RATE, mib / began.elapsed().as_secs_f64())?;
        self.add(FaultSeries::BareBesideStream, pace, served.iter().map(|one| one.touch_us))?;
        self.add(FaultSeries::FloorBesideStream, pace, served.iter().map(|one| one.exchange_us + one.copy_us))
    }
}

impl BenchFault {
    fn results(&self, samples: &FigureSamples<FaultCase>) -> BenchResults {
        let plot = ReportPlot::by_percentiles(
            "percentiles",
            "The time of a page fault",
            "percentile of the faults",
            TIME.unit,
        );
        let plot = PLOTTED.into_iter().fold(plot, |plot, (name, role, series)| {
            plot.with_series(name, role, samples.percentile_points(&FaultCase::back_to_back(series), TIME))
        });
        let question = "How long does one page fault of a child take, alone and next to a stream of other faults?";
        let (farfork_stream, bare_stream) = (StreamEffect::of_farfork(samples), StreamEffect::of_floor(samples));
        let stream_notes = [("During a stream", farfork_stream), ("The floor's, during a bare one,", bare_stream)];
        let section = ReportSection::new("fault", "Page faults", question)
            .with_table(fault_table(samples))
            .with_table(self.streams_table(samples))
            .with_plot(plot)
            .with_notes(stream_notes.into_iter().filter_map(|(name, effect)| effect.note(name)))
            .with_note(format!("{} No page was wrong.", self.encryption.note()))
            .with_note(
                "Floor: a request and a page over the link in clear, and UFFDIO_COPY, by two bare programs that sleep while \
                 they wait. A bare pager: these programs serving a thread's fault; sleeping, spinning: how they wait. A bare \
                 stream: two further programs, one of which sends pages that the other one maps.",
            );
        let figures = samples.to_json_with(Some("us"), |case, figure, mut document| {
            ROWS.iter().find(|(series, pace, _)| (*series, *pace, TIME) == (case.series, case.pace, figure))?;
            let floor = FaultCase { series: floor_of(case.series), pace: case.pace };
            let p99 = |case| samples.percentile(case, TIME, 0.99);
            document["p99_us"] = json!(p99(case));
            document["floor_ratio"] = json!(samples.ratio(case, &floor, TIME));
            document["p99_floor_ratio"] = json!(p99(case).zip(p99(&floor)).map(|(own, floor)| own / floor));
            Some(document)
        });
        let stream = |series, figure| samples.spread(&FaultCase::back_to_back(series), figure);
        let (each, slowest) = (stream(FaultSeries::Stream, TIME), stream(FaultSeries::SlowestStream, SLOWEST_RATIO));
        let streams = each.zip(slowest).map(|(each, slowest)| {
            json!({
                "count": self.streams,
                "rounds": slowest.count,
                "p50_us": each.median,
                "slowest_ratio": slowest.median,
            })
        });
        let document = json!({
            "encrypted": self.encryption.encrypted,
            "stream_mib": self.stream_mib,
            "stream_mib_per_s": farfork_stream.mib_per_s,
            "bare_stream_mib_per_s": bare_stream.mib_per_s,
            "beside_stream_p99_ratio": farfork_stream.p99_ratio,
            "bare_beside_stream_p99_ratio": bare_stream.p99_ratio,
            "streams": streams,
            "figures": figures,
        });
        BenchResults::new(section, document)
    }

    fn streams_table(&self, samples: &FigureSamples<FaultCase>) -> ReportTable {
        let title = "Children of as many seeds that fetch all of their memory at once";
        let mut table = ReportTable::new("streams", title, &["children", "each", SLOWEST_RATIO.name]);
        let each = samples.spread(&FaultCase::back_to_back(FaultSeries::Stream), TIME);
        table.add_row([
            ReportCell::text(self.streams),
            each.map(|spread| ReportFigure::lower(spread.scaled(1e-3), "ms")).into(),
            samples.cell(&FaultCase::back_to_back(FaultSeries::SlowestStream), SLOWEST_RATIO),
        ]);
        table
    }
}

fn fault_table(samples: &FigureSamples<FaultCase>) -> ReportTable {
    let title = "One page of another node's process, from the touch to its arrival";
    let mut table = ReportTable::new("fault", title, &["page fault", "time", "time, p99"]);
    for (series, pace, name) in ROWS {
        let case = FaultCase { series, pace };
        let floor = Some(floor_of(series)).filter(|floor| *floor != series).map(|series| FaultCase { series, pace });
        let p99 = |case| samples.percentile(case, TIME, 0.99);
        let time = samples.figure(&case, TIME);
        let floor_median = floor.as_ref().and_then(|floor| samples.median(floor, TIME));
        let tail = p99(&case).map(|p99| ReportFigure::single(p99, TIME.unit, BetterDirection::Lower));
        table.add_row([
            ReportCell::text(name),
            time.map(|time| time.with_floor(floor_median)).into(),
            tail.map(|tail| tail.with_floor(floor.as_ref().and_then(p99))).into(),
        ]);
    }
    table
}

/// The effect of a stream on faults.
#[derive(Debug, Clone, Copy)]
struct StreamEffect {
    mib_per_s: Option<f64>,
    /// The 99th percentile during the stream divided by the median without it.
    p99_ratio: Option<f64>,
}

impl StreamEffect {
    fn of_farfork(samples: &FigureSamples<FaultCase>) -> Self {
        Self::new(samples, FaultSeries::StreamBeside, FaultSeries::BesideStream, FaultSeries::Farfork)
    }

    fn of_floor(samples: &FigureSamples<FaultCase>) -> Self {
        Self::new(samples, FaultSeries::BareStreamBeside, FaultSeries::FloorBesideStream, SLEEPING_FLOOR)
    }

    fn new(samples: &FigureSamples<FaultCase>, stream: FaultSeries, during: FaultSeries, alone: FaultSeries) -> Self {
        let p99 = samples.percentile(&FaultCase::back_to_back(during), TIME, 0.99);
        let alone = samples.median(&FaultCase::back_to_back(alone), TIME);
        Self {
            mib_per_s: samples.median(&FaultCase::back_to_back(stream), STREAM_RATE),
            p99_ratio: p99.zip(alone).map(|(p99, alone)| p99 / alone),
        }
    }

    fn note(self, name: &str) -> Option<String> {
        let (rate, ratio) = (self.mib_per_s?, format_value(self.p99_ratio?));
        Some(format!("{name} of {rate:.0} MiB/s the p99 is {ratio} × the p50 alone."))
    }
}

/// Returns the floor of a series: minimal programs that sleep, during a stream if the series is measured during a
/// stream.
fn floor_of(series: FaultSeries) -> FaultSeries {
    match series {
        FaultSeries::BesideStream | FaultSeries::BareBesideStream | FaultSeries::FloorBesideStream => {
            FaultSeries::FloorBesideStream
        }
        _ => SLEEPING_FLOOR,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BenchFault, EncryptionOption, FaultCase, FaultSeries, FigureSamples, Pace, SLOWEST_RATIO, STREAM_RATE,
        SamplesOption, TIME, WaitMode,
    };

    #[test]
    fn figures_are_shown_next_to_their_floors() {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for (series, pace, figure, value) in [
            (FaultSeries::Farfork, Pace::BackToBack, TIME, 60.0),
            (FaultSeries::BesideStream, Pace::BackToBack, TIME, 120.0),
            (FaultSeries::Floor { waiting: WaitMode::Sleep }, Pace::BackToBack, TIME, 40.0),
            (FaultSeries::FloorBesideStream, Pace::BackToBack, TIME, 100.0),
            (FaultSeries::StreamBeside, Pace::BackToBack, STREAM_RATE, 800.0),
            (FaultSeries::BareStreamBeside, Pace::BackToBack, STREAM_RATE, 900.0),
            (FaultSeries::Farfork, Pace::Idle, TIME, 90.0),
            (FaultSeries::Stream, Pace::BackToBack, TIME, 2e5),
            (FaultSeries::SlowestStream, Pace::BackToBack, SLOWEST_RATIO, 1.25),
        ] {
            samples.add(&FaultCase { series, pace }, figure, value).unwrap();
        }
        let plan = BenchFault {
            runs: 1,
            faults: 1,
            idle_faults: 1,
            stream_mib: 64,
            streams: 8,
            encryption: EncryptionOption { encrypted: true },
            samples: SamplesOption::default(),
        };
        let results = plan.results(&samples);
        let (text, document) = (results.to_text(), results.to_json());
        let figures = document["figures"].as_array().unwrap();
        assert_eq!(figures.len(), 5, "series without samples are omitted: {document}");
        assert_eq!((&figures[0]["of"], &figures[0]["floor_ratio"]), (&"farfork".into(), &1.5.into()));
        let beside = figures.iter().find(|figure| figure["of"] == "beside_stream").unwrap();
        assert_eq!((&beside["floor_ratio"], &beside["p99_floor_ratio"]), (&1.2.into(), &1.2.into()));
        assert_eq!(document["beside_stream_p99_ratio"], 2.0);
        assert_eq!(document["bare_beside_stream_p99_ratio"], 2.5);
        assert_eq!((&document["streams"]["slowest_ratio"], &document["streams"]["count"]), (&1.25.into(), &8.into()));
        assert!(text.contains("of 800 MiB/s the p99 is 2.00 × the p50 alone"), "{text}");
        assert!(text.contains("of 900 MiB/s the p99 is 2.50 × the p50 alone"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }
}
