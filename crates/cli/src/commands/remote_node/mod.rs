//! `farfork remote-node`: the part of `cluster deploy` and `cluster undeploy` that runs on a host. The coordinator starts it
//! over ssh, with the settings of the node on standard input; users do not.

mod daemon;
mod removal;
mod report;
mod settings;
mod systemd;

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

pub(crate) use self::removal::{RemovalReport, staged_path};
pub(crate) use self::report::NodeReport;
pub(crate) use self::settings::{NodeSettings, PROGRAMS};
use crate::output;

/// Inspect, start or remove the node of this machine, for a coordinator.
#[derive(Args)]
pub(crate) struct RemoteNode {
    operation: RemoteOperation,
    /// Remove replicas of volumes, too.
    #[arg(long)]
    remove_volumes: bool,
}

/// An operation on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RemoteOperation {
    /// Report the installed identity and the running daemon.
    Inspect,
    /// Start or restart the daemon, unless it runs as the settings require.
    Start,
    /// Stop the daemon, and remove everything that was installed.
    Remove,
}

impl RemoteNode {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let settings: NodeSettings = serde_json::from_reader(io::stdin().lock()).context("the settings of the node")?;
        match self.operation {
            RemoteOperation::Inspect => output::print_json(&NodeReport::inspect(&settings).await?),
            RemoteOperation::Start => {
                let started = daemon::ensure_started(&settings)?;
                output::print_json(&serde_json::json!({ "started": started }));
            }
            RemoteOperation::Remove => output::print_json(&removal::remove(&settings, self.remove_volumes)?),
        }
        Ok(ExitCode::SUCCESS)
    }
}
