//! The course of `farfork bench churn`: children that change their memory hard while it comes, in turn with the same program
//! unforked.

use std::fs;
use std::path::PathBuf;

use super::cluster::Cluster;
use crate::error::BenchError;
use crate::figure::Place;
use crate::plan::churn::{ChurnPlan, Key};
use crate::progress::{Show, tell};
use crate::report::churn::ChurnReport;
use crate::samples::Samples;
use crate::workload::churn::{self, CHURN, Deed};
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::Parent;

/// Where what is done is done, in turn.
const PLACES: [Option<Place>; 3] = [None, Some(Place::Own), Some(Place::Other)];

/// Measures. `show` may end it before a step. `farfork` is the program whose `node` command the daemons are.
///
/// # Errors
/// What ended it early; a wrong page is such.
pub async fn run_churn(plan: &ChurnPlan, farfork: PathBuf, show: Show<'_>) -> Result<ChurnReport, BenchError> {
    let mut cluster = Cluster::start(farfork, plan.encrypted).await?;
    let program = CHURN.install(cluster.scratch())?;
    let payload = cluster.scratch().join("deed");
    let parent = Parent::start(&CHURN, &program, plan.mib, PAYLOAD_PATH.as_ref())?;
    let seed = cluster.prepare(parent.pid()).await?.seed;
    let (mut samples, mut done) = (Samples::new(), 0);
    let steps = plan.runs * Deed::ALL.len() * PLACES.len();
    for _ in 0..plan.runs {
        for deed in Deed::ALL {
            for node in PLACES {
                tell(show, done, steps, deed.text())?;
                let us = match node {
                    Some(place) => churn::took_us(&cluster.fork(&seed, place, &deed.to_string()).await?.said)?,
                    None => {
                        let file = |cause| BenchError::File { path: payload.clone(), cause };
                        fs::write(&payload, deed.to_string()).map_err(file)?;
                        churn::unforked_us(&program, plan.mib, &payload)?
                    }
                };
                samples.add(Key { deed, node }, us)?;
                done += 1;
            }
        }
    }
    cluster.drop_seed(&seed).await?;
    cluster.end()?;
    Ok(ChurnReport::new(plan, samples))
}
