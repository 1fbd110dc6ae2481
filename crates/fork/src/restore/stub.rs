//! Sends requests to a container's stub, a zygote or a privileged forker over its control socket, and reads the
//! reports.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use farfork_sys::fd_passing::{self, FDS_PER_MESSAGE_MAX};
use farfork_sys::process::{self, ProcStat};
use farfork_wire::Descriptor;
use rustix::io::Errno;
use zerocopy::{IntoBytes, TryFromBytes};

use super::RestoreError;
use super::passed_objects::PassedObjects;
use super::plan_layout::{
    MARK_COUNT, NETWORK_MAGIC, REPORT_CHILD_ENDED, REPORT_FAILED, REPORT_PROCESS_ENDED, REPORT_READY, REPORT_RESTORED,
    REQUEST_MAGIC, StubReport, StubRequest, TIME_OFFSETS_BYTES_MAX, WAIT_MAGIC,
};
use super::process_tree::starts_stopped;
use super::report::{describe_step, describe_step_object, suggest_remedy};

/// The number of the userfaultfd queue in a stub whose child runs (USERFAULTFD_QUEUE_FD in restorer.h).
pub const STUB_QUEUE_FD: u32 = 5;

/// The stub: a program of a few KiB without a C library, which runs as pid 1 of each container.
pub const STUB_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub"));

/// Time limit for the first report of a new stub, which is its first action. The end of a stub is noticed at once, without
/// this limit. The limit exceeds scheduling stalls: on one machine, processes waited for ten seconds
/// (`docs/decisions/023-scheduling-stalls.md`).
const STUB_READY_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval between checks whether a stub is stopped.
const STOP_LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The report of a restored child.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestoreReport {
    /// Its pid in this process's pid namespace.
    pub(super) pid: i32,
    /// When it was complete, CLOCK_REALTIME, in nanoseconds.
    pub(super) realtime_ns: u64,
    /// Timestamps of its phases, from the same clock.
    pub(super) marks_ns: [u64; MARK_COUNT],
}

/// A request to a stub, a zygote or a privileged forker.
#[derive(Debug)]
pub(super) struct RestoreRequest<'a> {
    pub(super) plan: &'a File,
    /// The socket that receives the userfaultfd. For a zygote's copy: the first process of its container.
    pub(super) pager_or_init: BorrowedFd<'a>,
    /// The file for the wait status. For a zygote's copy: its control socket. For a privileged forker: the container's init.
    pub(super) status_or_control: BorrowedFd<'a>,
    pub(super) objects: &'a PassedObjects,
    /// For a zygote's copy: the cgroup into which it is forked. For any other child: the userfaultfd queue.
    pub(super) cgroup_or_queue: Option<BorrowedFd<'a>>,
    /// Pid of the child in its container. With 0, the stub becomes a zygote.
    pub(super) pid: u32,
    /// Pid of the intermediate, which forks the child of a zygote or a privileged forker in its container.
    pub(super) intermediate_pid: u32,
    /// All descriptors that the restore needs are below this number.
    pub(super) fd_limit: u32,
    pub(super) time_offsets: &'a str,
}

/// Waits for the first report of a new stub, without reading it. Before this report, the kernel may still be mapping
/// the stub, and its container may lack `/proc`.
///
/// # Errors
/// `TimedOut`.
pub fn wait_stub_started(control: BorrowedFd<'_>) -> io::Result<()> {
    match farfork_sys::poll::wait_readable(control, Instant::now() + STUB_READY_TIMEOUT)? {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::TimedOut, "its first process does not report")),
    }
}

/// Creates a file with a plan, to be passed to a stub.
pub(super) fn create_plan_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = farfork_sys::memfd::create("farfork-plan", false)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Sends a request to a stub, a zygote or a privileged forker.
///
/// # Errors
/// The receiver has closed its socket. The error is the failure that it reported, if any.
pub(super) fn send_request(
    control: BorrowedFd<'_>,
    request: &RestoreRequest<'_>,
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    send_request_messages(control, request)
        .map_err(|cause| read_failure_report(control, descriptor).unwrap_or(RestoreError::StubIo(cause)))
}

/// Reads the failure that a stub reported before it ended.
fn read_failure_report(control: BorrowedFd<'_>, descriptor: &Descriptor) -> Option<RestoreError> {
    /// A stub sends a ready report once, or twice if it changed networks. They may still be unread when the closed
    /// socket is noticed.
    const REPORTS_MAX: usize = 4;
    for _ in 0..REPORTS_MAX {
        match wait_report(control, Duration::ZERO, descriptor, REPORT_READY) {
            Ok(_) | Err(RestoreError::StubIo(_)) => {}
            Err(RestoreError::Timeout { .. } | RestoreError::StubExited) => return None,
            Err(failure) => return Some(failure),
        }
    }
    None
}

