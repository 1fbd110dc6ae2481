//! The unit of the daemon, on machines that systemd runs.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use farfork_sys::cgroup::hierarchy::DAEMON_LEAF;

use super::settings::NodeSettings;

/// The unit of the daemon.
const UNIT: &str = "farfork.service";
const UNIT_PATH: &str = "/etc/systemd/system/farfork.service";

/// Writes and enables the unit, which runs this command line. Returns whether it was different.
pub(super) fn install_unit(settings: &NodeSettings, line: &[String]) -> anyhow::Result<bool> {
    let text = unit_text(settings, line);
    if fs::read_to_string(UNIT_PATH).is_ok_and(|installed| installed == text) {
        return Ok(false);
    }
    fs::write(UNIT_PATH, text).context(UNIT_PATH)?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", UNIT])?;
    Ok(true)
}

/// Starts the daemon, or starts it again.
pub(super) fn restart() -> anyhow::Result<()> {
    systemctl(&["restart", UNIT])
}

/// Stops the daemon if the unit exists.
pub(super) fn stop() -> anyhow::Result<()> {
    if Path::new(UNIT_PATH).exists() { systemctl(&["stop", UNIT]) } else { Ok(()) }
}

/// Stops the daemon, and removes its unit. Returns whether there was one.
pub(super) fn remove_unit() -> anyhow::Result<bool> {
    if !Path::new(UNIT_PATH).exists() {
        return Ok(false);
    }
    systemctl(&["disable", "--now", UNIT])?;
    match fs::remove_file(UNIT_PATH) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context(UNIT_PATH),
        _ => {}
    }
    systemctl(&["daemon-reload"])?;
    Ok(true)
}

/// The unit. With `KillMode=process`, children survive a crash of the daemon, and the next daemon takes them over. With
/// `DelegateSubgroup`, which systemd ignores before version 254, the groups of children are below the unit's group.
fn unit_text(settings: &NodeSettings, line: &[String]) -> String {
    format!(
        "# Written by `farfork cluster deploy`; `farfork cluster undeploy` removes it.\n\
         [Unit]\n\
         Description=farfork node {}\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         \n\
         [Service]\n\
         ExecStart={}\n\
         KillMode=process\n\
         Restart=on-failure\n\
         RestartSec=1\n\
         Delegate=yes\n\
         DelegateSubgroup={DAEMON_LEAF}\n\
         LimitNOFILE=65536\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        settings.name,
        line.join(" ")
    )
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let object = || format!("systemctl {}", arguments.join(" "));
    let output = Command::new("systemctl").args(arguments).stdin(Stdio::null()).output().with_context(object)?;
    match output.status.success() {
        true => Ok(()),
        false => bail!("{}: {}", object(), String::from_utf8_lossy(&output.stderr).trim()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::super::settings::NodeSettings;
    use super::unit_text;

    /// The only message of an older systemd.
    const IGNORED_BEFORE_254: &str = "Unknown key 'DelegateSubgroup' in section [Service], ignoring.";

    /// systemd itself checks the unit. It requires that the program exists.
    #[test]
    fn systemd_accepts_the_unit() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("farfork");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let settings = NodeSettings {
            name: "n1".parse().unwrap(),
            listen: "[::1]:7400".parse().unwrap(),
            join: Some("10.0.0.1:7400".parse().unwrap()),
            program_dir: directory.path().to_owned(),
            run_dir: "/run/farfork".into(),
            trust: "/etc/farfork".into(),
            log: "/var/log/farfork.log".into(),
            arguments: vec!["--encryption".to_owned(), "off".to_owned()],
        };
        let unit = directory.path().join("farfork.service");
        fs::write(&unit, unit_text(&settings, &settings.command_line())).unwrap();
        let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output();
        let output = verify.expect("systemd-analyze(1) is installed: run scripts/setup.sh");
        let messages = String::from_utf8_lossy(&output.stderr);
        let is_about_unit = |line: &str| line.contains("farfork.service") && !line.contains(IGNORED_BEFORE_254);
        assert!(output.status.success() && !messages.lines().any(is_about_unit), "{messages}");
    }
}
