//! Runs `farfork bench fork`: for each size of parent, takes samples of each figure, step by step.
//!
//! Seeds are on the first node, children on both nodes. Memory is touched before anything is measured. This file has
//! the order of the steps; `steps` takes their samples.

mod steps;
mod strategies;

use std::path::PathBuf;
use std::time::Instant;

use crate::baseline::criu::{self, CriuMode};
use crate::baseline::link_copy::LINK_COPY;
use crate::error::BenchError;
use crate::experiment::local_cluster::BenchCluster;
use crate::figure::ForkSampleKey;
use crate::machine::{self, MachineState};
use crate::parameters::fork::{ForkParameters, ForkStep, PeerSystem, SampleQuota, time_share};
use crate::parameters::strategies::StrategyFigures;
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::fork::ForkSummary;
use crate::workload::micro::{MICRO, Micro, PAYLOAD_PATH};

/// Memory that a run needs, as a multiple of the parent's size: the parent, the template's copies of its pages, a
/// child, both ends of the link, and the data that one end compares with.
const MEMORY_FACTOR: u64 = 5;

/// Additional memory for the nodes and the machine itself, in MiB.
const MEMORY_BASE_MIB: u64 = 256;

/// Runs the benchmark. `farfork` is the program that runs the daemons.
///
/// # Errors
/// The error of the first step that fails. A child with wrong memory is an error.
pub async fn run_fork(
    plan: &ForkParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<ForkSummary, BenchError> {
    require_memory(plan)?;
    let (peers, notes) = usable_peer_modes(plan).await?;
    let (began, machine_state) = (Instant::now(), MachineState::detect());
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let steps = ForkStep::all_steps(plan, &peers);
    report_progress(show, 0, steps.len(), "starting two nodes")?;
    let mut fork_run = ForkRun::start(plan, farfork, samples).await?;
    fork_run.notes = notes;
    fork_run.measure_all(&steps, show).await?;
    let ForkRun { cluster, samples, notes, strategies, .. } = fork_run;
    cluster.stop()?;
    Ok(ForkSummary { plan: plan.clone(), samples, strategies, notes, elapsed: began.elapsed(), machine_state })
}

/// A run in progress.
#[derive(Debug)]
struct ForkRun<'a> {
    plan: &'a ForkParameters,
    cluster: BenchCluster,
    micro: PathBuf,
    link: PathBuf,
    samples: Samples<ForkSampleKey>,
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
        plan: &'a ForkParameters,
        farfork: PathBuf,
        samples: Samples<ForkSampleKey>,
    ) -> Result<Self, BenchError> {
        let cluster = match plan.resume_case.has_zygotes() {
            false => BenchCluster::start(farfork, plan.encrypted).await?,
            true => BenchCluster::start_with_zygotes(farfork, plan.encrypted).await?,
        };
        let micro = MICRO.install(cluster.scratch())?;
        let link = LINK_COPY.install(cluster.scratch())?;
        let (strategies, notes) = Default::default();
        let fork_run = Self { plan, cluster, micro, link, samples, strategies, notes };
        fork_run.warm_up()?;
        Ok(fork_run)
    }

    /// Touches as much memory as the largest size needs. The first touch of memory that a hypervisor has not yet given
    /// to this machine takes much longer than later ones.
    fn warm_up(&self) -> Result<(), BenchError> {
        let largest = self.plan.sizes_mib.iter().max().copied().unwrap_or(0);
        self.start_micro(largest * (MEMORY_FACTOR - 1)).map(drop)
    }

    async fn measure_all(&mut self, steps: &[ForkStep], show: ProgressCallback<'_>) -> Result<(), BenchError> {
        let end = Instant::now() + self.plan.time_max;
        let mut fork_subject: Option<ForkSubject> = None;
        for (done, step) in steps.iter().enumerate() {
            report_progress(show, done, steps.len(), format!("a process of {} MiB", step.mib))?;
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
            let deadline = Instant::now() + time_share(&steps[done..], self.plan.runs, left);
            let quota = SampleQuota::new(step.runs_min(left), self.plan.runs, deadline);
            self.run_step(step.kind, fork_subject, quota).await?;
            self.samples.flush()?;
        }
        self.finish(fork_subject).await
    }

    fn start_subject(&self, mib: u64) -> Result<ForkSubject, BenchError> {
        Ok(ForkSubject { mib, parent: self.start_micro(mib)?, seed: None, criu: None })
    }

    fn start_micro(&self, mib: u64) -> Result<Micro, BenchError> {
        let node = self.cluster.nodes().first().map(|node| node.socket.as_path());
        Micro::start(&self.micro, mib, self.plan.micro_options(), PAYLOAD_PATH.as_ref(), node)
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

    fn add(&mut self, key: ForkSampleKey, value: f64) -> Result<(), BenchError> {
        self.samples.add(key, value)
    }
}

/// Returns the modes of the peer that can be measured, and notes for the summary why others cannot.
async fn usable_peer_modes(plan: &ForkParameters) -> Result<(Vec<CriuMode>, Vec<String>), BenchError> {
    let Some(PeerSystem::Criu) = plan.peer else {
        return Ok((Vec::new(), Vec::new()));
    };
    Ok(match criu::check_criu().await? {
        None => (vec![CriuMode::Eager, CriuMode::Lazy], Vec::new()),
        Some(reason) => (vec![CriuMode::Eager], vec![format!("CRIU, lazy: not measured: {reason}")]),
    })
}

fn require_memory(plan: &ForkParameters) -> Result<(), BenchError> {
    let mib = plan.sizes_mib.iter().max().copied().unwrap_or(0);
    machine::require_memory(mib, mib * MEMORY_FACTOR + MEMORY_BASE_MIB, "--mib")
}
