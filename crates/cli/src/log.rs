//! Logging of the long-running processes, which are the daemon and the pager. It also installs the collector of request
//! phases.

use std::io;

use anyhow::Context as _;
use clap::Args;
use farfork_node::phases;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// What is logged.
#[derive(Args, Clone)]
pub(crate) struct LogOptions {
    /// What to log on standard error: error, warn, info, debug, trace, for all or by module.
    #[arg(long, env = "FARFORK_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Begins to log on standard error.
pub(crate) fn start_logging(options: &LogOptions) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&options.log)
        .with_context(|| format!("log filter `{}`: write it like info or farfork_node=debug,info", options.log))?;
    let logged = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(filter);
    tracing_subscriber::registry().with(logged).with(phases::collector_layer()).init();
    Ok(())
}
