//! Finds, starts and stops the daemon of this machine.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use farfork_api::run_dir::RunDir;
use farfork_cluster::local::{COMMAND_VARIABLES, listening_process, read_log_tail};
use farfork_sys::cgroup::daemon_leaf::is_systemd_running;
use farfork_sys::pidfd;
use farfork_sys::process_identity::ProcessIdentity;
use rustix::process::Signal;

use super::settings::NodeSettings;
use super::{report, systemd};

/// Longest wait until a daemon answers. It first removes what a crashed daemon left.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until a daemon has ended after SIGTERM. It kills its children, and frees their memory.
const STOP_LIMIT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The running daemon of the run directory.
pub(super) fn find(settings: &NodeSettings) -> Option<ProcessIdentity> {
    listening_process(&RunDir::new(&settings.run_dir).socket())
}

/// Starts the daemon, with systemd if it runs. Restarts a daemon that runs another program or has other arguments. Returns
/// whether it changed anything.
pub(super) fn ensure_started(settings: &NodeSettings) -> anyhow::Result<bool> {
    let is_current = find(settings).is_some_and(|process| report::is_current(settings, process.pid));
    if is_systemd_running() {
        let has_changed = systemd::install_unit(settings)?;
        if is_current {
            return Ok(has_changed);
        }
        stop(settings)?;
        systemd::restart()?;
        wait_until_ready(settings, None).context("`journalctl -u farfork` shows its log")?;
    } else if is_current {
        return Ok(false);
    } else {
        stop(settings)?;
        start_detached(settings)?;
    }
    Ok(true)
}

/// Starts the daemon in a session of its own, and waits until it answers.
pub(super) fn start_detached(settings: &NodeSettings) -> anyhow::Result<()> {
    let object = || format!("log {}", settings.log.display());
    if let Some(parent) = settings.log.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).with_context(object)?;
    }
    let log = File::options().create(true).append(true).mode(0o600).open(&settings.log).with_context(object)?;
    let line = settings.command_line();
    let mut command = Command::new("setsid");
    command.arg("--").args(&line).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
    for variable in COMMAND_VARIABLES {
        command.env_remove(variable);
    }
    let child = command.spawn().with_context(|| line[0].clone())?;
    wait_until_ready(settings, Some(child))
        .with_context(|| format!("its log ends with: {}", read_log_tail(&settings.log)))
}

/// Waits until the daemon accepts connections. `started` is its process, if this process started it.
fn wait_until_ready(settings: &NodeSettings, mut started: Option<Child>) -> anyhow::Result<()> {
    let (socket, deadline) = (RunDir::new(&settings.run_dir).socket(), Instant::now() + READY_LIMIT);
    while UnixStream::connect(&socket).is_err() {
        if let Some(status) = started.as_mut().map(Child::try_wait).transpose()?.flatten() {
            bail!("the daemon ended: {status}");
        }
        if Instant::now() >= deadline {
            bail!("the daemon did not answer at {} within {} s", socket.display(), READY_LIMIT.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Stops the daemon with SIGTERM, and waits until it has ended. A daemon that does not run is no error.
pub(super) fn stop(settings: &NodeSettings) -> anyhow::Result<()> {
    if is_systemd_running() {
        systemd::stop()?;
    }
    let Some(process) = find(settings) else { return Ok(()) };
    let object = || format!("daemon {}", process.pid);
    let Some(daemon) = process.open().with_context(object)? else { return Ok(()) };
    pidfd::send_signal(&daemon, Signal::TERM.as_raw()).with_context(object)?;
    if !pidfd::wait_exit(&daemon, STOP_LIMIT).with_context(object)? {
        bail!("daemon {} has not ended {} s after SIGTERM; see its log, and end it", process.pid, STOP_LIMIT.as_secs());
    }
    Ok(())
}
