//! `farfork logs`: prints the output of a child.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::{LogsRequest, OutputStream};

use crate::{GlobalArgs, output};

/// Print the standard output and standard error of a child.
///
/// The command writes each stream to its own stream of the same name. The child's node keeps the output until
/// `farfork rm`. If too many children have ended, the node also removes the oldest of them, with their output.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork logs $CHILD
  farfork logs --follow --stderr $CHILD

Exit status: 0 success, 1 no such child or its node does not answer, 2 wrong usage.")]
pub(crate) struct Logs {
    /// Id of the child.
    child: String,
    /// Continue to print new output until the child ends.
    #[arg(long, short, conflicts_with = "json")]
    follow: bool,
    /// Print only standard output.
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Print only standard error.
    #[arg(long)]
    stderr: bool,
}

impl Logs {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let only = match (self.stdout, self.stderr) {
            (true, _) => OutputStream::Stdout,
            (_, true) => OutputStream::Stderr,
            _ => OutputStream::Unspecified,
        };
        let request = LogsRequest { child: self.child.clone(), follow: self.follow, only: only.into() };
        let failed = |status| Failure::from_status(format!("child {}", self.child), &status);
        let mut client = global.connection.open().await?;
        let mut chunks = client.logs(request).await.map_err(failed)?.into_inner();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(chunk) = chunks.message().await.map_err(failed)? {
            match (chunk.stream() == OutputStream::Stderr, global.json) {
                (false, false) => output::write_bytes(&chunk.data)?,
                (true, false) => io::stderr().write_all(&chunk.data)?,
                (false, true) => stdout.extend(chunk.data),
                (true, true) => stderr.extend(chunk.data),
            }
        }
        if global.json {
            output::print_json(&serde_json::json!({
                "child": self.child,
                "stdout": String::from_utf8_lossy(&stdout),
                "stderr": String::from_utf8_lossy(&stderr),
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
