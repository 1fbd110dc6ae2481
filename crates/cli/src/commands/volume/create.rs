//! `farfork volume create NAME`: creates a volume on this machine.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Args;
use farfork_volume::log::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use farfork_volume::process::VolumeDirectory;
use farfork_volume::record::PAGE_BYTES;

use super::StoreArguments;
use crate::GlobalArgs;
use crate::size::parse_nonzero_size;

/// Create a volume on this machine.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume create data
  farfork volume create data --log-size 256MiB

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct CreateVolume {
    /// Name of the volume.
    name: String,
    /// Size of the log, such as 256MiB.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_nonzero_size)]
    log_size: u64,
    #[command(flatten)]
    store: StoreArguments,
}

impl CreateVolume {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let Self { name, log_size, store } = self;
        let path = store.path_of(&name)?;
        ensure!(
            (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_size) && log_size.is_multiple_of(PAGE_BYTES),
            "volume {name}: a log has 8MiB to 2GiB, in whole pages"
        );
        fs::create_dir_all(&store.store).with_context(|| format!("volume {name}: {}", store.store.display()))?;
        let volume = fastrand::u64(1..);
        VolumeDirectory::create(&path, volume, log_size).with_context(|| format!("volume {name}"))?;
        if global.json {
            println!("{}", serde_json::json!({ "volume": name, "path": path.display().to_string() }));
        } else {
            println!("{name} is created in {}", path.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
