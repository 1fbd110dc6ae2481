//! Runs `farfork bench function`: for each function, a seed and its first child on each node, in turn with a child of
//! os.fork().

use std::path::{Path, PathBuf};

use super::local_cluster::BenchCluster;
use crate::error::BenchError;
use crate::figure::ChildPlace;
use crate::parameters::function::{FunctionFigure, FunctionParameters, FunctionSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::function::FunctionSummary;
use crate::workload::functions::{FunctionParent, FunctionSource, environment};

/// Measures the functions one after the other. `show` may end the run before a step. `farfork` is the program that runs
/// the daemons.
///
/// # Errors
/// The error of the step that fails. [`BenchError::WrongResult`] if a child's result differs from the parent's.
pub async fn run_function(
    plan: &FunctionParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<FunctionSummary, BenchError> {
    let steps = plan.functions.len() * (plan.runs + 1);
    report_progress(show, 0, steps, "the Python environment")?;
    let python = environment::named_or_installed(plan.python.as_deref())?;
    let mut samples = Samples::with_file(plan.samples_file.as_deref())?;
    let mut cluster = BenchCluster::start(farfork, true).await?;
    for (done, source) in plan.functions.iter().enumerate() {
        let done = done * (plan.runs + 1);
        report_progress(show, done, steps, format!("starting {}", source.name))?;
        let mut function = FunctionMeasurement::start(plan, source, &python, &cluster, &mut samples)?;
        for round in 0..plan.runs {
            report_progress(show, done + 1 + round, steps, source.name.clone())?;
            function.measure_round(&mut cluster).await?;
        }
    }
    cluster.stop()?;
    FunctionSummary::new(plan, samples)
}

/// A function's parent, and the samples of the function.
struct FunctionMeasurement<'a> {
    name: &'a str,
    payload: &'a str,
    parent: FunctionParent,
    samples: &'a mut Samples<FunctionSampleKey>,
}

impl<'a> FunctionMeasurement<'a> {
    fn start(
        plan: &'a FunctionParameters,
        source: &'a FunctionSource,
        python: &Path,
        cluster: &BenchCluster,
        samples: &'a mut Samples<FunctionSampleKey>,
    ) -> Result<Self, BenchError> {
        let parent = FunctionParent::start(source, python, cluster.scratch(), &plan.payload)?;
        let mut run = Self { name: &source.name, payload: &plan.payload, parent, samples };
        run.add(FunctionFigure::ResidentMib, run.parent.resident_kib as f64 / 1024.0)?;
        run.add(FunctionFigure::FirstCall, milliseconds(run.parent.first_call_ns))?;
        run.add(FunctionFigure::WarmCall, milliseconds(run.parent.warm_call_ns))?;
        Ok(run)
    }

    async fn measure_round(&mut self, cluster: &mut BenchCluster) -> Result<(), BenchError> {
        let local = self.parent.call_in_local_fork()?;
        self.add(FunctionFigure::LocalFork, milliseconds(local.started_ns))?;
        self.add(FunctionFigure::LocalExecution, milliseconds(local.execution_ns))?;
        let seed = cluster.prepare(self.parent.pid()).await?;
        self.add(FunctionFigure::Prepare, seed.round_trip.as_secs_f64() * 1e3)?;
        self.add(FunctionFigure::Pause, seed.pause_us as f64 / 1e3)?;
        for place in [ChildPlace::Own, ChildPlace::Other] {
            let child = cluster.fork(&seed.seed, place, self.payload).await?;
            let call = self.parent.parse_call(&child.output)?;
            self.add(FunctionFigure::Resume(place), milliseconds(call.started_ns - child.sent_unix_ns))?;
            self.add(FunctionFigure::Execution(place), milliseconds(call.execution_ns))?;
        }
        cluster.drop_seed(&seed.seed).await
    }

    fn add(&mut self, figure: FunctionFigure, value: f64) -> Result<(), BenchError> {
        self.samples.add(FunctionSampleKey { function: self.name.to_owned(), figure }, value)
    }
}

fn milliseconds(ns: i64) -> f64 {
    ns as f64 / 1e6
}
