//! Takes the samples of each `ForkStep` of `farfork bench fork`.

use std::time::Instant;

use super::plan::{ForkStepKind, ResumeCase, SampleQuota};
use super::{
    CHECKPOINT, CHECKPOINT_PAUSE, EXECUTION, EXECUTION_WRITING, FIRST_RESUME, ForkCase, ForkRun, ForkSubject,
    ForkSystem, MEMORY_COPY, PAUSE, PREPARE, PREPARE_ON_NODE, RESUME, RESUME_ANSWER, RESUME_SPOKE,
};
use crate::baseline::criu::{self, CriuMode};
use crate::baseline::link_copy::{self, LinkCopy};
use crate::error::BenchError;
use crate::experiment::local_cluster::{BenchChild, ForkOptions};
use crate::figure::{ChildPlace, Figure, IDLE, Pace};
use crate::workload::micro::{ChildReport, PAYLOAD_STAMP, PAYLOAD_TOUCH, ns_to_ms};

impl ForkRun<'_> {
    /// Takes the samples of a step.
    pub(super) async fn run_step(
        &mut self,
        fork_step_kind: ForkStepKind,
        fork_subject: &mut ForkSubject,
        mut quota: SampleQuota,
    ) -> Result<(), BenchError> {
        if let ForkStepKind::Floors = fork_step_kind {
            return self.sample_floors(fork_subject, quota);
        }
        if let (ForkStepKind::Resume(place, _), ResumeCase::Speculative) = (fork_step_kind, self.plan.resume_case()) {
            // The child of this first seed makes the nodes predict forks of the following seeds.
            self.fork_first_child(fork_subject, place, Pace::BackToBack).await?;
        }
        while quota.take_another(Instant::now()) {
            match fork_step_kind {
                ForkStepKind::Checkpoint(pace) => self.sample_checkpoint(fork_subject, pace).await?,
                ForkStepKind::Prepare(pace) => self.sample_prepare(fork_subject, pace).await?,
                ForkStepKind::Resume(place, pace) => self.sample_resume(fork_subject, place, pace).await?,
                ForkStepKind::FirstResume => {
                    let (place, pace) = (ChildPlace::Other, Pace::BackToBack);
                    self.sample_first_resume(fork_subject, place, pace, FIRST_RESUME).await?;
                }
                ForkStepKind::Execution(place) => self.sample_execution(fork_subject, place).await?,
                ForkStepKind::Floors => {}
                ForkStepKind::Criu(mode) => self.sample_criu(fork_subject, mode).await?,
            }
        }
        Ok(())
    }

    /// Samples one prepare, and if back to back also one `fork()`. Before each, the parent writes to all of its pages.
    async fn sample_prepare(&mut self, fork_subject: &mut ForkSubject, pace: Pace) -> Result<(), BenchError> {
        let case = |by| ForkCase::new(fork_subject.mib, by).with_pace(pace);
        fork_subject.parent.write_all()?;
        if pace == Pace::BackToBack {
            let ms = fork_subject.parent.measure_fork_ms()?;
            self.samples.add(&case(ForkSystem::LocalFork), PAUSE, ms)?;
            fork_subject.parent.write_all()?;
        }
        sleep_before(pace).await;
        let prepared = self.cluster.prepare(fork_subject.parent.pid()).await?;
        let farfork = case(ForkSystem::Farfork);
        self.samples.add(&farfork, PAUSE, prepared.pause_us as f64 / 1e3)?;
        self.samples.add(&farfork, PREPARE_ON_NODE, prepared.node_us as f64 / 1e3)?;
        self.samples.add(&farfork, PREPARE, prepared.round_trip.as_secs_f64() * 1e3)?;
        self.cluster.drop_seed(&prepared.seed).await
    }

    /// Samples one checkpoint that the program requests. Before it, the program writes to all of its pages.
    async fn sample_checkpoint(&mut self, fork_subject: &mut ForkSubject, pace: Pace) -> Result<(), BenchError> {
        let case = ForkCase::new(fork_subject.mib, ForkSystem::Farfork).with_pace(pace);
        fork_subject.parent.write_all()?;
        sleep_before(pace).await;
        self.cluster.drop_at_end(&fork_subject.parent.checkpoint_name())?;
        let checkpoint = fork_subject.parent.checkpoint()?;
        self.samples.add(&case, CHECKPOINT, checkpoint.call_ms)?;
        self.samples.add(&case, CHECKPOINT_PAUSE, checkpoint.pause_ms)?;
        self.cluster.drop_seed(&checkpoint.seed).await
    }

    async fn sample_resume(
        &mut self,
        fork_subject: &mut ForkSubject,
        place: ChildPlace,
        pace: Pace,
    ) -> Result<(), BenchError> {
        if self.plan.resume_case().is_first() {
            return self.sample_first_resume(fork_subject, place, pace, RESUME).await;
        }
        let seed = self.warm_seed_on(fork_subject, place).await?;
        sleep_before(pace).await;
        let child = self.cluster.fork(&seed, place, PAYLOAD_STAMP).await?;
        let case = ForkCase::new(fork_subject.mib, ForkSystem::Farfork).with_place(place).with_pace(pace);
        self.add_resume(&case, RESUME, &child)
    }

    /// Samples the first child of a new seed on a node.
    async fn sample_first_resume(
        &mut self,
        fork_subject: &mut ForkSubject,
        place: ChildPlace,
        pace: Pace,
        figure: Figure,
    ) -> Result<(), BenchError> {
        if self.plan.resume_case() == ResumeCase::Fresh {
            fork_subject.parent = self.start_micro(fork_subject.mib)?;
            sleep_before(Pace::Idle).await;
        }
        let child = self.fork_first_child(fork_subject, place, pace).await?;
        let case = ForkCase::new(fork_subject.mib, ForkSystem::Farfork).with_place(place).with_pace(pace);
        self.add_resume(&case, figure, &child)
    }

    async fn fork_first_child(
        &mut self,
        fork_subject: &ForkSubject,
        place: ChildPlace,
        pace: Pace,
    ) -> Result<BenchChild, BenchError> {
        let seed = self.cluster.prepare(fork_subject.parent.pid()).await?.seed;
        sleep_before(pace).await;
        let child = match self.plan.resume_case().has_zygotes() {
            false => self.cluster.fork(&seed, place, PAYLOAD_STAMP).await?,
            true => self.cluster.fork_with(&seed, place, PAYLOAD_STAMP, ForkOptions::default()).await?,
        };
        self.cluster.drop_seed(&seed).await?;
        Ok(child)
    }

    async fn sample_execution(&mut self, fork_subject: &mut ForkSubject, place: ChildPlace) -> Result<(), BenchError> {
        let seed = self.warm_seed_on(fork_subject, place).await?;
        let child = self.cluster.fork(&seed, place, PAYLOAD_TOUCH).await?;
        let report = ChildReport::parse(&child.output)?;
        let case = ForkCase::new(fork_subject.mib, ForkSystem::Farfork).with_place(place);
        self.samples.add(&case, EXECUTION, ns_to_ms(report.touch_ns))
    }

    /// Returns the subject's seed. Makes it if needed, and forks a first child on each node, so that the nodes have the
    /// descriptor.
    async fn warm_seed_on(&mut self, fork_subject: &mut ForkSubject, place: ChildPlace) -> Result<String, BenchError> {
        if let Some(seed) = &fork_subject.seed {
            return Ok(seed.clone());
        }
        fork_subject.parent.write_all()?;
        let seed = self.cluster.prepare(fork_subject.parent.pid()).await?.seed;
        fork_subject.seed = Some(seed.clone());
        for place in [place, ChildPlace::Own, ChildPlace::Other] {
            self.cluster.fork(&seed, place, PAYLOAD_STAMP).await?;
        }
        Ok(seed)
    }

    fn add_resume(&mut self, case: &ForkCase, figure: Figure, child: &BenchChild) -> Result<(), BenchError> {
        let report = ChildReport::parse(&child.output)?;
        self.samples.add(case, figure, ns_to_ms(report.first_unix_ns - child.sent_unix_ns))?;
        if figure == RESUME {
            self.samples.add(case, RESUME_SPOKE, ns_to_ms(report.reported_unix_ns - child.sent_unix_ns))?;
            self.samples.add(case, RESUME_ANSWER, child.round_trip.as_secs_f64() * 1e3)?;
        }
        Ok(())
    }

    fn sample_floors(&mut self, fork_subject: &mut ForkSubject, mut quota: SampleQuota) -> Result<(), BenchError> {
        let case = |by| ForkCase::new(fork_subject.mib, by);
        let (copied, forked) = (case(ForkSystem::Link), case(ForkSystem::LocalFork));
        let mut link = LinkCopy::open(self.cluster.nodes(), fork_subject.mib)?;
        link.copy_ms()?;
        while quota.take_another(Instant::now()) {
            self.samples.add(&copied, EXECUTION, link.copy_ms()?)?;
            self.samples.add(&copied, MEMORY_COPY, link.memory_copy_ms()?)?;
            fork_subject.parent.write_all()?;
            self.samples.add(&forked, EXECUTION, fork_subject.parent.measure_touch_ms()?)?;
            fork_subject.parent.write_all()?;
            if let Some(ms) = fork_subject.parent.measure_copy_ms()? {
                self.samples.add(&forked, EXECUTION_WRITING, ms)?;
            }
        }
        self.discard_implausible_link(fork_subject.mib);
        Ok(())
    }

    async fn sample_criu(&mut self, fork_subject: &mut ForkSubject, mode: CriuMode) -> Result<(), BenchError> {
        let mib = fork_subject.mib;
        let criu = match &mut fork_subject.criu {
            Some(criu) => criu,
            none => none.insert(criu::CriuSubject::start(self.cluster.machine(), mib, self.plan.micro_options())?),
        };
        let cloned = criu.clone(self.cluster.machine(), mode).await?;
        let by = match mode {
            CriuMode::Eager => ForkSystem::CriuEager,
            CriuMode::Lazy => ForkSystem::CriuLazy,
        };
        let (prepare, clone) = (ForkCase::new(mib, by), ForkCase::new(mib, by).with_place(ChildPlace::Own));
        self.samples.add(&prepare, PREPARE, cloned.prepare_ms)?;
        self.samples.add(&prepare, PAUSE, cloned.pause_ms)?;
        self.samples.add(&clone, RESUME, cloned.resume_ms)?;
        self.samples.add(&clone, EXECUTION, cloned.execution_ms)
    }

    /// Discards the figure of the link if `link_copy` finds it implausible.
    fn discard_implausible_link(&mut self, mib: u64) {
        let link = ForkCase::new(mib, ForkSystem::Link);
        let median = |figure| self.samples.median(&link, figure);
        let (Some(copy_ms), Some(memory_copy_ms)) = (median(EXECUTION), median(MEMORY_COPY)) else { return };
        if let Some(reason) = link_copy::implausible_reason(mib, copy_ms, memory_copy_ms) {
            self.samples.remove(&link, EXECUTION);
            self.notes.push(format!("copy over the link not reported: {reason}"));
        }
    }
}

async fn sleep_before(pace: Pace) {
    if pace == Pace::Idle {
        tokio::time::sleep(IDLE).await;
    }
}
