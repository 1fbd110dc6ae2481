//! `ManualPage`: a manual page made from the text of `--help`, so that nothing is written twice. `farfork man` prints or
//! writes the pages.
//!
//! clap_mangen makes the first sections. Further sections are made of the text below a command's options (`after_help`). A
//! line that begins with a capital letter and has a colon begins a section. The text before the colon is the heading.
//! Indented lines are printed as they are.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use farfork_api::run_dir::{DEFAULT_RUN_DIR, RunDir};

/// The manual section for user commands.
const SECTION: &str = "1";

/// A section of the help text below the options.
#[derive(Debug, PartialEq, Eq)]
struct HelpSection<'a> {
    /// The heading, such as `Examples` or `Exit status`.
    heading: &'a str,
    /// The text after the heading's colon, and the lines below, as they were written.
    lines: Vec<&'a str>,
}

/// A command from [`build_command`], and the name of its page, such as `farfork-fork`.
pub struct ManualPage<'a> {
    name: String,
    command: &'a Command,
}

/// Arguments of `farfork man`.
#[derive(Args)]
pub struct ManualArguments {
    /// The command whose page is printed [default: farfork itself].
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    pub command: Vec<String>,
    /// Write a page for each command to this directory. It is created if it does not exist.
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Prints the page of a command, given as `["bench", "fork"]`. Ends this process with a usage error if there is no such
/// command.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_page(root: &Command, pages: &[ManualPage<'_>], command: &[String]) -> io::Result<()> {
    let name = [&["farfork".to_owned()], command].concat().join("-");
    let Some(page) = pages.iter().find(|page| page.name == name) else {
        let text = format!("there is no command `{}`; `farfork help` lists them", command.join(" "));
        root.clone().error(ErrorKind::InvalidSubcommand, text).exit();
    };
    page.write(pages, &mut io::stdout().lock())
}

/// Writes pages to a directory, one file each. Creates the directory if it does not exist. Returns the names of the
/// files.
///
/// # Errors
/// The directory or a file cannot be written.
pub fn write_pages(directory: &Path, pages: &[ManualPage<'_>]) -> anyhow::Result<Vec<String>> {
    fs::create_dir_all(directory).with_context(|| format!("directory {}", directory.display()))?;
    for page in pages {
        let path = directory.join(page.file_name());
        page.write_file(pages, &path).with_context(|| path.display().to_string())?;
    }
    Ok(pages.iter().map(ManualPage::file_name).collect())
}

/// Lets clap finish a command, as clap does before it parses arguments. Leaves out the subcommand `help`, which would get
/// its own page.
pub fn build_command(command: Command) -> Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

/// The pages of a command from [`build_command`] and of all its visible subcommands.
pub fn manual_pages(root: &Command) -> Vec<ManualPage<'_>> {
    let below = root.get_subcommands().filter(|command| !command.is_hide_set());
    iter::once(ManualPage { name: display_name(root), command: root }).chain(below.flat_map(manual_pages)).collect()
}

fn display_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

