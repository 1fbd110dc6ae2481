//! `farfork down`: the end of a cluster on this machine.

use std::process::ExitCode;

use clap::Args;
use farfork_cluster::local::LocalCluster;

use super::up::Place;
use crate::parents::Parents;
use crate::{Global, output, privilege};

/// End the cluster that `farfork up` started, and remove every trace of it.
///
/// Its children are killed and its seeds dropped; parents are not touched, and keep the names that `farfork run` gave them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork down
  farfork down --run-dir /tmp/test

Exit status: 0 nothing of it is left, 1 failed, or there is no cluster, 2 wrong usage.")]
pub(crate) struct Down {
    #[command(flatten)]
    place: Place,
}

impl Down {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        privilege::require_root("it stops daemons and removes network namespaces")?;
        let cluster = LocalCluster::load(&self.place.run_dir())?;
        if let Some(name) = &self.place.name {
            cluster.require_name(name)?;
        }
        let names: Vec<String> = cluster.nodes().iter().map(|node| node.name.clone()).collect();
        Parents::of(&self.place.run_dir()).forget_ended();
        cluster.down()?;
        if global.json {
            output::json(&serde_json::json!({ "removed": names }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
