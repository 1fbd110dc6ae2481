//! `farfork down`: stops the cluster that `farfork up` started on this machine.

use std::process::ExitCode;

use clap::Args;
use farfork_cluster::local::LocalCluster;

use super::up::LocalClusterArgs;
use crate::process_names::ProcessNames;
use crate::{GlobalArgs, output, privilege};

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
    cluster: LocalClusterArgs,
}

impl Down {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it stops daemons and removes network namespaces")?;
        let cluster = LocalCluster::load(&self.cluster.run_dir())?;
        if let Some(name) = &self.cluster.name {
            cluster.require_name(name)?;
        }
        let names: Vec<String> = cluster.nodes().iter().map(|node| node.name.clone()).collect();
        ProcessNames::in_run_dir(&self.cluster.run_dir()).remove_ended();
        cluster.down()?;
        if global.json {
            output::print_json(&serde_json::json!({ "removed": names }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
