//! `cargo xtask setup`: runs `scripts/setup.sh`. It is a shell script because a fresh machine has no linker yet to build
//! this program.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// Installs what the tests and the demo need. If everything is installed, it returns quickly.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let script = workspace.root().join("scripts/setup.sh");
    let status = Command::new("bash").arg(script).status().context("bash cannot be started")?;
    ensure!(status.success(), "scripts/setup.sh failed ({status}); see its output for the cause");
    Ok(())
}
