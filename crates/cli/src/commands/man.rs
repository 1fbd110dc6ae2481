//! `farfork man`: prints the manual pages that `farfork_terminal::manual` makes, or writes them to a directory.
//! `farfork-bench` adds the pages of its own commands.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, ensure};
use clap::{Args, CommandFactory as _};
use farfork_terminal::manual::{self, ManualArguments, ManualPage};
use serde_json::{Value, json};

use super::bench_program;
use crate::{Cli, GlobalArgs, output};

/// Print the manual page of a command, or write the pages of all commands to a directory.
///
/// The pages have the text of --help, in the format of man(1).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork man fork | man -l -
  sudo farfork man --output /usr/local/share/man/man1

Exit status: 0 success, 1 a page cannot be written, 2 wrong usage or no such command.")]
pub(crate) struct Man {
    #[command(flatten)]
    arguments: ManualArguments,
}

impl Man {
    /// Whether the command prints a page, in the format of man(1), instead of writing files.
    pub(crate) fn prints_page(&self) -> bool {
        self.arguments.output.is_none()
    }

    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let root = manual::build_command(Cli::command());
        let pages = manual::manual_pages(&root);
        let ManualArguments { command, output } = self.arguments;
        match output {
            Some(directory) => write_all(&directory, &pages, global.json)?,
            None if bench_program::has_command(&command) => {
                return Err(bench_program::execute(
                    ["man".into()].into_iter().chain(command.into_iter().map(Into::into)),
                ));
            }
            None => manual::print_page(&root, &pages, &command)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the pages of this program, then those of `farfork-bench` if it is installed. `farfork-bench` overwrites the
/// pages of `bench` and `stress`, because its pages have more detail.
fn write_all(directory: &Path, pages: &[ManualPage<'_>], json: bool) -> anyhow::Result<()> {
    let mut names = manual::write_pages(directory, pages)?;
    if let Some(program) = bench_program::installed_program()? {
        names.extend(pages_of_bench_program(&program, directory)?);
        names.sort();
        names.dedup();
    }
    if json {
        output::print_json(&json!({ "directory": directory, "pages": names }));
    }
    Ok(())
}

/// Runs `farfork-bench`, which writes its pages. Returns the names of the pages.
fn pages_of_bench_program(program: &Path, directory: &Path) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new(program);
    command.args(["--json", "man", "--output"]).arg(directory).stderr(Stdio::inherit());
    let output = command.output().with_context(|| program.display().to_string())?;
    ensure!(output.status.success(), "{} man: {}", program.display(), output.status);
    let written: Value = serde_json::from_slice(&output.stdout).with_context(|| program.display().to_string())?;
    let names = written["pages"].as_array().into_iter().flatten();
    Ok(names.filter_map(|name| name.as_str().map(str::to_owned)).collect())
}
