//! The course of `farfork bench fork`: for each size of parent, step after step, samples of each figure. The seeds are on
//! the first node, children there and on the other one. Memory is touched before anything is measured. This file has the
//! order of events, `steps` how each thing is measured.

mod steps;
mod strategies;

use std::path::PathBuf;
use std::time::Instant;

use crate::baseline::criu::{self, Mode};
use crate::baseline::link::LINK;
use crate::coordinator::cluster::Cluster;
use crate::error::BenchError;
use crate::figure::Key;
use crate::machine;
use crate::plan::fork::{ForkPlan, Peer, Quota, Step, share};
use crate::plan::strategies::StrategyFigures;
use crate::progress::{Show, tell};
use crate::report::fork::ForkReport;
use crate::samples::Samples;
use crate::workload::micro::{MICRO, Micro, PAYLOAD_PATH};

/// Times the size of a parent that a run of it needs: the parent, its pages that the template keeps, a child, and both
/// ends of the link with what one of them compares with.
const MEMORY_FACTOR: u64 = 5;

/// Beside that, in MiB: the nodes, and what the machine needs itself.
const MEMORY_BASE_MIB: u64 = 256;

/// Measures all of a plan. `farfork` is the program whose `node` command the nodes' daemons are.
///
/// # Errors
/// [`BenchError`] as the first thing that fails; a child with wrong memory is such.
pub async fn run(plan: &ForkPlan, farfork: PathBuf, show: Show<'_>) -> Result<ForkReport, BenchError> {
    require_memory(plan)?;
    let (peers, notes) = peers(plan).await?;
    let (began, load_before) = (Instant::now(), machine::load_average());
    let samples = Samples::written_to(plan.samples_file.as_deref())?;
    let steps = Step::all(&plan.sizes_mib, &peers);
    tell(show, 0, steps.len(), "starting two nodes")?;
    let mut course = Course::start(plan, farfork, samples).await?;
    course.notes = notes;
    course.measure_all(&steps, show).await?;
    let Course { cluster, samples, notes, strategies, .. } = course;
    cluster.end()?;
    Ok(ForkReport { plan: plan.clone(), samples, strategies, notes, elapsed: began.elapsed(), load_before })
}

/// A run that is under way.
#[derive(Debug)]
struct Course<'a> {
    plan: &'a ForkPlan,
    cluster: Cluster,
    micro: PathBuf,
    link: PathBuf,
    samples: Samples<Key>,
    strategies: Vec<StrategyFigures>,
    notes: Vec<String>,
}

/// A parent that is measured, and a seed of it once there is one.
#[derive(Debug)]
struct Subject {
    mib: u64,
    parent: Micro,
    seed: Option<String>,
    /// Another, which CRIU clones.
    criu: Option<criu::Subject>,
}

impl<'a> Course<'a> {
    async fn start(plan: &'a ForkPlan, farfork: PathBuf, samples: Samples<Key>) -> Result<Self, BenchError> {
        let cluster = match plan.resumed.has_zygotes() {
            false => Cluster::start(farfork, plan.encrypted).await?,
            true => Cluster::start_with_zygotes(farfork, plan.encrypted).await?,
        };
        let micro = MICRO.install(cluster.scratch())?;
        let link = LINK.install(cluster.scratch())?;
        let (strategies, notes) = Default::default();
        let course = Self { plan, cluster, micro, link, samples, strategies, notes };
        course.warm_up()?;
        Ok(course)
    }

    /// Touches as much memory as the largest size will need: the first touch of memory that a hypervisor has not given
    /// to this machine yet takes ten times as long.
    fn warm_up(&self) -> Result<(), BenchError> {
        let largest = self.plan.sizes_mib.iter().max().copied().unwrap_or(0);
        self.start_micro(largest * (MEMORY_FACTOR - 1)).map(drop)
    }

    async fn measure_all(&mut self, steps: &[Step], show: Show<'_>) -> Result<(), BenchError> {
        let end = Instant::now() + self.plan.time_max;
        let mut subject: Option<Subject> = None;
        for (done, step) in steps.iter().enumerate() {
            tell(show, done, steps.len(), format!("a process of {} MiB", step.mib))?;
            self.cluster.reconnect().await?;
            let is_next_size = subject.as_ref().is_none_or(|subject| subject.mib != step.mib);
            if is_next_size {
                // The last one's memory is free before the next takes its own.
                self.finish(subject.take()).await?;
                subject = Some(self.subject(step.mib)?);
            }
            let subject = subject.as_mut().expect("made above");
            if is_next_size {
                let figures = self.strategies(subject).await?;
                self.strategies.extend(figures);
            }
            let left = end.saturating_duration_since(Instant::now());
            let deadline = Instant::now() + share(&steps[done..], self.plan.runs, left);
            let quota = Quota::new(step.runs_min(left), self.plan.runs, deadline);
            self.measure(step.what, subject, quota).await?;
            self.samples.flush()?;
        }
        self.finish(subject).await
    }

    fn subject(&self, mib: u64) -> Result<Subject, BenchError> {
        Ok(Subject { mib, parent: self.start_micro(mib)?, seed: None, criu: None })
    }

    fn start_micro(&self, mib: u64) -> Result<Micro, BenchError> {
        let node = self.cluster.nodes().first().map(|node| node.socket.as_path());
        Micro::start(&self.micro, mib, self.plan.manner(), PAYLOAD_PATH.as_ref(), node)
    }

    async fn finish(&mut self, subject: Option<Subject>) -> Result<(), BenchError> {
        match subject.and_then(|subject| subject.seed) {
            Some(seed) => {
                self.cluster.reconnect().await?;
                self.cluster.drop_seed(&seed).await
            }
            None => Ok(()),
        }
    }

    fn add(&mut self, key: Key, value: f64) -> Result<(), BenchError> {
        self.samples.add(key, value)
    }
}

/// The peer's modes that can be measured, and why others cannot.
async fn peers(plan: &ForkPlan) -> Result<(Vec<Mode>, Vec<String>), BenchError> {
    let Some(Peer::Criu) = plan.peer else {
        return Ok((Vec::new(), Vec::new()));
    };
    Ok(match criu::check().await? {
        None => (vec![Mode::Eager, Mode::Lazy], Vec::new()),
        Some(reason) => (vec![Mode::Eager], vec![format!("CRIU, lazy: not measured: {reason}")]),
    })
}

fn require_memory(plan: &ForkPlan) -> Result<(), BenchError> {
    let mib = plan.sizes_mib.iter().max().copied().unwrap_or(0);
    let (needed_mib, available_mib) = (mib * MEMORY_FACTOR + MEMORY_BASE_MIB, machine::available_mib());
    if needed_mib > available_mib {
        return Err(BenchError::Memory { mib, needed_mib, available_mib });
    }
    Ok(())
}