impl ManualPage<'_> {
    fn file_name(&self) -> String {
        format!("{}.{SECTION}", self.name)
    }

    /// Writes the page, in the language of man(7). `siblings` are all pages to which it may refer.
    fn write(&self, siblings: &[ManualPage<'_>], out: &mut dyn Write) -> io::Result<()> {
        let version = self.command.get_version().unwrap_or_default();
        let man = Man::new(self.command.clone());
        let mut page = Vec::new();
        // No date: it would be the date of the build.
        writeln!(page, ".TH {} {SECTION} \"\" \"farfork {version}\" \"User Commands\"", self.name)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if siblings.iter().any(|other| self.is_parent_of(other)) {
            man.render_subcommands_section(&mut page)?;
        }
        let help = after_help(self.command);
        let mut roff = Roff::new();
        parse_sections(&help).iter().for_each(|part| write_section(&mut roff, part));
        write_files(&mut roff);
        self.write_see_also(&mut roff, siblings);
        roff.to_writer(&mut page)?;
        out.write_all(escape_non_ascii(&String::from_utf8_lossy(&page)).as_bytes())
    }

    fn write_file(&self, siblings: &[ManualPage<'_>], path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        self.write(siblings, &mut file)?;
        file.flush()
    }

    fn is_parent_of(&self, other: &ManualPage<'_>) -> bool {
        other.name.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('-'))
    }

    /// Lists related pages: its parent commands, its subcommands, and the commands that its help mentions.
    fn write_see_also(&self, roff: &mut Roff, siblings: &[ManualPage<'_>]) {
        let help = self.command.clone().render_long_help().to_string();
        let is_named = |other: &ManualPage<'_>| mentions_command(&help, &other.name.replace('-', " "));
        let is_related = |other: &ManualPage<'_>| self.is_parent_of(other) || other.is_parent_of(self);
        let mut others =
            siblings.iter().filter(|other| other.name != self.name && (is_related(other) || is_named(other)));
        let Some(first) = others.next() else { return };
        roff.control("SH", ["SEE ALSO"]);
        let mut line = vec![bold(first.name.as_str()), roman(format!("({SECTION})"))];
        for other in others {
            line.extend([roman(", "), bold(other.name.as_str()), roman(format!("({SECTION})"))]);
        }
        roff.text(line);
    }
}

/// Whether `text` mentions the command `call`, such as `farfork fork`, as whole words.
fn mentions_command(text: &str, call: &str) -> bool {
    let goes_on = |rest: &str| rest.starts_with(|next: char| next.is_alphanumeric() || next == '-');
    text.match_indices(call).any(|(at, _)| !goes_on(&text[at + call.len()..]))
}

/// The text that `--help` has below the options.
fn after_help(command: &Command) -> String {
    let text = command.get_after_long_help().or_else(|| command.get_after_help());
    text.map(ToString::to_string).unwrap_or_default()
}

/// Splits an after-help text into its sections.
fn parse_sections(help: &str) -> Vec<HelpSection<'_>> {
    let mut parts: Vec<HelpSection<'_>> = Vec::new();
    for line in help.lines() {
        let heading = line.split_once(':').filter(|_| line.starts_with(|first: char| first.is_ascii_uppercase()));
        match (heading, parts.last_mut()) {
            (Some((heading, rest)), _) => parts.push(HelpSection { heading, lines: vec![rest.trim_start()] }),
            (None, Some(part)) => part.lines.push(line),
            (None, None) => {}
        }
    }
    for part in &mut parts {
        while part.lines.last().is_some_and(|line| line.is_empty()) {
            part.lines.pop();
        }
        if part.lines.first().is_some_and(|line| line.is_empty()) {
            part.lines.remove(0);
        }
    }
    parts
}

fn write_section(roff: &mut Roff, part: &HelpSection<'_>) {
    let title = if part.heading == "Example" { "Examples" } else { part.heading };
    roff.control("SH", [title.to_uppercase().as_str()]);
    for lines in part.lines.chunk_by(|one, other| is_code(one) == is_code(other)) {
        if is_code(lines[0]) {
            roff.control("nf", []);
            lines.iter().for_each(|line| roff_text(roff, &line[2..]));
            roff.control("fi", []);
        } else {
            lines.iter().for_each(|line| roff_text(roff, line));
        }
    }
}

/// Whether a line is indented, so that it is printed as it is.
fn is_code(line: &str) -> bool {
    line.starts_with("  ")
}

fn roff_text(roff: &mut Roff, line: &str) {
    if line.is_empty() {
        roff.control("PP", []);
    } else {
        roff.text([roman(line)]);
    }
}

fn write_files(roff: &mut Roff) {
    let run = RunDir::new(DEFAULT_RUN_DIR);
    let root = Path::new(DEFAULT_RUN_DIR);
    let files = [
        (run.socket(), "The daemon's socket for farfork commands; only root can connect."),
        (run.program_socket(), "The socket for programs that request their own checkpoint; only root can connect."),
        (root.join("children/ID"), "The record of a child and its output, until the child is removed."),
        (run.pager_log(), "The log of the pager, the process that serves children's memory."),
        (root.join("NODE"), "The run directory of a node that `farfork up` started, with its log, node.log."),
    ];
    roff.control("SH", ["FILES"]);
    roff.text([roman(format!(
        "The run directory is {DEFAULT_RUN_DIR} unless FARFORK_RUN_DIR or --run-dir says otherwise."
    ))]);
    for (path, meaning) in files {
        roff.control("TP", []);
        roff.text([bold(path.to_string_lossy())]);
        roff.text([roman(meaning)]);
    }
}

/// Replaces non-ASCII characters by roff escapes: every formatter knows the escapes, but some formatters do not read UTF-8.
fn escape_non_ascii(page: &str) -> String {
    let name =
        |symbol: char| if symbol.is_ascii() { symbol.to_string() } else { format!("\\[u{:04X}]", symbol as u32) };
    page.chars().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unindented_line_with_a_colon_starts_a_section() {
        let help = "Examples:\n  one: 1\n\n  two\n\nExit status: 0 well,\n1 not.";
        let expected = [
            HelpSection { heading: "Examples", lines: vec!["  one: 1", "", "  two"] },
            HelpSection { heading: "Exit status", lines: vec!["0 well,", "1 not."] },
        ];
        assert_eq!(parse_sections(help), expected);
    }

    #[test]
    fn a_command_is_matched_by_whole_words() {
        assert!(mentions_command("see `farfork ps`", "farfork ps"));
        assert!(!mentions_command("see `farfork psst` and farfork ps-like", "farfork ps"));
    }
}
