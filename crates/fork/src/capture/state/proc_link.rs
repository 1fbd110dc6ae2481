//! Reads links in /proc.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use crate::capture::error::CaptureError;

/// Reads a link of /proc as text. Errors name `pid`, whose state `subject` holds.
pub(in crate::capture) fn read_proc_link(pid: i32, subject: i32, name: &str) -> Result<String, CaptureError> {
    let target = fs::read_link(format!("/proc/{subject}/{name}")).map_err(CaptureError::reading(pid, name))?;
    Ok(String::from_utf8_lossy(target.as_os_str().as_bytes()).into_owned())
}