/// Sends the request, in as many messages as its descriptors require.
fn send_request_messages(control: BorrowedFd<'_>, request: &RestoreRequest<'_>) -> io::Result<()> {
    let mut fds: Vec<BorrowedFd<'_>> = vec![request.plan.as_fd(), request.pager_or_init, request.status_or_control];
    fds.extend(request.objects.as_fds());
    fds.extend(request.cgroup_or_queue);
    let text = request.time_offsets.as_bytes();
    let mut message = StubRequest {
        magic: REQUEST_MAGIC,
        passed_count: fds.len() as u32,
        pid: request.pid,
        intermediate_pid: request.intermediate_pid,
        fd_limit: request.fd_limit,
        time_offsets_bytes: text.len() as u32,
        time_offsets: [0; TIME_OFFSETS_BYTES_MAX],
    };
    message.time_offsets[..text.len()].copy_from_slice(text);

    let (first, rest) = fds.split_at(fds.len().min(FDS_PER_MESSAGE_MAX));
    fd_passing::send(control, message.as_bytes(), first)?;
    rest.chunks(FDS_PER_MESSAGE_MAX).try_for_each(|chunk| fd_passing::send(control, &[0; 4], chunk))
}

/// Requests a stub to wait for a child that another process has forked. The stub writes the wait status to
/// `status_file`, and holds the userfaultfd `queue`.
pub(super) fn send_wait_request(
    control: BorrowedFd<'_>,
    (status_file, queue): (BorrowedFd<'_>, BorrowedFd<'_>),
    descriptor: &Descriptor,
) -> Result<(), RestoreError> {
    // Read the stub's report first: if the socket is closed with unread messages, the stub's reads fail.
    fd_passing::enable_sender_pid(control).map_err(RestoreError::StubIo)?;
    wait_ready(control, STUB_READY_TIMEOUT, descriptor)?;
    let message = StubRequest {
        magic: WAIT_MAGIC,
        passed_count: 2,
        pid: descriptor.process.pid,
        intermediate_pid: 0,
        fd_limit: 0,
        time_offsets_bytes: 0,
        time_offsets: [0; TIME_OFFSETS_BYTES_MAX],
    };
    fd_passing::send(control, message.as_bytes(), &[status_file, queue]).map_err(RestoreError::StubIo)
}

/// Requests an unused stub to enter another network than its container's, and waits until it has entered.
///
/// # Errors
/// The stub's socket failed, or the stub may not enter the network. The container is no longer usable.
pub fn enter_network(
    control: BorrowedFd<'_>,
    network: BorrowedFd<'_>,
    descriptor: &Descriptor,
    limit: Duration,
) -> Result<(), RestoreError> {
    fd_passing::enable_sender_pid(control).map_err(RestoreError::StubIo)?;
    wait_ready(control, limit, descriptor)?;
    let message = StubRequest {
        magic: NETWORK_MAGIC,
        passed_count: 1,
        pid: 0,
        intermediate_pid: 0,
        fd_limit: 0,
        time_offsets_bytes: 0,
        time_offsets: [0; TIME_OFFSETS_BYTES_MAX],
    };
    fd_passing::send(control, message.as_bytes(), &[network]).map_err(RestoreError::StubIo)?;
    wait_ready(control, limit, descriptor).map(drop)
}

/// Waits until the child is restored, or its failure is known.
pub(super) fn wait_restored(
    control: BorrowedFd<'_>,
    limit: Duration,
    descriptor: &Descriptor,
) -> Result<RestoreReport, RestoreError> {
    wait_report(control, limit, descriptor, REPORT_RESTORED)
}

