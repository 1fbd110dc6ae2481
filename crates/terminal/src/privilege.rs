//! `require_root`: makes a command that needs root fail at once, with the reason.

use farfork_api::failure::Failure;
use tonic::Code;

/// Fails unless the effective user is root. `reason` completes "it needs root:".
pub fn require_root(reason: &str) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let failure = Failure::new(Code::PermissionDenied, "this command", format!("it needs root: {reason}"));
    Err(failure.with_next_step("run it with sudo"))
}
