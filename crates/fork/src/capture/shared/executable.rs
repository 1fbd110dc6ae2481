//! The executable of a process as a shared object: other nodes may lack the file. `SharedSources::open` calls it.

use std::io;

use farfork_sys::mount::table::Mount;
use farfork_sys::namespace;
use rustix::fs::{AtFlags, CWD, StatxFlags, readlink, statx};
use rustix::io::Errno;

use super::SharedSource;
use crate::capture::files::{DELETED_SUFFIX, path_identity};
use crate::capture::state::node_root::ProcDirectory;
use crate::capture::survey::Survey;

/// The executable of a process, if it was deleted or replaced, or is not a file of the node: other nodes lack it, or have
/// another.
pub(super) fn open_executable(survey: &Survey) -> io::Result<Option<SharedSource>> {
    let exe = format!("/proc/{}/exe", survey.pid);
    let link = match readlink(&exe, Vec::new()) {
        Ok(link) => link.into_bytes(),
        // The process has ended; a later step reports it.
        Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let is_without_path = link.ends_with(DELETED_SUFFIX) || is_absent_on_node(survey.pid, &exe, &link)?;
    let source = is_without_path.then(|| SharedSource::open(&exe, &link, &[])).transpose()?;
    Ok(source.map(|source| SharedSource { is_immutable: true, ..source }))
}

/// Whether the node has another file, or none, at the path of a process's executable.
fn is_absent_on_node(pid: i32, exe: &str, link: &[u8]) -> io::Result<bool> {
    let found = statx(CWD, exe, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    if namespace::is_main_thread_namespace(CWD, &format!("/proc/{pid}/ns/mnt")) {
        return Ok(!path_identity::is_at_path(link, &found));
    }
    let process = ProcDirectory { directory: CWD, prefix: &format!("/proc/{pid}") };
    let is_its = |mount: &Mount| u64::from(mount.id) == found.stx_mnt_id;
    Ok(path_identity::is_absent_on_node(link, &found, process, is_its))
}
