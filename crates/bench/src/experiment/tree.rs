//! Runs `farfork bench tree`: for process trees of several sizes in turn, `fork()` of every process, then the tree's
//! pause.

use std::path::PathBuf;

use super::local_cluster::BenchCluster;
use crate::error::BenchError;
use crate::parameters::tree::{TreeFigure, TreeParameters, TreeSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::tree::TreeSummary;
use crate::workload::process_tree::{PROCESS_TREE, ProcessTree};

/// Runs the benchmark. `show` may end it before a step. `farfork` is the program that runs the daemons.
///
/// # Errors
/// The run ends early.
pub async fn run_tree(
    plan: &TreeParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<TreeSummary, BenchError> {
    let mut cluster = BenchCluster::start(farfork, true).await?;
    let program = PROCESS_TREE.install(cluster.scratch())?;
    let start =
        |processes: &u64| Ok((*processes, ProcessTree::start(&program, *processes, plan.mib, plan.shared_mib)?));
    let mut trees: Vec<(u64, ProcessTree)> = plan.processes.iter().map(start).collect::<Result<_, BenchError>>()?;
    let (mut samples, mut done) = (Samples::with_file(plan.samples_file.as_deref())?, 0);
    let steps = plan.runs * trees.len();
    for _ in 0..plan.runs {
        for (processes, tree) in &mut trees {
            report_progress(show, done, steps, format!("{processes} processes"))?;
            measure_tree(&mut cluster, *processes, tree, &mut samples).await?;
            done += 1;
        }
    }
    drop(trees);
    cluster.stop()?;
    TreeSummary::new(plan, samples)
}

/// One round of a tree. The processes write to all of their pages before they fork themselves, and before the prepare.
async fn measure_tree(
    cluster: &mut BenchCluster,
    processes: u64,
    tree: &mut ProcessTree,
    samples: &mut Samples<TreeSampleKey>,
) -> Result<(), BenchError> {
    tree.write_all()?;
    let (forks_ms, copy_ms) = (tree.measure_forks_ms()?, tree.measure_copy_ms()?);
    tree.write_all()?;
    let prepared = cluster.prepare(tree.pid()).await?;
    cluster.drop_seed(&prepared.seed).await?;
    for (figure, ms) in [
        (TreeFigure::Forks, forks_ms),
        (TreeFigure::Copy, copy_ms),
        (TreeFigure::Pause, prepared.pause_us as f64 / 1e3),
        (TreeFigure::Prepare, prepared.round_trip.as_secs_f64() * 1e3),
    ] {
        samples.add(TreeSampleKey { processes, figure }, ms)?;
    }
    Ok(())
}
