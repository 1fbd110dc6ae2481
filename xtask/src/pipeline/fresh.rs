//! Runs cargo as on a freshly installed machine (`scripts/fresh.sh`). Only the files for building the tests stay visible:
//! toolchain, crates, caches and build products.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use super::cargo;
use crate::workspace::{Workspace, cargo_program};

/// Directories that stay visible: the variable that names each, and its default in the home directory.
const KEPT: [(&str, Option<&str>); 4] = [
    ("CARGO_HOME", Some(".cargo")),
    ("RUSTUP_HOME", Some(".rustup")),
    ("FARFORK_CACHE", Some(".cache/farfork")),
    ("CARGO_TARGET_DIR", None),
];

/// Returns a cargo command with these arguments that runs as on a freshly installed machine. It cannot download anything.
pub(super) fn command(workspace: &Workspace, arguments: &[&str]) -> Command {
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let directory = |(variable, place): (&str, Option<&str>)| {
        env::var_os(variable).map(PathBuf::from).or_else(|| place.map(|place| home.join(place)))
    };
    let mut command = Command::new(workspace.root().join("scripts/fresh.sh"));
    command.current_dir(workspace.root()).args(KEPT.into_iter().filter_map(directory)).arg(workspace.root());
    command.arg("--").arg(cargo_program()).args(arguments).env("CARGO_NET_OFFLINE", "true");
    cargo::forget_own_package(&mut command);
    command
}
