//! How each step takes its samples.

use std::time::{Duration, Instant};

use super::{Course, Subject};
use crate::baseline::criu::{self, Mode};
use crate::baseline::link::{self, Link};
use crate::coordinator::cluster::{Child, Wanted};
use crate::error::BenchError;
use crate::figure::{By, Figure, IDLE, Key, Pace, Place};
use crate::plan::fork::{Quota, Resumed, What};
use crate::workload::micro::{ChildReport, STAMP, TOUCH, ms};

impl Course<'_> {
    /// Takes the samples of a step.
    pub(super) async fn measure(
        &mut self,
        what: What,
        subject: &mut Subject,
        mut quota: Quota,
    ) -> Result<(), BenchError> {
        if let What::Floors = what {
            return self.floors(subject, quota);
        }
        if let (What::Resume(place, _), Resumed::Foretold) = (what, self.plan.resumed) {
            // Its child is the one that foretells.
            self.first_child(subject, place, Pace::BackToBack).await?;
        }
        while quota.another(Instant::now()) {
            match what {
                What::Checkpoint(pace) => self.checkpoint(subject, pace).await?,
                What::Prepare(pace) => self.prepare(subject, pace).await?,
                What::Resume(place, pace) => self.resume(subject, place, pace).await?,
                What::Execution(place) => self.execute(subject, place).await?,
                What::Floors => {}
                What::Criu(mode) => self.clone_by_criu(subject, mode).await?,
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

    /// One seed that the program makes of itself, which has written to all of its pages since the last.
    async fn checkpoint(&mut self, subject: &mut Subject, pace: Pace) -> Result<(), BenchError> {
        let key = |figure| Key::farfork(subject.mib, figure).paced(pace);
        subject.parent.write_all()?;
        rest(pace).await;
        let checkpoint = subject.parent.checkpoint()?;
        self.add(key(Figure::Checkpoint), checkpoint.call_ms)?;
        self.add(key(Figure::CheckpointPause), checkpoint.pause_ms)?;
        self.cluster.drop_seed(&checkpoint.seed).await
    }

    async fn resume(&mut self, subject: &mut Subject, place: Place, pace: Pace) -> Result<(), BenchError> {
        if self.plan.resumed.is_first() {
            return self.resume_first(subject, place, pace).await;
        }
        let seed = self.seed_known_on(subject, place).await?;
        rest(pace).await;
        let child = self.cluster.fork(&seed, place, STAMP).await?;
        self.add_resume(subject.mib, place, pace, &child)
    }

    /// The child of a seed that the node has not heard of.
    async fn resume_first(&mut self, subject: &mut Subject, place: Place, pace: Pace) -> Result<(), BenchError> {
        if self.plan.resumed == Resumed::Fresh {
            subject.parent = self.start_micro(subject.mib)?;
            rest(Pace::Idle).await;
        }
        let child = self.first_child(subject, place, pace).await?;
        self.add_resume(subject.mib, place, pace, &child)
    }

    async fn first_child(&mut self, subject: &Subject, place: Place, pace: Pace) -> Result<Child, BenchError> {
        let seed = self.cluster.prepare(subject.parent.pid()).await?.seed;
        rest(pace).await;
        let child = match self.plan.resumed.has_zygotes() {
            false => self.cluster.fork(&seed, place, STAMP).await?,
            true => self.cluster.fork_as(&seed, place, STAMP, Wanted::default()).await?,
        };
        self.cluster.drop_seed(&seed).await?;
        Ok(child)
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

    async fn clone_by_criu(&mut self, subject: &mut Subject, mode: Mode) -> Result<(), BenchError> {
        let mib = subject.mib;
        let criu = match &mut subject.criu {
            Some(criu) => criu,
            none => {
                let scratch = self.cluster.scratch();
                none.insert(criu::Subject::start(&self.micro, scratch, mib, self.plan.manner())?)
            }
        };
        let cloned = criu.clone(mode).await?;
        let by = match mode {
            Mode::Eager => By::CriuEager,
            Mode::Lazy => By::CriuLazy,
        };
        self.add(Key::new(mib, by, Figure::Prepare), cloned.prepare_ms)?;
        self.add(Key::new(mib, by, Figure::Pause), cloned.pause_ms)?;
        self.add(Key::new(mib, by, Figure::Resume).on(Place::Own), cloned.resume_ms)?;
        self.add(Key::new(mib, by, Figure::Execution).on(Place::Own), cloned.execution_ms)
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
