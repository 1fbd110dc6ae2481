//! `farfork man`: prints or writes the manual pages that `manual` makes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

use crate::manual::{self, ManualPage};
use crate::{Cli, GlobalArgs, output};

/// Print the manual page of a command, or write those of all commands to a directory.
///
/// The pages say what --help says, for man(1).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork man fork | man -l -
  sudo farfork man --output /usr/local/share/man/man1

Exit status: 0 done, 1 it could not be written, 2 wrong usage or no such command.")]
pub(crate) struct Man {
    /// Of which command; farfork itself without one.
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    command: Vec<String>,
    /// Write a page for each command to this directory, which is made if it is not there.
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let root = manual::build_command(Cli::command());
        let pages = manual::manual_pages(&root);
        match self.output {
            Some(directory) => write_all(&directory, &pages, global.json)?,
            None => {
                let name = [&["farfork".to_owned()], &self.command[..]].concat().join("-");
                let Some(page) = pages.iter().find(|page| page.name == name) else {
                    let text = format!("there is no command `{}`; `farfork help` lists them", self.command.join(" "));
                    Cli::command().error(clap::error::ErrorKind::InvalidSubcommand, text).exit();
                };
                page.write(&pages, &mut io::stdout().lock())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn write_all(directory: &Path, pages: &[ManualPage<'_>], json: bool) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("directory {}", directory.display()))?;
    for page in pages {
        let path = directory.join(page.file_name());
        write(page, pages, &path).with_context(|| path.display().to_string())?;
    }
    if json {
        let names: Vec<String> = pages.iter().map(ManualPage::file_name).collect();
        output::print_json(&serde_json::json!({ "directory": directory, "pages": names }));
    }
    Ok(())
}

fn write(page: &ManualPage<'_>, pages: &[ManualPage<'_>], path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    page.write(pages, &mut file)?;
    file.flush()
}
