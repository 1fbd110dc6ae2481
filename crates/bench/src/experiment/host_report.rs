//! `HostReport`: messages that a run has left in the logs of a host, and its leftovers there. A process on the host collects
//! it: `farfork bench process host-observer`, before and after the run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_sys::process::{ProcStat, all_pids};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error_log::{LogEnds, LogErrors};
use super::node_client::NodeClient;
use crate::endpoint::print_line;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::description::MachineDescription;
use crate::machine::remote::RemoteMachine;
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, HOST_COLUMN, ReportCell, ReportFigure, ReportTable};

/// The work of the process, which is also its name in errors.
const HOST_OBSERVER: &str = "host-observer";

/// Time limit for the end of what the run has started. By default, a zygote of a dropped seed ends after 20 s.
const END_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of lines of a log in a report: the last ones.
const LINES_MAX: usize = 1000;

/// A host at the start of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HostStart {
    ends: LogEnds,
    /// For logs that have times only, in s since 1970.
    unix_s: u64,
    /// Seeds and children of its node.
    objects: Vec<String>,
}

/// A host after a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HostReport {
    host: String,
    machine: MachineDescription,
    /// Messages that the daemon of its node has logged during the run.
    daemon_log: Vec<String>,
    /// The kernel's messages during the run.
    kernel_messages: Vec<String>,
    /// A sentence for each log with errors.
    errors: Vec<String>,
    /// A sentence for each log that cannot be read.
    unread_logs: Vec<String>,
    /// Processes, seeds and children that the run has left.
    left: Vec<String>,
}

/// The specification of the process.
#[derive(Debug, Serialize, Deserialize)]
struct HostObservation {
    host: String,
    /// The log of the daemon, and the socket of its API.
    log: PathBuf,
    socket: PathBuf,
    scratch: PathBuf,
    /// `None` at the start of the run.
    start: Option<HostStart>,
}

impl HostObservation {
    fn of(machine: &RemoteMachine, start: Option<HostStart>) -> Self {
        let (log, scratch) = (machine.install().log.clone(), machine.scratch().to_owned());
        Self { host: machine.host_name().to_owned(), log, socket: machine.node_socket(), scratch, start }
    }
}

impl HostStart {
    /// Observes a host.
    pub(crate) fn observe(machine: &RemoteMachine) -> Result<Self, BenchError> {
        let observed: &dyn Machine = machine;
        observed.run_process(HOST_OBSERVER, &HostObservation::of(machine, None))
    }
}

impl HostReport {
    /// Observes a host after the run that began with `start`. Waits a short time for the end of programs.
    pub(crate) fn observe(machine: &RemoteMachine, start: &HostStart) -> Result<Self, BenchError> {
        let observed: &dyn Machine = machine;
        observed.run_process(HOST_OBSERVER, &HostObservation::of(machine, Some(start.clone())))
    }

    /// Reasons why the run has failed. With `strict`, a log that cannot be read is a reason, too.
    pub(crate) fn faults(&self, strict: bool) -> impl Iterator<Item = String> {
        let left = self.left.iter().map(|left| format!("{left} is left after the run"));
        let unread = self.unread_logs.iter().filter(move |_| strict);
        let all = left.chain(self.errors.iter().chain(unread).cloned());
        all.map(|fault| format!("host {}: {fault}", self.host))
    }

    /// A sentence for each log of the host that cannot be read.
    pub(crate) fn unread_logs(&self) -> impl Iterator<Item = String> {
        self.unread_logs.iter().map(|log| format!("host {}: {log}", self.host))
    }
}

