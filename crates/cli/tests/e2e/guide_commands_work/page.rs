//! `Page`: a page of the guide as a list of code blocks. A block is a file, a list of commands with the output that the
//! page shows, or other text.

use std::fs;
use std::path::{Path, PathBuf};

/// The start of a command line in a block that also shows output.
const PROMPT: &str = "$ ";

/// A page of the guide.
pub(super) struct Page {
    pub(super) name: String,
    pub(super) blocks: Vec<Block>,
}

/// A code block: the text between two lines with three backticks.
pub(super) enum Block {
    /// A source file. Its first line is a comment with the file's name.
    File { name: String, text: String },
    /// Commands, one per line.
    Commands(Vec<PageCommand>),
    /// Any other block, represented by its first line.
    Text(String),
}

/// A command, and the output that the page shows for it.
pub(super) struct PageCommand {
    pub(super) line: String,
    pub(super) printed: Vec<String>,
}

impl Page {
    pub(super) fn read(name: &str) -> Self {
        let path = folder().join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { name: name.to_owned(), blocks: blocks(&text) }
    }

    /// Reads all pages of the guide.
    pub(super) fn all() -> Vec<Self> {
        let files = fs::read_dir(folder()).expect("the guide can be read");
        let names = files.map(|file| file.expect("the guide can be read").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".md")).map(|name| Self::read(&name)).collect()
    }

    /// Returns the lines of all commands, and the first line of each other block.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.blocks.iter().flat_map(|block| match block {
            Block::File { .. } => Vec::new(),
            Block::Commands(commands) => commands.iter().map(|command| command.line.as_str()).collect(),
            Block::Text(first) => vec![first.as_str()],
        })
    }
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("docs/guide")
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<(&str, Vec<&str>)> = None;
    for line in page.lines() {
        // Code blocks within lists are indented.
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language, Vec::new())),
            (Some(_), Some(_)) => found.extend(open.take().map(|(language, lines)| block(language, &lines))),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block of the page has no end");
    found
}

fn block(language: &str, lines: &[&str]) -> Block {
    let first = lines.first().copied().unwrap_or_default();
    let is_shell = ["", "sh", "console"].contains(&language);
    let name = ["# ", "// "].iter().find_map(|comment| first.strip_prefix(comment)).filter(|name| is_file_name(name));
    match name {
        _ if is_shell => Block::Commands(commands(lines)),
        Some(name) => Block::File { name: name.to_owned(), text: format!("{}\n", lines.join("\n")) },
        None => Block::Text(first.to_owned()),
    }
}

fn is_file_name(text: &str) -> bool {
    text.contains('.') && !text.contains(['/', ' '])
}

/// Parses the commands of a block. If at least one line has a prompt, lines without a prompt are output.
fn commands(lines: &[&str]) -> Vec<PageCommand> {
    let has_prompts = lines.iter().any(|line| line.starts_with(PROMPT));
    let mut found: Vec<PageCommand> = Vec::new();
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        let command = if has_prompts { line.strip_prefix(PROMPT) } else { Some(*line) };
        match (command, found.last_mut()) {
            (Some(command), _) => found.push(PageCommand { line: command.to_owned(), printed: Vec::new() }),
            (None, Some(last)) => last.printed.push((*line).to_owned()),
            (None, None) => panic!("output without a command: {line}"),
        }
    }
    found
}
