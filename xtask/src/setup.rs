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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::process::Command;

    use crate::workspace::Workspace;

    /// Runs the script as a user without root, on a machine without packages. Returns the packages that it would install.
    fn missing_packages(arguments: &[&str]) -> String {
        let scratch = std::env::temp_dir().join(format!("farfork-setup-{}-{}", std::process::id(), arguments.len()));
        let path = scratch.join("bin");
        fs::create_dir_all(&path).unwrap();
        for (name, body) in [("dpkg-query", "exit 1"), ("id", "echo 1000"), ("cargo", "exit 0")] {
            let program = path.join(name);
            fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let script = Workspace::of_this_build().root().join("scripts/setup.sh");
        let mut command = Command::new("bash");
        command.arg(script).args(arguments).env("FARFORK_CACHE", &scratch);
        let ended = command.env("PATH", search_path(&path)).output().unwrap();
        fs::remove_dir_all(&scratch).unwrap();
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    }

    fn search_path(first: &Path) -> String {
        format!("{}:{}", first.display(), std::env::var("PATH").unwrap())
    }

    #[test]
    fn only_the_tests_need_servers() {
        let (program, all) = (missing_packages(&["program"]), missing_packages(&[]));
        for package in ["gcc", "iproute2"] {
            assert!(program.contains(package) && all.contains(package), "{package}: {program}{all}");
        }
        for server in ["redis-server", "nginx-light", "postgresql"] {
            assert!(!program.contains(server) && all.contains(server), "{server}: {program}{all}");
        }
    }
}
