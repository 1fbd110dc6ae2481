//! The processes that serve volumes. The daemon starts `offload` and `worker`, and `farfork volume mount` starts
//! `client`. Users do not start them.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use farfork_cluster::catalog::CatalogLocation;
use farfork_sys::affinity::restrict_to_cpus;
use farfork_trust::{Credentials, Encryption};
use farfork_volume::chain::LogCompression;
use farfork_volume::process::{
    CopyMethod, OffloadMode, OffloadOptions, VolumeStore, WorkPriority, end_with_supervisor, run_client, run_offload,
    run_worker,
};
use farfork_wire::NodeName;

use super::mount_options::MountOptionArgs;
use crate::GlobalArgs;
use crate::log::{self, LogOptions};

/// Serve the mount of a volume. A line on standard output says when it is usable.
#[derive(Args)]
pub(crate) struct ClientArguments {
    /// Store of the node.
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Name of the volume.
    volume: String,
    /// Mount point.
    directory: PathBuf,
    #[command(flatten)]
    options: MountOptionArgs,
    #[command(flatten)]
    log: LogOptions,
}

/// Read the logs of a node's volumes, replicate them, and order publishing.
#[derive(Args)]
pub(crate) struct OffloadArguments {
    /// Store of the node.
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Catalog of the cluster.
    #[arg(long, value_name = "FILE|URL")]
    catalog: CatalogLocation,
    /// Name of the node.
    #[arg(long)]
    name: NodeName,
    /// Address at which other nodes reach this process. The ports are chosen by the kernel.
    #[arg(long, value_name = "IP")]
    listen: IpAddr,
    /// Time after which a node that does not answer leaves the chains of its volumes, in milliseconds.
    #[arg(long, value_name = "MS")]
    detect_ms: u64,
    /// Bytes of its log that a replica must take in each --detect-ms to stay in the chain.
    #[arg(long, value_name = "BYTES")]
    replica_rate_min: u64,
    /// Interval between two comparisons of the replicas of a volume, in hours; 0 for never.
    #[arg(long, value_name = "HOURS")]
    scrub_hours: u32,
    /// Method to copy data into shared trees while the worker does not run.
    #[arg(long, value_name = "METHOD", default_value_t = CopyMethod::default())]
    copy: CopyMethod,
    /// CPU priority of replication and publishing: normal or idle.
    #[arg(long, value_name = "PRIORITY", default_value_t = WorkPriority::default())]
    priority: WorkPriority,
    /// How log data is compressed on its way to the next replica.
    #[arg(long, value_name = "METHOD", default_value_t = LogCompression::default())]
    compress: LogCompression,
    /// CPUs that the process may use, such as 1 or 2-3.
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Encrypt transfers between nodes. Without this option, other nodes are not authenticated.
    #[arg(long, value_name = "on|off")]
    encryption: Option<Encryption>,
    #[command(flatten)]
    log: LogOptions,
}

/// Apply change sets to the shared trees of a node's volumes.
#[derive(Args)]
pub(crate) struct WorkerArguments {
    /// Store of the node.
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Method to copy data into shared trees.
    #[arg(long, value_name = "METHOD", default_value_t = CopyMethod::default())]
    copy: CopyMethod,
    /// CPU priority of replication and publishing: normal or idle.
    #[arg(long, value_name = "PRIORITY", default_value_t = WorkPriority::default())]
    priority: WorkPriority,
    #[command(flatten)]
    log: LogOptions,
}

impl ClientArguments {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        start(&self.log)?;
        let ready = || {
            // write(2) fails if the supervisor, the only reader, has ended.
            let mut output = std::io::stdout();
            let _ = output.write_all(b"mounted\n").and_then(|()| output.flush());
        };
        let store = VolumeStore::new(&self.store);
        run_client(&store, &self.volume, &self.directory, self.options.options(), ready)
            .with_context(|| format!("client of volume {}", self.volume))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl OffloadArguments {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        start(&self.log)?;
        let object = format!("offload process of node {}", self.name);
        if let Some(cpus) = &self.cpus {
            restrict_to_cpus(cpus).with_context(|| format!("--offload-cpus {cpus}"))?;
        }
        let credentials = self.encryption.map(|encryption| Credentials::open(&global.trust(), encryption)).transpose();
        let options = OffloadOptions {
            node: self.name,
            store: self.store,
            catalog: self.catalog,
            listen: self.listen,
            detection_time: Duration::from_millis(self.detect_ms),
            replica_rate_min: self.replica_rate_min,
            scrub_interval: Duration::from_secs(3600 * u64::from(self.scrub_hours)),
            mode: OffloadMode::On,
            copy_method: self.copy,
            priority: self.priority,
            compression: self.compress,
            credentials: credentials.with_context(|| object.clone())?,
        };
        run_offload(&options).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl WorkerArguments {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        start(&self.log)?;
        let object = format!("worker of {}", self.store.display());
        run_worker(&VolumeStore::new(&self.store), self.copy, self.priority).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn start(log: &LogOptions) -> anyhow::Result<()> {
    end_with_supervisor().context("prctl")?;
    log::start_logging(log)
}
