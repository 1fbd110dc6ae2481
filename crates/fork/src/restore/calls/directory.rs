//! Directories that were deleted: made where nobody else looks, opened or entered, and removed again.

use farfork_container::PRIVATE_DIR;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::FileStatus;

use super::super::RestoreError;
use super::super::descriptors::reopen_flags;
use super::super::layout::{STEP_CHANGE_DIRECTORY, STEP_OPEN_FILE};
use super::files::Bench;
use super::{Argument, Script, number, value};

/// One that is open.
pub(super) fn open(
    bench: &mut Bench<'_, '_>,
    (open_file, number): (u32, u32),
    status: FileStatus,
    flags: u32,
) -> Result<(), RestoreError> {
    bench.script.about(STEP_OPEN_FILE, number);
    let path = make(bench.script, &format!("{PRIVATE_DIR}/deleted-{open_file}"), status)?;
    bench.script.gives(0, number::OPEN, &[path, value(reopen_flags(flags))]);
    bench.script.gives(0, number::RMDIR, &[path]);
    bench.put_aside(0, open_file);
    Ok(())
}

/// The current one.
pub(super) fn enter(descriptor: &Descriptor, script: &mut Script<'_>) -> Result<(), RestoreError> {
    let Some(status) = descriptor.process.deleted_cwd else { return Ok(()) };
    script.about(STEP_CHANGE_DIRECTORY, 0);
    let path = make(script, &format!("{PRIVATE_DIR}/deleted-of-{}", descriptor.process.pid), status)?;
    script.gives(0, number::CHDIR, &[path]);
    script.gives(0, number::RMDIR, &[path]);
    Ok(())
}

fn make(script: &mut Script<'_>, path: &str, status: FileStatus) -> Result<Argument, RestoreError> {
    const NOBODY_ELSE: u32 = 0o700;
    let path = script.text(path)?;
    script.gives(0, number::MKDIR, &[path, value(NOBODY_ELSE)]);
    script.gives(0, number::CHOWN, &[path, value(status.uid), value(status.gid)]);
    script.gives(0, number::CHMOD, &[path, value(status.mode)]);
    Ok(path)
}
