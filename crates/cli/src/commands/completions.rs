//! `farfork completions`: prints the completion script of a shell.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::Cli;
use crate::output;

/// Print a shell script that completes farfork's commands and options.
#[derive(Args)]
#[command(after_help = "\
Examples:
  source <(farfork completions bash)        enable completion in this shell
  sudo farfork completions bash > /etc/bash_completion.d/farfork
  farfork completions zsh > ~/.zfunc/_farfork
  farfork completions fish > ~/.config/fish/completions/farfork.fish

Exit status: 0 success, 2 wrong usage or no such shell.")]
pub(crate) struct Completions {
    /// Shell that runs the script.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "farfork", &mut script);
        output::write_bytes(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
