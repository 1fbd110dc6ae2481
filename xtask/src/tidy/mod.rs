//! `cargo xtask tidy`: checks the style of the project like a test.
//!
//! Each check is a file that documents its rule and the reason. A check reads text and returns findings; it changes nothing.
//! Rules that rustfmt and clippy can check are left to them.

mod documents;
mod hazards;
mod heads;
mod layers;
mod lengths;
mod manifests;
mod names;
mod prose;
mod ratchets;
mod resources;
mod source;
mod stop_list;
mod test_filters;
mod traces;
mod troubleshooting;
mod unsafety;

use std::cell::OnceCell;
use std::fmt;

use anyhow::{Result, ensure};

use crate::terminal::print_line;
use crate::workspace::{Member, TextFile, Workspace};

/// A violation of a rule.
pub(crate) struct Finding {
    path: String,
    /// Line number from 1; 0 for the whole file.
    line: usize,
    complaint: String,
}

/// The input of the checks, read once.
pub(crate) struct Tree<'a> {
    workspace: &'a Workspace,
    files: Vec<TextFile>,
    rust: Vec<source::RustFile>,
    members: Vec<Member>,
    ratchet_counts: OnceCell<ratchets::Counts>,
}

type Check = fn(&Tree<'_>) -> Result<Vec<Finding>>;

const CHECKS: [(&str, Check); 13] = [
    ("heads", heads::check),
    ("layers", layers::check),
    ("manifests", manifests::check),
    ("unsafety", unsafety::check),
    ("names", names::check),
    ("lengths", lengths::check),
    ("ratchets", ratchets::check),
    ("documents", documents::check),
    ("hazards", hazards::check),
    ("resources", resources::check),
    ("troubleshooting", troubleshooting::check),
    ("test_filters", test_filters::check),
    ("traces", traces::check),
];

/// Runs every check, prints every finding, and ends with statistics of the whole tree.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let tree = Tree::read(workspace)?;
    let mut findings_count = 0;
    for (name, check) in CHECKS {
        for finding in check(&tree)? {
            print_line(format_args!("{finding} [{name}]"));
            findings_count += 1;
        }
    }
    ensure!(findings_count == 0, "{findings_count} findings");
    print_line(format_args!("{} files, {} of them Rust: tidy", tree.files.len(), tree.rust.len()));
    print_line(names::figures(&tree));
    for (measure, count) in ratchets::totals(&tree) {
        print_line(format_args!("{count} {measure}"));
    }
    Ok(())
}

/// Lowers the ratchets to the current counts.
pub(crate) fn lower(workspace: &Workspace) -> Result<()> {
    ratchets::lower(&Tree::read(workspace)?)
}

impl<'a> Tree<'a> {
    fn read(workspace: &'a Workspace) -> Result<Self> {
        let files = workspace.text_files()?;
        let rust = files.iter().filter(|f| f.path.ends_with(".rs")).map(source::RustFile::of).collect();
        let members = workspace.members()?;
        Ok(Self { workspace, files, rust, members, ratchet_counts: OnceCell::new() })
    }
}

impl Finding {
    fn at(path: &str, line: usize, complaint: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, complaint: complaint.into() }
    }

    fn whole(path: &str, complaint: impl Into<String>) -> Self {
        Self::at(path, 0, complaint)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.complaint),
            line => write!(f, "{}:{line}: {}", self.path, self.complaint),
        }
    }
}
