//! Finds, starts and stops the daemon of this machine.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use farfork_api::run_dir::RunDir;
use farfork_cluster::local::{COMMAND_VARIABLES, listening_process};
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

/// Lines of the log of a daemon that did not start, which an error shows, and the longest log that is read for them.
const LOG_LINES_MAX: usize = 3;
const LOG_BYTES_MAX: u64 = 1 << 20;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The running daemon of the run directory.
pub(super) fn find(settings: &NodeSettings) -> Option<ProcessIdentity> {
    listening_process(&RunDir::new(&settings.run_dir).socket())
}

/// Starts the daemon, with systemd if it runs. Restarts a daemon that runs another program or has other arguments. Returns
/// whether it changed anything. If the new daemon does not start, the previous one is started again.
pub(super) fn ensure_started(settings: &NodeSettings) -> anyhow::Result<bool> {
    let running = find(settings);
    if running.is_some_and(|process| report::is_current(settings, process.pid)) {
        // The daemon may have been started without its unit.
        return Ok(is_systemd_running() && systemd::install_unit(settings, &settings.command_line())?);
    }
    let previous = running.map(|process| report::command_line(process.pid));
    stop(settings)?;
    let Err(error) = start(settings, &settings.command_line()) else { return Ok(true) };
    let Some(previous) = previous else { return Err(error) };
    match stop(settings).and_then(|()| start(settings, &previous)) {
        Ok(()) => Err(error.context("the previous daemon runs again, because the new one did not start")),
        Err(second) => {
            let second = format!("no daemon runs, because the previous one did not start again ({second:#})");
            Err(error.context(second))
        }
    }
}

/// Starts the daemon with this command line, and waits until it answers.
fn start(settings: &NodeSettings, line: &[String]) -> anyhow::Result<()> {
    if !is_systemd_running() {
        return start_detached(settings, line);
    }
    systemd::install_unit(settings, line)?;
    systemd::restart()?;
    wait_until_ready(settings, None).context("`journalctl -u farfork` shows its log")
}

/// Starts the daemon in a session of its own, and waits until it answers.
pub(super) fn start_detached(settings: &NodeSettings, line: &[String]) -> anyhow::Result<()> {
    let object = || format!("log {}", settings.log.display());
    if let Some(parent) = settings.log.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).with_context(object)?;
    }
    let mut options = File::options();
    let mut log = options.create(true).read(true).append(true).mode(0o600).open(&settings.log).with_context(object)?;
    let written_before = log.metadata().with_context(object)?.len();
    let output = || log.try_clone().with_context(object);
    let mut command = Command::new("setsid");
    command.arg("--").args(line).stdin(Stdio::null()).stdout(output()?).stderr(output()?).current_dir("/");
    for variable in COMMAND_VARIABLES {
        command.env_remove(variable);
    }
    let child = command.spawn().with_context(|| line[0].clone())?;
    wait_until_ready(settings, Some(child)).with_context(|| {
        match log.seek(SeekFrom::Start(written_before)).and_then(|_| last_lines(&mut log)) {
            Ok(lines) if lines.is_empty() => format!("{} has no new line", object()),
            Ok(lines) => format!("{} ends with: {lines}", object()),
            Err(error) => format!("{}: {error}", object()),
        }
    })
}

/// The last lines of a log, as one line.
fn last_lines(log: impl Read) -> io::Result<String> {
    let mut text = Vec::new();
    log.take(LOG_BYTES_MAX).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    Ok(lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("; "))
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

#[cfg(test)]
mod tests {
    #[test]
    fn an_error_shows_the_last_lines_of_a_log() {
        assert_eq!(super::last_lines(&b"a\nb\n\nc\n  d\n"[..]).unwrap(), "b; c;   d");
        assert_eq!(super::last_lines(&b""[..]).unwrap(), "");
    }
}
