//! Logging of the long-running processes: the daemon, the pager, and the processes of volumes. Also installs the tracing
//! layer that collects request phases.

use std::io;

use anyhow::Context as _;
use clap::Args;
use farfork_node::phases;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Options of the log.
#[derive(Args, Clone)]
pub(crate) struct LogOptions {
    /// Log filter for standard error: error, warn, info, debug or trace, or levels by module, such as
    /// farfork_node=debug,info.
    #[arg(long, env = "FARFORK_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Starts logging to standard error.
pub(crate) fn start_logging(options: &LogOptions) -> anyhow::Result<()> {
    let filter: Targets = options
        .log
        .parse()
        .with_context(|| format!("log filter `{}`: write it like info or farfork_node=debug,info", options.log))?;
    let logged = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(filter);
    tracing_subscriber::registry().with(logged).with(phases::collector_layer()).init();
    Ok(())
}
