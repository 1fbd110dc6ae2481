//! `farfork logs`: prints the output of a child.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use farfork_node::api::v1::{LogsRequest, OutputStream};
use farfork_node::failure::Failure;

use crate::{GlobalArgs, output};

/// Show what a child has written to its standard output and standard error.
///
/// Each stream goes to the stream of the same name here. Logs are kept on the child's node until `farfork rm`; those of
/// an attached child went to whoever forked it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork logs $CHILD
  farfork logs --follow --stderr $CHILD

Exit status: 0 shown, 1 there is no such child, or its node cannot be asked, 2 wrong usage.")]
pub(crate) struct Logs {
    /// Id of the child.
    child: String,
    /// Go on with what it writes, until it ends.
    #[arg(long, short, conflicts_with = "json")]
    follow: bool,
    /// Only its standard output.
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only its standard error.
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
