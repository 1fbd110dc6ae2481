//! `PageScript`: runs all commands of a page in one shell, and separates the output of each command.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::exceptions;
use super::page::{Block, Page, PageCommand, root};
use crate::harness::scratch::TestDirectory;
use crate::harness::{BINARY, programs, scratch, wait};

/// Longest run of all commands of a page.
const PAGE_LIMIT: Duration = Duration::from_secs(240);

/// Commands that run before those of every page.
const PROLOGUE: &str = include_str!("prologue.sh");

/// The start of a line that the script prints before each command, to separate the outputs.
const MARK: &str = "-- command: ";

/// A page, and the setup of its commands.
pub(super) struct PageScript {
    page: Page,
    prologue: String,
    program: Vec<OsString>,
    environment: Vec<(&'static str, PathBuf)>,
    substitutions: Vec<(String, String)>,
    directory: TestDirectory,
}

/// The output of each command of a page, in order.
pub(super) struct PageOutput(Vec<CommandText>);

struct CommandText {
    command: String,
    printed: String,
}

impl PageScript {
    pub(super) fn new(page: &str) -> Self {
        let (page, directory) = (Page::read(page), scratch::directory());
        Self {
            page,
            prologue: PROLOGUE.to_owned(),
            program: vec!["bash".into()],
            environment: Vec::new(),
            substitutions: Vec::new(),
            directory,
        }
    }

    /// Runs the page in its own network and mount namespaces. Copies of mounted volumes are unmounted there, because
    /// they would keep the volumes in use.
    pub(super) fn alone(mut self) -> Self {
        self.program = ["unshare", "--net", "--mount", "bash"].map(OsString::from).to_vec();
        self.after("umount --lazy --all --types fuse.farfork")
    }

    /// Adds setup commands, which run before those of the page.
    pub(super) fn after(mut self, commands: &str) -> Self {
        self.prologue = format!("{}\n{commands}\n", self.prologue);
        self
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<PathBuf>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Replaces printed text that differs on this machine, such as an address.
    pub(super) fn replace(mut self, printed: &str, real: &str) -> Self {
        let is_printed = self.page.lines().any(|line| line.contains(printed));
        assert!(is_printed, "{} does not contain `{printed}`", self.page.name);
        self.substitutions.push((printed.to_owned(), real.to_owned()));
        self
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs the page. Each command must exit with 0, and print the tables that the page shows.
    pub(super) fn run(&self) -> PageOutput {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{path}", folder_of(Path::new(BINARY)), folder_of(&programs::python()));
        let mut shell = Command::new(&self.program[0]);
        shell.args(&self.program[1..]).arg("-c").arg(self.text()).current_dir(self.directory()).env("PATH", path);
        shell.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        shell.env_remove("FARFORK_RUN_DIR").envs(self.environment.iter().map(|(name, value)| (name, value)));
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = shell.spawn().unwrap_or_else(|error| panic!("{shell:?}: {error}"));
        let ended = wait::wait_with_output(spawned, &self.page.name, PAGE_LIMIT);
        assert!(ended.status.success(), "{}: {}\n{}{}", self.page.name, ended.status, ended.stdout, ended.stderr);
        let output = PageOutput::parse(&ended.stdout);
        self.commands().for_each(|command| output.require_tables(command));
        output
    }

    /// Returns the commands of the page that are not exceptions.
    fn commands(&self) -> impl Iterator<Item = &PageCommand> {
        let blocks = self.page.blocks.iter().filter_map(|block| match block {
            Block::Commands(commands) => Some(commands),
            Block::File { .. } | Block::Text(_) => None,
        });
        blocks.flatten().filter(|command| !exceptions::contain(&self.page, &command.line))
    }

    /// Writes the files of the page, and returns the text of the script.
    fn text(&self) -> String {
        for block in &self.page.blocks {
            match block {
                Block::File { name, text } => fs::write(self.directory().join(name), text).expect("a small file"),
                Block::Text(first) => require_exception(&self.page, first),
                Block::Commands(_) => {}
            }
        }
        let commands = self.commands().map(|command| {
            let line = &command.line;
            let real = self.substitutions.iter().fold(line.clone(), |text, (from, to)| text.replace(from, to));
            format!("printf '%s\\n' '{MARK}{}'\n{real}\n", line.replace('\'', r"'\''"))
        });
        format!("{}{}", self.prologue, commands.collect::<String>())
    }
}

impl PageOutput {
    fn parse(output: &str) -> Self {
        let parts = output.split(MARK).skip(1).filter_map(|part| part.split_once('\n'));
        let text =
            |(command, printed): (&str, &str)| CommandText { command: command.to_owned(), printed: printed.to_owned() };
        Self(parts.map(text).collect())
    }

    /// Requires that the commands with this prefix printed all of these parts.
    pub(super) fn require(&self, prefix: &str, parts: &[&str]) {
        let mut of_command = self.0.iter().filter(|text| text.command.starts_with(prefix)).peekable();
        assert!(of_command.peek().is_some(), "the page does not run `{prefix}`");
        let printed: String = of_command.map(|text| text.printed.as_str()).collect();
        for part in parts {
            assert!(printed.contains(part), "`{prefix}` does not print `{part}`:\n{printed}");
        }
    }

    /// Returns all output lines of all commands.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|text| text.printed.lines())
    }

    /// Requires that tables have the columns that the page shows.
    fn require_tables(&self, command: &PageCommand) {
        for header in command.printed.iter().filter(|line| is_header(line)) {
            let columns: Vec<&str> = header.split_whitespace().collect();
            let mut lines = self.0.iter().filter(|text| text.command == command.line).flat_map(|t| t.printed.lines());
            let is_there = lines.any(|line| line.split_whitespace().eq(columns.iter().copied()));
            assert!(is_there, "`{}` prints no table with the columns {columns:?}", command.line);
        }
    }
}

/// Returns whether a line consists of column names.
fn is_header(line: &str) -> bool {
    line.contains("  ") && line.chars().all(|letter| letter.is_ascii_uppercase() || letter == ' ')
}

/// Requires that a block that is neither a file nor commands is an exception.
pub(super) fn require_exception(page: &Page, first: &str) {
    assert!(exceptions::contain(page, first), "{}: nothing runs this block, which begins `{first}`", page.name);
}

fn folder_of(binary: &Path) -> String {
    binary.parent().expect("a binary has a directory").to_string_lossy().into_owned()
}
