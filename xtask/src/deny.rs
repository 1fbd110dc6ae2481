//! `cargo xtask deny`: runs cargo-deny over the dependencies, with the rules of `deny.toml`.
//!
//! By default it checks licences, bans and sources, which need only the lock file and the downloaded crates. Advisories need
//! the RustSec database, a Git repository that not every build machine can fetch. They are checked on request, so that a
//! test run depends neither on the network nor on the date.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::child;
use crate::terminal::print_note;
use crate::workspace::{Workspace, cargo_program};

/// Pinned, so that a new release of the tool cannot change the result.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// Limit for the check, which takes seconds. Advisories are fetched from the network.
const CHECK_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Limit for the build of the tool on a slow machine.
const INSTALL_LIMIT: Duration = Duration::from_secs(40 * 60);

/// The checks to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Licences, bans, sources.
    Offline,
    /// Licences, bans, sources and advisories. The advisory database is fetched.
    WithAdvisories,
}

/// Installs the pinned cargo-deny into the cache if it is missing, and runs it.
pub(crate) fn run(workspace: &Workspace, scope: Scope) -> Result<()> {
    let program = installed()?;
    let mut command = Command::new(program);
    command.current_dir(workspace.root()).args(["check", "--hide-inclusion-graph"]);
    if scope == Scope::WithAdvisories {
        command.arg("advisories");
    }
    let status = child::status(command.args(["licenses", "bans", "sources"]), CHECK_LIMIT)?;
    ensure!(status.success(), "cargo-deny found violations ({status}); deny.toml lists what is allowed, with reasons");
    Ok(())
}

/// Installs the pinned cargo-deny if it is missing, and returns its path. The build takes less than a minute on two cores.
/// It is not optimised, because the program runs only briefly.
fn installed() -> Result<PathBuf> {
    let tools = cache_folder()?.join(format!("cargo-deny-{CARGO_DENY_VERSION}"));
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        print_note(format_args!("cargo-deny {CARGO_DENY_VERSION} is built once, into {}", tools.display()));
        let mut install = Command::new(cargo_program());
        install
            .args(["install", "cargo-deny", "--locked", "--debug", "--version", CARGO_DENY_VERSION, "--root"])
            .arg(&tools)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env_remove("CARGO_TARGET_DIR");
        let status = child::status(&mut install, INSTALL_LIMIT)?;
        ensure!(status.success(), "cargo-deny {CARGO_DENY_VERSION} cannot be installed ({status})");
    }
    Ok(program)
}

/// The directory for files that outlive a work tree: `FARFORK_CACHE`, or `~/.cache/farfork`, as in scripts/setup.sh.
fn cache_folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("FARFORK_CACHE") {
        return Ok(folder.into());
    }
    let home = std::env::var_os("HOME").context("neither FARFORK_CACHE nor HOME is set: set one of them")?;
    Ok(PathBuf::from(home).join(".cache/farfork"))
}
