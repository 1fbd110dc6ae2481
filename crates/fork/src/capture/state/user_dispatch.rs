//! Syscall User Dispatch (prctl(2), PR_SET_SYSCALL_USER_DISPATCH): the kernel turns system calls of a thread into SIGSYS unless
//! a byte of the program, the selector, allows them. A child's thread gets the configuration with its last calls.
//!
//! Injected calls, and the last call of the restore, need a selector that allows calls. Otherwise the kernel would raise SIGSYS
//! instead, and reset a blocked handler. `pause` checks this before it makes any call.

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_wire::descriptor::UserDispatch;

use super::ThreadExtendedState;
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::stop::stop_guard::ProcessSnapshot;
use crate::capture::survey::Survey;

/// Reads the configuration of a stopped thread; `None` if it is off, or if the kernel does not report it (before Linux 6.4).
pub(super) fn read(tid: i32) -> Option<UserDispatch> {
    let [mode, selector, offset, bytes] = farfork_sys::ptrace::read_user_dispatch(tid).ok()?;
    (mode != 0).then_some(UserDispatch { mode, selector, offset, bytes })
}

/// Refuses stopped threads whose system calls may be blocked, or that also have filters, which might forbid the call that
/// restores the configuration.
pub(in crate::capture) fn refuse_blocked_calls(
    snapshot: &ProcessSnapshot,
    extended_states: &[ThreadExtendedState],
    survey: &Survey,
    mem: &File,
) -> Result<(), CaptureError> {
    const ALLOW: u8 = 0;
    let mut selectors = Vec::new();
    let mut refusals = Vec::new();
    for (thread, extended_state) in snapshot.threads.iter().zip(extended_states) {
        let Some(UserDispatch { selector, .. }) = extended_state.user_dispatch else { continue };
        let mut value = [ALLOW];
        let is_allowed = selector != 0 && mem.read_exact_at(&mut value, selector).is_ok() && value == [ALLOW];
        let has_filters = survey.profiles.get(&thread.tid).is_none_or(|profile| profile.status.seccomp != 0);
        let reason = if !is_allowed {
            "Syscall User Dispatch blocks its system calls now; prepare it when its selector is SYSCALL_DISPATCH_FILTER_ALLOW"
        } else if selectors.contains(&selector) {
            "it shares its selector of Syscall User Dispatch with another thread; give each thread its own"
        } else if has_filters {
            "it has Syscall User Dispatch and filters of system calls (seccomp), which are not carried together"
        } else {
            selectors.push(selector);
            continue;
        };
        refusals.push(Refusal::new(format!("pid {}, thread {}", snapshot.pid, thread.tid), reason));
    }
    if refusals.is_empty() { Ok(()) } else { Err(CaptureError::refused(snapshot.pid, refusals)) }
}
