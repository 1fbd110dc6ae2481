//! Runs `farfork bench function`: for each function, a seed and its first child on each node, in turn with a child of
//! os.fork().

use std::path::PathBuf;

use super::local_cluster::{BenchCluster, ForkOptions};
use crate::error::BenchError;
use crate::figure::ChildPlace;
use crate::parameters::function::{FunctionFigure, FunctionParameters, FunctionSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::failures::FunctionFailures;
use crate::summary::function::FunctionSummary;
use crate::summary::function_profile::FunctionProfile;
use crate::workload::functions::{FunctionParent, FunctionSource};

/// Measures the functions one after the other. `show` may end the run before a step. `farfork` is the program that runs
/// the daemons. If a function fails, the summary has its error instead of figures, and the others are measured.
///
/// # Errors
/// A step failed for a reason other than the function, or all functions failed: the error of the first.
pub async fn run_function(
    plan: &FunctionParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<FunctionSummary, BenchError> {
    let steps = plan.functions.len() * (plan.runs + 1);
    report_progress(show, 0, steps, "starting the nodes")?;
    let (mut failures, mut profiles) = (FunctionFailures::default(), Vec::new());
    let mut samples = Samples::with_file(plan.samples_file.as_deref())?;
    let mut cluster = BenchCluster::start(farfork, true).await?;
    for (done, source) in plan.functions.iter().enumerate() {
        let done = done * (plan.runs + 1);
        let must_install = plan.function_options.must_install(source);
        let what = if must_install { "installing the packages of" } else { "starting" };
        report_progress(show, done, steps, format!("{what} {}", source.name))?;
        let mut round = 0;
        let mut show_round = || {
            round += 1;
            report_progress(show, done + round, steps, source.name.clone())
        };
        let measured = measure_function(plan, source, &mut cluster, &mut samples, &mut show_round).await;
        profiles.extend(failures.record(&source.name, measured)?.into_iter().flatten());
    }
    cluster.stop()?;
    FunctionSummary::new(plan, samples, profiles, failures.require_other(plan.functions.len())?)
}

/// Measures one function. `show_round` may end the run before a round. Returns the profiles of the last round.
async fn measure_function(
    plan: &FunctionParameters,
    source: &FunctionSource,
    cluster: &mut BenchCluster,
    samples: &mut Samples<FunctionSampleKey>,
    show_round: &mut dyn FnMut() -> Result<(), BenchError>,
) -> Result<Vec<FunctionProfile>, BenchError> {
    let mut function = FunctionMeasurement::start(plan, source, cluster, samples)?;
    let mut profiles = Vec::new();
    for _ in 0..plan.runs {
        show_round()?;
        profiles = function.measure_round(cluster).await?;
    }
    Ok(profiles)
}

/// A function's parent, and the samples of the function.
struct FunctionMeasurement<'a> {
    plan: &'a FunctionParameters,
    name: &'a str,
    parent: FunctionParent,
    samples: &'a mut Samples<FunctionSampleKey>,
}

impl<'a> FunctionMeasurement<'a> {
    fn start(
        plan: &'a FunctionParameters,
        source: &'a FunctionSource,
        cluster: &BenchCluster,
        samples: &'a mut Samples<FunctionSampleKey>,
    ) -> Result<Self, BenchError> {
        let parent = FunctionParent::start(source, &plan.function_options, cluster.scratch(), &plan.payload, None)?;
        let mut run = Self { plan, name: &source.name, parent, samples };
        run.add(FunctionFigure::ResidentMib, run.parent.resident_kib as f64 / 1024.0)?;
        run.add(FunctionFigure::FirstCall, milliseconds(run.parent.first_call_ns))?;
        run.add(FunctionFigure::WarmCall, milliseconds(run.parent.warm_call_ns))?;
        Ok(run)
    }

    /// Returns the profiles of the round's children, if they are wanted.
    async fn measure_round(&mut self, cluster: &mut BenchCluster) -> Result<Vec<FunctionProfile>, BenchError> {
        let local = self.parent.call_in_local_fork()?;
        self.add(FunctionFigure::LocalFork, milliseconds(local.started_ns))?;
        self.add(FunctionFigure::LocalExecution, milliseconds(local.execution_ns))?;
        let seed = cluster.prepare(self.parent.pid()).await?;
        self.add(FunctionFigure::Prepare, seed.round_trip.as_secs_f64() * 1e3)?;
        self.add(FunctionFigure::Pause, seed.pause_us as f64 / 1e3)?;
        let mut profiles = Vec::new();
        // `first` uses no working set, so no sample profits from the pages that earlier children touched.
        let options = ForkOptions { strategy: "first", profile: self.plan.profile, ..ForkOptions::default() };
        for place in [ChildPlace::Own, ChildPlace::Other] {
            let child = cluster.fork_with_detail(&seed.seed, place, &self.plan.payload, options);
            let (child, detail) = self.parent.await_child(child).await?;
            let call = self.parent.parse_call(&child.output)?;
            self.add(FunctionFigure::Resume(place), milliseconds(call.started_ns - child.sent_unix_ns))?;
            self.add(FunctionFigure::Execution(place), milliseconds(call.execution_ns))?;
            if self.plan.profile {
                let pager = detail.pager.unwrap_or_default();
                profiles.push(FunctionProfile::new(self.name, place, &pager, &child.phases));
            }
        }
        cluster.drop_seed(&seed.seed).await?;
        Ok(profiles)
    }

    fn add(&mut self, figure: FunctionFigure, value: f64) -> Result<(), BenchError> {
        self.samples.add(FunctionSampleKey { function: self.name.to_owned(), figure }, value)
    }
}

fn milliseconds(ns: i64) -> f64 {
    ns as f64 / 1e6
}
