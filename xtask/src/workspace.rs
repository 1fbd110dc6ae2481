//! `Workspace`: the work tree, with its root, files and crates. It only reads; the checks evaluate.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Directories and files without source of the project: version control (a file in a second work tree), build products,
/// caches, copies of other projects.
const WITHOUT_SOURCE: [&str; 6] = [".git", ".cache", "target", "node_modules", "__pycache__", "vendor"];

/// Returns the program `cargo`: the one that runs this program, or that has built it.
pub(crate) fn cargo_program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into())
}

/// The root of a checked-out work tree.
pub(crate) struct Workspace {
    root: PathBuf,
}

/// A text file: its path (relative to the root, with `/`) and its contents.
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// One member of the workspace.
pub(crate) struct Member {
    /// Its folder relative to the root, such as `crates/wire`.
    pub(crate) folder: String,
    /// The name of its folder, such as `wire`.
    pub(crate) name: String,
    /// The contents of its Cargo.toml.
    pub(crate) manifest: String,
}

impl Workspace {
    /// The work tree that this program was built from.
    pub(crate) fn of_this_build() -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = own.parent().expect("xtask is a folder of the workspace");
        Self { root: root.to_owned() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the build products, as an absolute path: cargo takes a relative one from the root.
    pub(crate) fn products(&self) -> PathBuf {
        self.root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
    }

    /// Reads a file of the tree that must exist.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.root.join(path)).with_context(|| format!("{path} cannot be read"))
    }

    /// All source and documentation files that are UTF-8 text, sorted by path.
    pub(crate) fn text_files(&self) -> Result<Vec<TextFile>> {
        let mut files = Vec::new();
        self.collect(&self.root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// The crates, including `xtask`, sorted by folder.
    pub(crate) fn members(&self) -> Result<Vec<Member>> {
        let mut folders = vec!["xtask".to_owned()];
        for entry in fs::read_dir(self.root.join("crates")).context("crates/ cannot be listed")? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            folders.push(format!("crates/{name}"));
        }
        folders.sort();
        let member = |folder: String| -> Result<Member> {
            let manifest = self.read(&format!("{folder}/Cargo.toml"))?;
            let name = folder.rsplit('/').next().unwrap_or(&folder).to_owned();
            Ok(Member { folder, name, manifest })
        };
        folders.into_iter().map(member).collect()
    }

    fn collect(&self, folder: &Path, into: &mut Vec<TextFile>) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if WITHOUT_SOURCE.iter().any(|name| entry.file_name() == OsStr::new(name)) {
                continue;
            }
            if kind.is_dir() {
                self.collect(&entry.path(), into)?;
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                let path = entry.path().strip_prefix(&self.root)?.to_string_lossy().into_owned();
                into.push(TextFile { path, text });
            }
        }
        Ok(())
    }
}