/// Adds the hosts of a run to its section. None on one machine.
pub(crate) fn with_hosts(mut section: ReportSection, reports: &[HostReport]) -> ReportSection {
    let columns = [HOST_COLUMN, "machine", "kernel", "logs with errors", "left after the run"];
    let mut table = ReportTable::new("run_hosts", "Hosts of the run, the first one as server", &columns);
    for HostReport { host, machine, errors, left, .. } in reports {
        let count = |list: &[String]| ReportFigure::single(list.len() as f64, "", BetterDirection::Lower);
        let texts = [host.clone(), machine.hardware_text(), machine.kernel().to_owned()].map(ReportCell::text);
        table.add_row(texts.into_iter().chain([Some(count(errors)).into(), Some(count(left)).into()]));
    }
    let has_hosts = section.tables.iter().any(|table| table.columns.iter().any(|column| column == HOST_COLUMN));
    if let ([own, other, ..], false) = (reports, has_hosts) {
        let (own, other) = (&own.host, &other.host);
        section.notes.push(format!("own node: {own}; other node: {other}. Times between two nodes have no sum."));
    }
    if let Some(HostReport { machine, .. }) = reports.first() {
        section.context.machine = format!("{}, and {} more hosts", machine.hardware_text(), reports.len() - 1);
        section.context.kernel = machine.kernel().to_owned();
    }
    let faults = reports.iter().flat_map(|report| report.faults(true)).map(|fault| format!("{fault}."));
    section.with_table(table).with_notes(faults)
}

/// Observes this host as the specification says, and prints the result as JSON.
///
/// # Errors
/// The specification is invalid, or standard output failed.
pub(crate) async fn run_host_observer(specification: &str) -> io::Result<()> {
    let HostObservation { host, log, socket, scratch, start } = serde_json::from_str(specification)?;
    let Some(HostStart { ends, unix_s, objects }) = start else {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let start = HostStart { ends: LogEnds::read(&log), unix_s, objects: list_objects(&socket).await };
        return print_line(&json!(start).to_string());
    };
    let give_up = Instant::now() + END_LIMIT;
    let left = loop {
        let mut left = list_processes(&scratch)?;
        left.extend(list_objects(&socket).await.into_iter().filter(|object| !objects.contains(object)));
        if left.is_empty() || Instant::now() >= give_up {
            break left;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let mut messages = ends.read_new(&log);
    if messages.daemon.is_err() {
        messages.daemon = read_journal(unix_s);
    }
    let LogErrors { found: errors, unread: unread_logs } = messages.find_errors(&host, &[]);
    let daemon_log = last_lines(messages.daemon.unwrap_or_default());
    let kernel = messages.kernel.unwrap_or_default().messages;
    let kernel_messages = last_lines(kernel.into_iter().map(|message| message.text).collect());
    let machine = MachineDescription::detect();
    let report = HostReport { host, machine, daemon_log, kernel_messages, errors, unread_logs, left };
    print_line(&json!(report).to_string())
}

fn last_lines(mut lines: Vec<String>) -> Vec<String> {
    lines.drain(..lines.len().saturating_sub(LINES_MAX));
    lines
}

/// Returns the messages of the daemon in systemd's journal since a time.
fn read_journal(since_unix_s: u64) -> io::Result<Vec<String>> {
    let mut command = Command::new("journalctl");
    command.args(["--quiet", "--unit", "farfork", "--output", "cat", "--since"]).arg(format!("@{since_unix_s}"));
    let output = command.output().map_err(|error| io::Error::new(error.kind(), format!("journalctl: {error}")))?;
    if !output.status.success() {
        return Err(io::Error::other(format!("journalctl: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The seeds and children of the node with this socket; none without a node.
async fn list_objects(socket: &Path) -> Vec<String> {
    match NodeClient::connect(socket).await {
        Ok(mut client) => client.list_own_objects().await.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// The processes that use the directory of the run, without this one and its ancestors.
fn list_processes(scratch: &Path) -> io::Result<Vec<String>> {
    let mut own = vec![std::process::id().cast_signed()];
    while let Some(parent) = own.last().and_then(|pid| ProcStat::read(*pid).ok()).map(|stat| stat.parent)
        && parent > 0
    {
        own.push(parent);
    }
    let scratch = scratch.as_os_str().as_encoded_bytes();
    let uses = |line: &[u8]| line.windows(scratch.len()).any(|part| part == scratch);
    let describe = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| uses(line))?;
        Some(format!("process {pid} ({})", String::from_utf8_lossy(&line).replace('\0', " ").trim()))
    };
    Ok(all_pids()?.into_iter().filter(|pid| !own.contains(pid)).filter_map(describe).collect())
}
