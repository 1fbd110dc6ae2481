//! Runs `farfork bench churn`: children that change their memory while it is still being fetched, in turn with the same
//! program without a fork.

use std::fs;
use std::path::PathBuf;

use super::local_cluster::BenchCluster;
use crate::error::BenchError;
use crate::figure::ChildPlace;
use crate::parameters::churn::{ChurnParameters, ChurnSampleKey};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::churn::ChurnSummary;
use crate::workload::churn::{self, CHURN, ChurnOperation};
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::ParentProgram;

/// Where the operations run, in turn. `None`: in the program itself, without a fork.
const PLACES: [Option<ChildPlace>; 3] = [None, Some(ChildPlace::Own), Some(ChildPlace::Other)];

/// Runs the benchmark. `show` may end it before a step. `farfork` is the program that runs the daemons.
///
/// # Errors
/// The run ends early, for example because of a wrong page.
pub async fn run_churn(
    plan: &ChurnParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<ChurnSummary, BenchError> {
    let mut cluster = BenchCluster::start(farfork, plan.encrypted).await?;
    let program = CHURN.install(cluster.scratch())?;
    let payload = cluster.scratch().join("deed");
    let parent = ParentProgram::start(&CHURN, &program, plan.mib, PAYLOAD_PATH.as_ref())?;
    let seed = cluster.prepare(parent.pid()).await?.seed;
    let (mut samples, mut done) = (Samples::with_file(plan.samples_file.as_deref())?, 0);
    let steps = plan.runs * ChurnOperation::ALL.len() * PLACES.len();
    for _ in 0..plan.runs {
        for churn_operation in ChurnOperation::ALL {
            for node in PLACES {
                report_progress(show, done, steps, churn_operation.text())?;
                let us = match node {
                    Some(place) => churn::parse_duration_us(
                        &cluster.fork(&seed, place, &churn_operation.to_string()).await?.output,
                    )?,
                    None => {
                        let file = |cause| BenchError::File { path: payload.clone(), cause };
                        fs::write(&payload, churn_operation.to_string()).map_err(file)?;
                        churn::measure_unforked_us(&program, plan.mib, &payload)?
                    }
                };
                samples.add(ChurnSampleKey { deed: churn_operation, node }, us)?;
                done += 1;
            }
        }
    }
    cluster.drop_seed(&seed).await?;
    cluster.stop()?;
    ChurnSummary::new(plan, samples)
}
