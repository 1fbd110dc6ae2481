//! The manual: each command has help with examples and exit status, a manual page that formatters accept without a
//! warning, and shell completion. The tests run the real binary, without a daemon and without root.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_farfork");

/// Runs the binary like a user. Removes environment variables that would change its output.
fn farfork(arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_remove("FARFORK_SOCKET").env_remove("FARFORK_RUN_DIR").env_remove("FARFORK_LOG");
    let output = command.stdin(Stdio::null()).output().expect("the binary under test");
    assert!(output.status.success(), "farfork {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the commands that `--help` lists.
fn commands() -> BTreeSet<String> {
    let help = text(farfork(&["--help"]));
    let list =
        help.split("Commands:").nth(1).and_then(|rest| rest.split("Options:").next()).expect("a list of commands");
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let names = list.lines().filter(is_name).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Writes all manual pages to a temporary directory. Returns the directory and the names of the pages.
fn pages() -> (TempDir, BTreeSet<String>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    farfork(&["man", "--output", &directory.path().to_string_lossy()]);
    let entries = fs::read_dir(directory.path()).expect("pages").map(|entry| entry.expect("a page").file_name());
    let names = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    (directory, names)
}

/// Runs a tool. Returns whether it succeeded, and its output on both streams.
fn said(command: &mut Command) -> (bool, String) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn is_installed(tool: &str) -> bool {
    let mut which = Command::new("sh");
    which
        .args(["-c", &format!("command -v {tool}")])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn each_command_has_a_page() {
    let (_directory, pages) = pages();
    assert!(pages.contains("farfork.1"));
    for command in commands() {
        assert!(pages.contains(&format!("farfork-{command}.1")), "{command} has no page among {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("pager")), "a command that users do not call has a page: {pages:?}");
}

#[test]
fn each_help_says_what_it_does_with_examples_and_exit_status() {
    let mut lacking = Vec::new();
    for command in commands() {
        let help = text(farfork(&[&command, "--help"]));
        let examples = help.split("\nExamples:\n").nth(1).unwrap_or_default();
        let has_examples = examples.contains(&format!("farfork {command}"));
        let checks = [("examples", has_examples), ("exit status", help.contains("\nExit status: "))];
        lacking
            .extend(checks.iter().filter(|(_, is_there)| !is_there).map(|(what, _)| format!("{command}: no {what}")));
    }
    assert!(lacking.is_empty(), "{lacking:#?}");
}

#[test]
fn each_option_and_argument_says_what_it_is() {
    let (directory, pages) = pages();
    for page in pages {
        let text = fs::read_to_string(directory.path().join(&page)).expect("a page");
        let entries = text.split("\n.TP\n").skip(1);
        for entry in entries {
            let mut lines = entry.lines();
            let header = lines.next().unwrap_or_default();
            let body = lines.next().unwrap_or_default();
            assert!(!body.is_empty() && !body.starts_with('.'), "{page}: {header} is not explained");
        }
    }
}

#[test]
fn each_page_has_the_sections_that_readers_look_for() {
    let (directory, pages) = pages();
    for page in pages {
        let text = fs::read_to_string(directory.path().join(&page)).expect("a page");
        let sections = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "FILES", "SEE ALSO"];
        let places = sections.map(|section| {
            let quoted = format!(".SH \"{section}\"\n");
            text.find(&format!(".SH {section}\n")).or_else(|| text.find(&quoted))
        });
        assert!(places.iter().all(Option::is_some), "{page}: {sections:?} are at {places:?}");
        assert!(places.is_sorted(), "{page}: {sections:?} are at {places:?}");
    }
}

#[test]
fn pages_are_formatted_without_a_warning() {
    let (directory, pages) = pages();
    for page in &pages {
        let path = directory.path().join(page);
        let mut groff = Command::new("groff");
        groff.args(["-ww", "-mandoc", "-Tutf8", "-z"]).arg(&path);
        assert_eq!(said(&mut groff), (true, String::new()), "groff about {page}");
    }
    if is_installed("mandoc") {
        // With `error`, because mandoc warns of a page without a date. The date would be the build's.
        let mut mandoc = Command::new("mandoc");
        mandoc.args(["-T", "lint", "-W", "error"]).args(pages.iter().map(|page| directory.path().join(page)));
        assert_eq!(said(&mut mandoc), (true, String::new()));
    } else {
        eprintln!("mandoc is not installed: only groff has read the pages");
    }
}

#[test]
fn a_page_can_be_printed_by_name() {
    let (directory, _) = pages();
    let written = fs::read_to_string(directory.path().join("farfork-fork.1")).expect("a page");
    assert_eq!(text(farfork(&["man", "fork"])), written);
    let output = Command::new(BINARY).args(["man", "fly"]).output().expect("the binary under test");
    assert_eq!(output.status.code(), Some(2));
}

/// Writes the completion script of a shell to a file.
fn completions(directory: &Path, shell: &str, name: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, farfork(&["completions", shell]).stdout).expect("a small file");
    path.to_string_lossy().into_owned()
}

/// Returns the words that bash offers as completions of the last of these words.
fn offered_by_bash(script: &str, words: &[&str]) -> BTreeSet<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "source {script}; COMP_WORDS=({}); COMP_CWORD={}; \
         $(complete -p farfork | sed 's/.*-F \\([^ ]*\\).*/\\1/') farfork '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let (is_well, offered) = said(Command::new("bash").args(["--norc", "-c", &ask]));
    assert!(is_well, "{offered}");
    offered.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let script = completions(directory.path(), "bash", "farfork.bash");
    assert_eq!(said(Command::new("bash").args(["-n", &script])), (true, String::new()));
    let expected = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(offered_by_bash(&script, &["farfork", "prep"]), expected(&["prepare"]));
    assert_eq!(offered_by_bash(&script, &["farfork", "fork", "--pay"]), expected(&["--payload", "--payloads"]));
    let all = offered_by_bash(&script, &["farfork", ""]);
    assert!(commands().is_subset(&all), "{all:?}");
}

#[test]
fn other_shells_take_their_completions() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let zsh = completions(directory.path(), "zsh", "_farfork");
    let fish = completions(directory.path(), "fish", "farfork.fish");
    if is_installed("zsh") {
        assert_eq!(said(Command::new("zsh").args(["-f", "-n", &zsh])), (true, String::new()));
    } else {
        eprintln!("zsh is not installed: its completions are not tried");
    }
    if is_installed("fish") {
        let ask = format!("source {fish}; complete -C 'farfork prep'");
        let (is_well, offered) = said(Command::new("fish").args(["--no-config", "-c", &ask]));
        assert!(is_well && offered.starts_with("prepare\t"), "{offered}");
    } else {
        eprintln!("fish is not installed: its completions are not tried");
    }
}
