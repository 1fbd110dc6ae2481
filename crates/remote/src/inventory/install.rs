//! [`InstallSettings`]: where nodes are installed on hosts, and how they are started.

use std::path::{Path, PathBuf};

use farfork_wire::NodeName;

/// Where `farfork cluster deploy` installs nodes, and how they are started. The same for all hosts of an inventory.
///
/// All paths are absolute and consist of letters, digits and `._-+/`, so that they need no quotes in a unit of systemd. The
/// names of directories and of the log contain `farfork`, so that `farfork cluster undeploy` never removes those of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallSettings {
    /// The programs are in `bin` below it.
    pub prefix: PathBuf,
    /// The run directory of the node.
    pub run_dir: PathBuf,
    /// The trust directory of the node.
    pub trust: PathBuf,
    /// The log of a daemon that systemd does not run.
    pub log: PathBuf,
    /// The port of the control API. The next port is for memory.
    pub port: u16,
    /// Name of a new cluster.
    pub cluster: NodeName,
    /// Further arguments of `farfork node`.
    pub arguments: Vec<String>,
}

impl InstallSettings {
    /// The path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.prefix.join("bin").join(name)
    }

    /// Whether a path has the form that these settings require.
    pub(super) fn is_valid_path(path: &Path) -> bool {
        let text = path.to_str().unwrap_or_default();
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-+/".contains(c);
        let has_parts = path.components().count() > 1 && !text.contains("..");
        path.is_absolute() && has_parts && text.chars().all(is_allowed)
    }

    /// Whether a path names a directory or a file that belongs to farfork alone, so that it may be removed.
    pub(super) fn is_own_path(path: &Path) -> bool {
        Self::is_valid_path(path) && path.file_name().is_some_and(|name| name.to_string_lossy().contains("farfork"))
    }

    /// Whether an argument is an option of `farfork node` that `farfork cluster deploy` sets, or whose value `undeploy` must
    /// know.
    pub(super) fn is_own_option(argument: &str) -> bool {
        const OPTIONS: [&str; 7] =
            ["--name", "--listen", "--run-dir", "--trust", "--join", "--token-file", "--volumes"];
        OPTIONS.contains(&argument.split('=').next().unwrap_or_default())
    }

    /// Whether an argument of `farfork node` needs no quotes in a unit of systemd.
    pub(super) fn is_valid_argument(argument: &str) -> bool {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-+/:,=?@[]".contains(c);
        !argument.is_empty() && argument.chars().all(is_allowed)
    }
}
