//! The commands and files of the guides are taken from the pages as printed, and run. Steps that install something or
//! start a cluster are left out: the shared cluster of the tests replaces them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{BINARY, Cluster, programs, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("in_the_first_fork_guide", first_fork),
    Test::shared("in_the_python_guide", python),
    Test::shared("in_the_c_guide", c_program),
];

/// For all commands of a page.
const PAGE_LIMIT: Duration = Duration::from_secs(240);

/// Ends what a page leaves in the background, as a user would by closing the terminal.
const PROLOGUE: &str = "set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";

/// A page of the guide.
struct Page(String);

/// What stands between two lines of three back-ticks, and the language that the first names.
struct Block<'a> {
    language: &'a str,
    text: String,
}

impl Page {
    fn read(name: &str) -> Self {
        let path = root().join("docs/guide").join(name);
        Self(fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// The blocks below a heading and above the next of its kind.
    fn blocks(&self, heading: &str) -> Vec<Block<'_>> {
        let section = self.0.split("\n## ").find(|section| section.lines().next() == Some(heading));
        let section = section.unwrap_or_else(|| panic!("the page has no section `{heading}`"));
        let mut parts = section.split("\n```");
        parts.next();
        let inside = parts.step_by(2);
        let block = |part: &'_ str| part.split_once('\n').map(|(_, text)| format!("{text}\n"));
        inside.filter_map(|part| Some(Block { language: part.lines().next()?, text: block(part)? })).collect()
    }

    /// Commands of these sections, after the files among their blocks were written to a directory.
    fn commands(&self, directory: &Path, headings: &[&str]) -> String {
        let blocks = headings.iter().flat_map(|heading| self.blocks(heading));
        let (files, commands): (Vec<_>, Vec<_>) = blocks.partition(|block| !block.language.is_empty());
        for file in files {
            let name = file.text.lines().next().and_then(|line| line.split_whitespace().nth(1));
            let name = name.unwrap_or_else(|| panic!("the file has no name: {}", file.text));
            fs::write(directory.join(name), &file.text).expect("a small file");
        }
        commands.into_iter().map(|block| block.text).collect()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs commands as a user would who has installed all; what they print.
fn run(directory: &Path, commands: &str, environment: &[(&str, PathBuf)]) -> String {
    let first = |path: &Path| path.parent().expect("a binary has a directory").to_string_lossy().into_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", first(Path::new(BINARY)), first(&programs::python()));
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(format!("{PROLOGUE}{commands}")).current_dir(directory).env("PATH", path);
    shell.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("FARFORK_RUN_DIR");
    shell.envs(environment.iter().map(|(name, value)| (name, value)));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = wait::wait_with_output(shell.spawn().expect("bash"), "the commands of a page", PAGE_LIMIT);
    assert!(ended.status.success(), "{commands}\n--\n{}{}", ended.stdout, ended.stderr);
    ended.stdout
}

fn on(cluster: &Cluster) -> (&'static str, PathBuf) {
    ("FARFORK_SOCKET", cluster.first().socket().to_owned())
}

/// Lines for the numbers that the pages give their children.
fn require_squares(said: &str, line: impl Fn(u64) -> String, times: usize) {
    for number in 100..=107 {
        let expected = line(number);
        let found = said.lines().filter(|line| **line == expected).count();
        assert_eq!(found, times, "`{expected}` is not printed as often as the page says:\n{said}");
    }
}

fn first_fork(cluster: &Cluster) {
    let directory = scratch::directory();
    let page = Page::read("first-fork.md");
    let commands = page.commands(directory.path(), &["A parent", "Children"]);
    let dropped = page.blocks("Cleaning up")[0].text.lines().next().expect("a command").to_owned();
    let said = run(directory.path(), &format!("{commands}\n{dropped}\n"), &[on(cluster)]);
    assert!(said.lines().any(|line| line == "12 144"), "{said}");
    require_squares(&said, |number| format!("{number} {}", number * number), 2);
    assert!(said.contains("pages_fetched"), "{said}");
}

fn python(cluster: &Cluster) {
    let directory = scratch::directory();
    let page = Page::read("python.md");
    let commands = page.commands(directory.path(), &["Functions: the executor"]).replace("farfork up --nodes 3\n", "");
    let said = run(directory.path(), &commands, &[on(cluster)]);
    assert_eq!(said.trim(), "[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]");

    let commands = page.commands(directory.path(), &["A point of the program: the checkpoint"]);
    let said = run(directory.path(), &patient(&commands, "farfork inspect warm"), &[on(cluster)]);
    require_squares(&said, |number| format!("{number} squared is {}", number * number), 1);
}

/// As a person, who takes his time, on a machine of any speed: where a page waits, until what it waits for is so.
fn patient(commands: &str, condition: &str) -> String {
    assert!(commands.contains("\nsleep 1 "), "the page does not wait: {commands}");
    commands.replace("\nsleep 1 ", &format!("\nuntil {condition} >/dev/null 2>&1; do sleep 0.1; done "))
}

fn c_program(cluster: &Cluster) {
    let directory = scratch::directory();
    let prefix = directory.path().join("prefix");
    let page = Page::read("c.md");
    let install = page.commands(directory.path(), &["Installing the library"]);
    let install = install.replace("PREFIX=/usr/local", &format!("PREFIX={0} BUILD={0}/build", prefix.display()));
    run(&root(), &install.replace("\nldconfig\n", "\n"), &[]);
    let commands = patient(&page.commands(directory.path(), &["A program that forks itself"]), "test -s seed");
    let (configuration, libraries) = (prefix.join("lib/pkgconfig"), prefix.join("lib"));
    let environment = [on(cluster), ("PKG_CONFIG_PATH", configuration), ("LD_LIBRARY_PATH", libraries)];
    let said = run(directory.path(), &commands, &environment);
    require_squares(&said, |number| (number * number).to_string(), 1);
}
