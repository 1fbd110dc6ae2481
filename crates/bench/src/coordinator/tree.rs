//! The course of `farfork bench tree`: trees of several sizes, in turn, and in each turn `fork()` of every process first.

use std::path::PathBuf;

use super::cluster::Cluster;
use crate::error::BenchError;
use crate::plan::tree::{Figure, Key, TreePlan};
use crate::progress::{Show, tell};
use crate::report::tree::TreeReport;
use crate::samples::Samples;
use crate::workload::tree::{TREE, Tree};

/// Measures. `show` may end it before a step. `farfork` is the program whose `node` command the daemons are.
///
/// # Errors
/// What ended it early.
pub async fn run_tree(plan: &TreePlan, farfork: PathBuf, show: Show<'_>) -> Result<TreeReport, BenchError> {
    let mut cluster = Cluster::start(farfork, true).await?;
    let program = TREE.install(cluster.scratch())?;
    let start = |processes: &u64| Ok((*processes, Tree::start(&program, *processes, plan.mib, plan.shared_mib)?));
    let mut trees: Vec<(u64, Tree)> = plan.processes.iter().map(start).collect::<Result<_, BenchError>>()?;
    let (mut samples, mut done) = (Samples::new(), 0);
    let steps = plan.runs * trees.len();
    for _ in 0..plan.runs {
        for (processes, tree) in &mut trees {
            tell(show, done, steps, format!("{processes} processes"))?;
            measure(&mut cluster, *processes, tree, &mut samples).await?;
            done += 1;
        }
    }
    drop(trees);
    cluster.end()?;
    Ok(TreeReport::new(plan, samples))
}

/// One round of a tree whose processes have written to all of their pages before each fork.
async fn measure(
    cluster: &mut Cluster,
    processes: u64,
    tree: &mut Tree,
    samples: &mut Samples<Key>,
) -> Result<(), BenchError> {
    tree.write_all()?;
    let (forks_ms, copy_ms) = (tree.forks_ms()?, tree.copy_ms()?);
    tree.write_all()?;
    let prepared = cluster.prepare(tree.pid()).await?;
    cluster.drop_seed(&prepared.seed).await?;
    for (figure, ms) in [
        (Figure::Forks, forks_ms),
        (Figure::Copy, copy_ms),
        (Figure::Pause, prepared.pause_us as f64 / 1e3),
        (Figure::Prepare, prepared.answer.as_secs_f64() * 1e3),
    ] {
        samples.add(Key { processes, figure }, ms)?;
    }
    Ok(())
}
