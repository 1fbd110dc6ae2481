//! Notes on running threads in calls whose waits a prepare does not keep exactly. `farfork check` prints them.
//! The kernel does not show how much a call has transferred so far, so its result is not known either.

use std::os::fd::AsFd;

use farfork_sys::process::SystemCall;
use farfork_sys::socket;
use farfork_sys::socket_abi::{SO_RCVTIMEO, SO_SNDTIMEO, SO_TYPE, SOL_SOCKET};
use rustix::termios::{LocalModes, SpecialCodeIndex, tcgetattr};

use super::call_timeouts::{duplicate_fd, read_socket_timeout};

/// Maximum number of threads that the notes name.
const THREADS_MAX: usize = 8;

const SOCK_STREAM: i32 = 1;

/// Why a wait is not kept exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InexactReason {
    /// The call may read a terminal that has a time limit.
    TerminalRead,
    /// The call's own limit starts again when the call is repeated.
    CallLimit,
    /// The call continues to wait after it has transferred a part. If it is interrupted after that, it returns only that
    /// part.
    PartialTransfer { option: u32, needs_stream: bool },
}

/// A call that a thread may wait in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InexactCall {
    name: &'static str,
    fd: u64,
    reason: InexactReason,
}

/// Returns a note for each thread whose wait is not kept exactly: its call, and the reason.
pub(in crate::capture) fn inexact_notes(threads: impl Iterator<Item = i32>) -> Vec<String> {
    let mut notes: Vec<String> = threads.filter_map(inexact_note).collect();
    let more = notes.len().saturating_sub(THREADS_MAX);
    if more > 0 {
        notes.truncate(THREADS_MAX);
        notes.push(format!("{more} more threads wait in calls whose time a prepare does not keep exactly"));
    }
    notes
}

fn inexact_note(tid: i32) -> Option<String> {
    let call = SystemCall::read(tid).ok()??;
    let InexactCall { name, fd, reason } = InexactCall::from_arguments(call.number, &call.arguments)?;
    let why = match reason {
        InexactReason::TerminalRead => has_terminal_timeout(tid, fd)
            .then_some("a terminal with a time limit (VTIME), which starts again at a prepare and in each child"),
        InexactReason::CallLimit => Some("with its own time limit, which starts again at a prepare and in each child"),
        InexactReason::PartialTransfer { option, needs_stream } => {
            let is_it = read_socket_timeout(tid, fd, option).is_some() && (!needs_stream || is_stream_socket(tid, fd));
            let of_option = if option == SO_RCVTIMEO {
                "a socket with a time limit (SO_RCVTIMEO): if it has transferred a part before a prepare, it returns only that part, in the parent and in each child"
            } else {
                "a socket with a time limit (SO_SNDTIMEO): if it has transferred a part before a prepare, it returns only that part, in the parent and in each child"
            };
            is_it.then_some(of_option)
        }
    }?;
    Some(format!("thread {tid} waits in {name}(2) on fd {fd}, {why}"))
}

impl InexactCall {
    /// Classifies the call with this number and these arguments.
    fn from_arguments(number: u64, arguments: &[u64; 6]) -> Option<Self> {
        const MSG_WAITALL: u64 = 0x100;
        let [fd, _, third, fourth, fifth, _] = *arguments;
        let sends = |name, needs_stream| (name, InexactReason::PartialTransfer { option: SO_SNDTIMEO, needs_stream });
        let waits_for_all = InexactReason::PartialTransfer { option: SO_RCVTIMEO, needs_stream: true };
        let (name, reason) = match number {
            0 => ("read", InexactReason::TerminalRead),
            19 => ("readv", InexactReason::TerminalRead),
            45 if fourth & MSG_WAITALL != 0 => ("recvfrom", waits_for_all),
            47 if third & MSG_WAITALL != 0 => ("recvmsg", waits_for_all),
            299 if fifth != 0 => ("recvmmsg", InexactReason::CallLimit),
            299 => ("recvmmsg", InexactReason::PartialTransfer { option: SO_RCVTIMEO, needs_stream: false }),
            1 => sends("write", true),
            20 => sends("writev", true),
            40 => sends("sendfile", true),
            44 => sends("sendto", true),
            46 => sends("sendmsg", true),
            307 => sends("sendmmsg", false),
            _ => return None,
        };
        Some(Self { name, fd, reason })
    }
}

/// Whether a read of the terminal has a time limit from its start (VTIME). With VMIN, the time starts only at the first
/// byte.
fn has_terminal_timeout(tid: i32, fd: u64) -> bool {
    let settings = duplicate_fd(tid, fd).and_then(|terminal| tcgetattr(&terminal).ok());
    settings.is_some_and(|settings| {
        let code = |index| settings.special_codes[index];
        let is_by_line = settings.local_modes.contains(LocalModes::ICANON);
        !is_by_line && code(SpecialCodeIndex::VMIN) == 0 && code(SpecialCodeIndex::VTIME) > 0
    })
}

fn is_stream_socket(tid: i32, fd: u64) -> bool {
    let kind =
        duplicate_fd(tid, fd).and_then(|socket| socket::read_number_option(socket.as_fd(), SOL_SOCKET, SO_TYPE).ok());
    kind == Some(SOCK_STREAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_by_its_number_and_arguments() {
        let named = |number, arguments: [u64; 6]| {
            InexactCall::from_arguments(number, &arguments).map(|call| (call.name, call.reason))
        };
        let moves = |option, needs_stream| InexactReason::PartialTransfer { option, needs_stream };
        assert_eq!(named(45, [3, 0, 0, 0, 0, 0]), None, "recv(2) of what there is");
        assert_eq!(named(45, [3, 0, 0, 0x100, 0, 0]), Some(("recvfrom", moves(SO_RCVTIMEO, true))));
        assert_eq!(named(47, [3, 0, 0x100, 0, 0, 0]), Some(("recvmsg", moves(SO_RCVTIMEO, true))));
        assert_eq!(named(299, [3, 0, 2, 0, 0x1000, 0]), Some(("recvmmsg", InexactReason::CallLimit)));
        assert_eq!(named(299, [3, 0, 2, 0, 0, 0]), Some(("recvmmsg", moves(SO_RCVTIMEO, false))));
        assert_eq!(named(232, [3, 0, 1, 200, 0, 0]), None, "epoll_wait(2), whose end is kept");
    }
}