/// As `wait_restored`, but fails early if the stub or a process of the child is stopped.
pub(super) fn wait_restored_or_stopped(
    stub_pid: i32,
    control: BorrowedFd<'_>,
    limit: Duration,
    descriptor: &Descriptor,
) -> Result<RestoreReport, RestoreError> {
    let (started_at, mut stopped_before) = (Instant::now(), None);
    // If processes of the tree must be stopped at the end, a process that was stopped too early cannot be distinguished
    // from them.
    let is_stop_expected = descriptor.descendants.iter().any(starts_stopped);
    loop {
        let left = limit.saturating_sub(started_at.elapsed());
        match wait_restored(control, left.min(STOP_LOOK_INTERVAL), descriptor) {
            Err(RestoreError::Timeout { .. }) => {}
            result => return result,
        }
        match find_stopped_process(stub_pid) {
            Some(pid) if pid == stub_pid => return Err(RestoreError::StubStopped { limit: started_at.elapsed() }),
            // Fail only if the process is stopped at two checks in a row: a stop may be short.
            Some(pid) if stopped_before == Some(pid) && !is_stop_expected => {
                return Err(RestoreError::ProcessStopped { pid, waited: started_at.elapsed() });
            }
            _ if started_at.elapsed() >= limit => return Err(RestoreError::Timeout { limit }),
            stopped => stopped_before = stopped,
        }
    }
}

/// Returns a process that a signal or a tracer has stopped: `pid` or one of its descendants.
fn find_stopped_process(pid: i32) -> Option<i32> {
    if ProcStat::read(pid).is_ok_and(|stat| matches!(stat.state, 'T' | 't')) {
        return Some(pid);
    }
    process::children_of_thread(pid, pid).into_iter().find_map(find_stopped_process)
}

/// Waits until a stub, a zygote or a privileged forker reports that it is ready for a request, or that it has failed.
pub(super) fn wait_ready(
    control: BorrowedFd<'_>,
    limit: Duration,
    descriptor: &Descriptor,
) -> Result<RestoreReport, RestoreError> {
    wait_report(control, limit, descriptor, REPORT_READY)
}

fn wait_report(
    control: BorrowedFd<'_>,
    limit: Duration,
    descriptor: &Descriptor,
    wanted: u32,
) -> Result<RestoreReport, RestoreError> {
    let deadline = Instant::now() + limit;
    loop {
        if !farfork_sys::poll::wait_readable(control, deadline).map_err(RestoreError::StubIo)? {
            return Err(RestoreError::Timeout { limit });
        }
        let mut bytes = [0; size_of::<StubReport>()];
        let (received, pid) = fd_passing::receive_with_sender(control, &mut bytes).map_err(RestoreError::StubIo)?;
        let (kind, report) = parse_report(&bytes[..received], pid, descriptor)?;
        if kind == wanted {
            return Ok(report);
        }
    }
}

/// Parses a report: returns the restored child, `None` if the report is not the result, or the failure.
pub(super) fn parse_restored_report(
    bytes: &[u8],
    pid: i32,
    descriptor: &Descriptor,
) -> Result<Option<RestoreReport>, RestoreError> {
    let (kind, report) = parse_report(bytes, pid, descriptor)?;
    Ok(Some(report).filter(|_| kind == REPORT_RESTORED))
}

/// Parses a report. Returns its kind and its contents, or the failure that it reports.
fn parse_report(bytes: &[u8], pid: i32, descriptor: &Descriptor) -> Result<(u32, RestoreReport), RestoreError> {
    let report = match StubReport::try_read_from_bytes(bytes) {
        Ok(report) => report,
        Err(_) if bytes.is_empty() => return Err(RestoreError::StubExited),
        Err(_) => return Err(RestoreError::StubIo(io::ErrorKind::InvalidData.into())),
    };
    match report.kind {
        REPORT_READY | REPORT_RESTORED => {
            let StubReport { kind, realtime_ns, marks_ns, .. } = report;
            Ok((kind, RestoreReport { pid, realtime_ns, marks_ns }))
        }
        REPORT_FAILED => Err(failure_error(&report, descriptor)),
        REPORT_CHILD_ENDED => Err(RestoreError::ChildDied { wait_status: report.detail }),
        REPORT_PROCESS_ENDED => Err(RestoreError::ProcessDied { pid: report.detail, wait_status: report.status }),
        _ => Err(RestoreError::StubIo(io::ErrorKind::InvalidData.into())),
    }
}

fn failure_error(report: &StubReport, descriptor: &Descriptor) -> RestoreError {
    let member = report.process_index.checked_sub(1).and_then(|member| descriptor.descendants.get(member as usize));
    let object = match member {
        None => describe_step_object(report.step, report.detail, descriptor),
        Some(member) => {
            let object = describe_step_object(report.step, report.detail, &descriptor.rooted_at(member));
            format!("pid {}{}{object}", member.process.pid, if object.is_empty() { "" } else { ", " })
        }
    };
    let cause = io::Error::from_raw_os_error(report.error);
    let remedy = suggest_remedy(report.step, Errno::from_raw_os_error(report.error));
    RestoreError::Step { step: describe_step(report.step), object, cause, remedy }
}
