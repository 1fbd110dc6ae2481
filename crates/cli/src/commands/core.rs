//! `farfork core`: writes the state of a child as a core file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use farfork_api::client::Client;
use farfork_api::failure::Failure;
use farfork_api::v1::core_event::Event;
use farfork_api::v1::{CoreEnd, CoreRequest};
use farfork_terminal::interrupt::wait_for_interrupt;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::GlobalArgs;
use crate::output::{self, ByteProgressBar, format_bytes, format_microseconds};

/// Write a core file of a running child, for gdb and other debuggers.
///
/// The child's node first fetches the missing memory, as `farfork settle` does. The child is then stopped while its
/// memory is read, and continues. Other readers, such as a debugger or the kernel's core dump, do not see pages that
/// were not fetched.
///
/// The core file contains the child's memory, so only its owner has access. Pages of zeroes are holes in the file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork core n2.c00f3a96c5d217e84
  farfork core $CHILD --output /tmp/job.core && gdb -batch -ex 'thread apply all bt' ./job /tmp/job.core

Exit status: 0 the core file is complete, 1 failure, 2 wrong usage. After a failure, there is no core file.")]
pub(crate) struct Core {
    /// Id of the child.
    #[arg(value_name = "CHILD")]
    child: String,
    /// Path of the core file [default: core.CHILD in the current directory].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The result of a written core file, in JSON output.
#[derive(Debug, Serialize)]
struct CoreView {
    child: String,
    file: String,
    /// Size of the core file, including holes.
    file_bytes: u64,
    threads: u32,
    /// Time for which the child was stopped.
    stopped_us: u64,
}

impl Core {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let output = self.output.unwrap_or_else(|| format!("core.{}", self.child).into());
        let unwritable = || format!("core file {} cannot be written", output.display());
        let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Only the owner may read the file, from its creation on. If it is not completed, it is removed.
        let draft = NamedTempFile::new_in(directory).with_context(unwritable)?;
        let client = global.connection.open().await?;
        let CoreEnd { file_bytes, threads, stopped_us } = tokio::select! {
            end = write_core(client, &self.child, draft.as_file()) => end?,
            () = wait_for_interrupt() => anyhow::bail!("child {}: interrupted: it runs on, and there is no core file", self.child),
        };
        draft.as_file().set_len(file_bytes).with_context(unwritable)?;
        draft.persist(&output).with_context(unwritable)?;
        let file = output.display().to_string();
        if global.json {
            output::print_json(&CoreView { child: self.child, file, file_bytes, threads, stopped_us });
        } else {
            output::print_note(format_args!(
                "{}: {}, {}; stopped for {}",
                self.child,
                output::format_threads(threads),
                format_bytes(file_bytes),
                format_microseconds(stopped_us)
            ));
            output::print_line(&file);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes each received piece of memory at its offset until the node sends the end.
async fn write_core(mut client: Client, child: &str, file: &File) -> anyhow::Result<CoreEnd> {
    let failed = |status| Failure::from_status(format!("child {child}"), &status);
    let request = CoreRequest { child: child.to_owned() };
    let mut events = client.core(request).await.map_err(failed)?.into_inner();
    let bar = ByteProgressBar::new("settling");
    while let Some(message) = events.message().await.map_err(failed)? {
        match message.event {
            Some(Event::Settling(progress)) => {
                bar.show(progress.total_bytes.saturating_sub(progress.missing_bytes), progress.total_bytes);
            }
            Some(Event::Piece(piece)) => {
                file.write_all_at(&piece.data, piece.offset).context("the core file cannot be written")?;
            }
            Some(Event::End(end)) => return Ok(end),
            None => {}
        }
    }
    anyhow::bail!("child {child}: its node stopped before the core file was complete")
}
