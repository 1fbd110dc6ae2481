//! The journey of a fork, measured: prepare, resume on another node, memory on demand. Beside each figure stands its
//! floor, measured in the same run: `fork(2)` of the same process, copy-on-write of the same pages, a raw copy over the
//! same link.
//!
//! `cargo bench -p farfork-cli --bench journey -- [--mib 1,16,1024] [--runs N] [--json]`, as root. Nodes are network
//! namespaces, made by the code of `farfork up`; the seed is on n1, its children are on n2. Memory is touched before
//! anything is measured. This file has the order of events; the others say how each thing is measured.

mod cluster;
mod floor;
mod parent;
mod report;
mod samples;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;

use cluster::{Child, Cluster};
use floor::Link;
use parent::Parent;
use report::Report;
use samples::{Metric, Samples};

/// A node that was idle for so long has lost its caches and sleeps deeply, as after a user's pause for thought.
const IDLE: Duration = Duration::from_millis(150);

/// Measure prepare, resume and paging between two nodes on this machine.
#[derive(Debug, Parser)]
struct Options {
    /// Private memory of the parent, in MiB: powers of two.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256, 1024])]
    mib: Vec<u64>,
    /// Samples of each figure.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// A path of the node that the children share, as with `farfork fork --shared`.
    #[arg(long)]
    shared: Vec<String>,
    /// Print each sample, one JSON object a line, in the table's place.
    #[arg(long)]
    json: bool,
    /// Serve or take raw bytes: what measures the link starts itself with this.
    #[arg(long, hide = true, num_args = 2)]
    floor: Option<Vec<String>>,
    /// Told by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if let Some(end) = options.floor {
        floor::be_end(&end[0], &end[1])?;
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::ensure!(rustix::process::geteuid().is_root(), "it makes namespaces and traces processes: run it as root");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = Report::new(options.json);
    runtime.block_on(measure_all(&options, &mut report))?;
    report.print();
    Ok(ExitCode::SUCCESS)
}

async fn measure_all(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(options.shared.clone()).await?;
    let program = cluster.scratch().join("parent");
    parent::compile(&program)?;
    for mib in &options.mib {
        let samples = measure(&mut cluster, &program, *mib, options.runs).await;
        report.add(*mib, samples.with_context(|| format!("with {mib} MiB"))?);
    }
    Ok(())
}

/// All figures of one size of parent.
async fn measure(cluster: &mut Cluster, program: &std::path::Path, mib: u64, runs: usize) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    let mut parent = Parent::start(program, mib)?;
    for _ in 0..runs {
        measure_prepare(cluster, &mut parent, &mut samples).await?;
    }
    parent.write_all()?;
    let prepared = cluster.prepare(parent.pid()).await?;
    // The first child of a seed on a node fetches the descriptor; that is measured with the prepares.
    cluster.fork(&prepared.seed, "stamp").await?;
    for _ in 0..runs {
        let child = cluster.fork(&prepared.seed, "stamp").await?;
        add_resume(&mut samples, &child, Metric::Resume, Some(Metric::Answer));
    }
    for _ in 0..runs {
        tokio::time::sleep(IDLE).await;
        let child = cluster.fork(&prepared.seed, "stamp").await?;
        add_resume(&mut samples, &child, Metric::ResumeIdle, None);
    }
    for _ in 0..runs {
        let child = cluster.fork(&prepared.seed, "touch").await?;
        samples.add(Metric::Touch, child.touch_us / pages(mib));
    }
    cluster.drop_seed(&prepared.seed).await?;
    measure_floors(cluster, &mut parent, mib, runs, &mut samples)?;
    Ok(samples)
}

/// One prepare beside one `fork()`, both of a parent that has written to all of its pages since the last; and the
/// first child of a seed that its node has never heard of.
async fn measure_prepare(cluster: &mut Cluster, parent: &mut Parent, samples: &mut Samples) -> anyhow::Result<()> {
    parent.write_all()?;
    samples.add(Metric::LocalFork, parent.fork_us()?);
    parent.write_all()?;
    let prepared = cluster.prepare(parent.pid()).await?;
    samples.add(Metric::Pause, prepared.pause_us);
    samples.add(Metric::Prepare, prepared.prepare_us);
    samples.add(Metric::PrepareAnswer, prepared.answer_us);
    let child = cluster.fork(&prepared.seed, "stamp").await?;
    add_resume(samples, &child, Metric::ResumeFirst, None);
    cluster.drop_seed(&prepared.seed).await
}

fn add_resume(samples: &mut Samples, child: &Child, resume: Metric, answer: Option<Metric>) {
    samples.add(resume, child.resume_us);
    if let Some(answer) = answer {
        samples.add(answer, child.answer_us);
        samples.add(Metric::Engine, child.engine_us);
        samples.add(Metric::Spoke, child.spoke_us);
    }
}

fn measure_floors(
    cluster: &Cluster,
    parent: &mut Parent,
    mib: u64,
    runs: usize,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut link = Link::open(cluster.nodes(), mib)?;
    link.copy_us()?;
    for _ in 0..runs {
        samples.add(Metric::LinkCopy, link.copy_us()? / pages(mib));
        parent.write_all()?;
        samples.add(Metric::LocalCopy, parent.copy_us()? / pages(mib));
    }
    Ok(())
}

fn pages(mib: u64) -> f64 {
    (mib << 20) as f64 / 4096.0
}
