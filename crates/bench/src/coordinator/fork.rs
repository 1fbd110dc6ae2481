//! The course of `farfork bench fork`: for each size of parent, step after step, samples of each figure. The seeds are on
//! the first node, children there and on the other one. Memory is touched before anything is measured. This file has the
//! order of events; `cluster`, `workload` and `baseline` say how each thing is measured.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::baseline::link::{self, LINK, Link};
use crate::coordinator::cluster::{Child, Cluster};
use crate::error::BenchError;
use crate::figure::{By, Figure, Key, Pace, Place};
use crate::machine;
use crate::plan::{ForkPlan, IDLE, Quota, Step, What, share};
use crate::report::fork::ForkReport;
use crate::samples::Samples;
use crate::workload::micro::{ChildReport, MICRO, Micro, STAMP, TOUCH, ms};

/// Times the size of a parent that a run of it needs: the parent, its pages that the template keeps, a child, and both
/// ends of the link with what one of them compares with.
const MEMORY_FACTOR: u64 = 5;

/// Beside that, in MiB: the nodes, and what the machine needs itself.
const MEMORY_BASE_MIB: u64 = 256;

/// What a run is doing, for whoever shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Steps that are done.
    pub done: usize,
    /// All steps.
    pub steps: usize,
    /// The size that is measured now, in MiB; none before the first.
    pub mib: Option<u64>,
}

/// Measures all of a plan. `farfork` is the program whose `node` command the nodes' daemons are.
///
/// # Errors
/// [`BenchError`] as the first thing that fails; a child with wrong memory is such.
pub async fn run(
    plan: &ForkPlan,
    farfork: PathBuf,
    progress: &mut dyn FnMut(Progress),
) -> Result<ForkReport, BenchError> {
    require_memory(plan)?;
    let (began, load_before) = (Instant::now(), machine::load_average());
    let lines = plan
        .samples_file
        .as_ref()
        .map(|path| File::create(path).map_err(|cause| BenchError::File { path: path.clone(), cause }));
    let samples = Samples::new(lines.transpose()?);
    let steps = Step::all(&plan.sizes_mib);
    progress(Progress { done: 0, steps: steps.len(), mib: None });
    let mut course = Course::start(plan, farfork, samples).await?;
    course.measure_all(&steps, progress).await?;
    let Course { cluster, samples, notes, .. } = course;
    cluster.end()?;
    Ok(ForkReport { plan: plan.clone(), samples, notes, elapsed: began.elapsed(), load_before })
}

/// A run that is under way.
#[derive(Debug)]
struct Course<'a> {
    plan: &'a ForkPlan,
    cluster: Cluster,
    micro: PathBuf,
    link: PathBuf,
    samples: Samples<Key>,
    notes: Vec<String>,
}

/// A parent that is measured, and a seed of it once there is one.
#[derive(Debug)]
struct Subject {
    mib: u64,
    parent: Micro,
    seed: Option<String>,
}

impl<'a> Course<'a> {
    async fn start(plan: &'a ForkPlan, farfork: PathBuf, samples: Samples<Key>) -> Result<Self, BenchError> {
        let cluster = Cluster::start(farfork).await?;
        let micro = MICRO.install(cluster.scratch())?;
        let link = LINK.install(cluster.scratch())?;
        let course = Self { plan, cluster, micro, link, samples, notes: Vec::new() };
        course.warm_up()?;
        Ok(course)
    }

    /// Touches as much memory as the largest size will need: the first touch of memory that a hypervisor has not given
    /// to this machine yet takes ten times as long.
    fn warm_up(&self) -> Result<(), BenchError> {
        let largest = self.plan.sizes_mib.iter().max().copied().unwrap_or(0);
        Micro::start(&self.micro, largest * (MEMORY_FACTOR - 1), self.plan.order, self.plan.access).map(drop)
    }

    async fn measure_all(&mut self, steps: &[Step], progress: &mut dyn FnMut(Progress)) -> Result<(), BenchError> {
        let end = Instant::now() + self.plan.time_max;
        let mut subject: Option<Subject> = None;
        for (done, step) in steps.iter().enumerate() {
            progress(Progress { done, steps: steps.len(), mib: Some(step.mib) });
            if subject.as_ref().is_none_or(|subject| subject.mib != step.mib) {
                // The last one's memory is free before the next takes its own.
                self.finish(subject.take()).await?;
                subject = Some(self.subject(step.mib)?);
            }
            let subject = subject.as_mut().expect("made above");
            let left = end.saturating_duration_since(Instant::now());
            let deadline = Instant::now() + share(&steps[done..], self.plan.runs, left);
            self.measure(step.what, subject, Quota::new(self.plan.runs, deadline)).await?;
            self.flush()?;
        }
        self.finish(subject).await?;
        progress(Progress { done: steps.len(), steps: steps.len(), mib: None });
        Ok(())
    }

    fn subject(&self, mib: u64) -> Result<Subject, BenchError> {
        Ok(Subject { mib, parent: Micro::start(&self.micro, mib, self.plan.order, self.plan.access)?, seed: None })
    }

    async fn finish(&mut self, subject: Option<Subject>) -> Result<(), BenchError> {
        match subject.and_then(|subject| subject.seed) {
            Some(seed) => self.cluster.drop_seed(&seed).await,
            None => Ok(()),
        }
    }

    async fn measure(&mut self, what: What, subject: &mut Subject, mut quota: Quota) -> Result<(), BenchError> {
        if let What::Floors = what {
            return self.floors(subject, quota);
        }
        while quota.another(Instant::now()) {
            match what {
                What::Prepare(pace) => self.prepare(subject, pace).await?,
                What::Resume(place, pace) => self.resume(subject, place, pace).await?,
                What::Execution(place) => self.execute(subject, place).await?,
                What::Floors => {}
            }
        }
        Ok(())
    }

