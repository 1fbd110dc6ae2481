//! `farfork down`: stops the cluster that `farfork up` started on this machine.

use std::process::ExitCode;

use clap::Args;
use farfork_cluster::local::LocalCluster;
use farfork_terminal::privilege;

use super::up::LocalClusterArgs;
use crate::process_names::ProcessNames;
use crate::{GlobalArgs, output};

/// Stop the cluster that `farfork up` started, and remove everything that it created.
///
/// Its children are killed and its seeds are dropped. Parent processes keep running, and keep their names from
/// `farfork run`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork down
  farfork down --run-dir /tmp/test

Exit status: 0 the cluster is removed, 1 failure or no cluster, 2 wrong usage.")]
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