    /// One prepare, and back to back one `fork()`, each of a parent that has written to all of its pages since the last.
    async fn prepare(&mut self, subject: &mut Subject, pace: Pace) -> Result<(), BenchError> {
        let key = |by, figure| Key::new(subject.mib, by, figure).paced(pace);
        subject.parent.write_all()?;
        if pace == Pace::BackToBack {
            let ms = subject.parent.fork_ms()?;
            self.add(key(By::LocalFork, Figure::Pause), ms)?;
            subject.parent.write_all()?;
        }
        rest(pace).await;
        let prepared = self.cluster.prepare(subject.parent.pid()).await?;
        self.add(key(By::Farfork, Figure::Pause), prepared.pause_us as f64 / 1e3)?;
        self.add(key(By::Farfork, Figure::PrepareOnNode), prepared.on_node_us as f64 / 1e3)?;
        self.add(key(By::Farfork, Figure::Prepare), prepared.answer.as_secs_f64() * 1e3)?;
        self.cluster.drop_seed(&prepared.seed).await
    }

    async fn resume(&mut self, subject: &mut Subject, place: Place, pace: Pace) -> Result<(), BenchError> {
        let seed = self.seed_known_on(subject, place).await?;
        rest(pace).await;
        let child = self.cluster.fork(&seed, place, STAMP).await?;
        self.add_resume(subject.mib, place, pace, &child)
    }

    async fn execute(&mut self, subject: &mut Subject, place: Place) -> Result<(), BenchError> {
        let seed = self.seed_known_on(subject, place).await?;
        let child = self.cluster.fork(&seed, place, TOUCH).await?;
        let report = ChildReport::parse(&child.said)?;
        self.add(Key::farfork(subject.mib, Figure::Execution).on(place), ms(report.touch_ns))
    }

    /// The subject's seed. The first child of a seed on a node, which fetches the descriptor, has been there.
    async fn seed_known_on(&mut self, subject: &mut Subject, place: Place) -> Result<String, BenchError> {
        if let Some(seed) = &subject.seed {
            return Ok(seed.clone());
        }
        subject.parent.write_all()?;
        let seed = self.cluster.prepare(subject.parent.pid()).await?.seed;
        subject.seed = Some(seed.clone());
        for place in [place, Place::Own, Place::Other] {
            self.cluster.fork(&seed, place, STAMP).await?;
        }
        Ok(seed)
    }

    fn add_resume(&mut self, mib: u64, place: Place, pace: Pace, child: &Child) -> Result<(), BenchError> {
        let report = ChildReport::parse(&child.said)?;
        let key = |figure| Key::farfork(mib, figure).on(place).paced(pace);
        self.add(key(Figure::Resume), ms(report.first_unix_ns - child.sent_unix_ns))?;
        self.add(key(Figure::ResumeSpoke), ms(report.spoke_unix_ns - child.sent_unix_ns))?;
        self.add(key(Figure::ResumeAnswer), child.answer.as_secs_f64() * 1e3)
    }

    fn floors(&mut self, subject: &mut Subject, mut quota: Quota) -> Result<(), BenchError> {
        let key = |by, figure| Key::new(subject.mib, by, figure);
        let mut link = Link::open(&self.link, self.cluster.nodes(), subject.mib)?;
        link.copy_ms()?;
        while quota.another(Instant::now()) {
            self.add(key(By::Link, Figure::Execution), link.copy_ms()?)?;
            self.add(key(By::Link, Figure::MemoryCopy), link.memory_copy_ms()?)?;
            subject.parent.write_all()?;
            self.add(key(By::LocalFork, Figure::Execution), subject.parent.touch_ms()?)?;
            subject.parent.write_all()?;
            if let Some(ms) = subject.parent.copy_ms()? {
                self.add(key(By::LocalFork, Figure::ExecutionWriting), ms)?;
            }
        }
        self.judge_link(subject.mib);
        Ok(())
    }

    /// A floor that cannot be what it seems to be is not reported.
    fn judge_link(&mut self, mib: u64) {
        let median = |figure| self.samples.spread(&Key::new(mib, By::Link, figure)).map(|spread| spread.median);
        let (Some(copy_ms), Some(memory_copy_ms)) = (median(Figure::Execution), median(Figure::MemoryCopy)) else {
            return;
        };
        if let Some(reason) = link::implausible(mib, copy_ms, memory_copy_ms) {
            self.samples.remove(&Key::new(mib, By::Link, Figure::Execution));
            self.notes.push(format!("copy over the link not reported: {reason}"));
        }
    }

    fn add(&mut self, key: Key, value: f64) -> Result<(), BenchError> {
        self.samples.add(key, value).map_err(|cause| self.file_error(cause))
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.samples.flush().map_err(|cause| self.file_error(cause))
    }

    fn file_error(&self, cause: std::io::Error) -> BenchError {
        BenchError::File { path: self.plan.samples_file.clone().unwrap_or_default(), cause }
    }
}

async fn rest(pace: Pace) {
    let time = match pace {
        Pace::BackToBack => Duration::ZERO,
        Pace::Idle => IDLE,
    };
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn require_memory(plan: &ForkPlan) -> Result<(), BenchError> {
    let mib = plan.sizes_mib.iter().max().copied().unwrap_or(0);
    let (needed_mib, available_mib) = (mib * MEMORY_FACTOR + MEMORY_BASE_MIB, machine::available_mib());
    if needed_mib > available_mib {
        return Err(BenchError::Memory { mib, needed_mib, available_mib });
    }
    Ok(())
}
