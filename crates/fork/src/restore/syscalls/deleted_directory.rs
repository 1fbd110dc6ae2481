//! Deleted directories: created in the container's private directory, opened or entered, and removed again.

use farfork_container::PRIVATE_DIR;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::FileStatus;

use super::super::RestoreError;
use super::super::file_descriptors::reopen_flags;
use super::super::plan_layout::{STEP_CHANGE_DIRECTORY, STEP_OPEN_FILE};
use super::open_files::OpenFileBuilder;
use super::{SyscallArgument, SyscallBuilder, abi, value};

/// Opens a deleted directory.
pub(super) fn open_deleted_directory(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    (open_file, number): (u32, u32),
    status: FileStatus,
    flags: u32,
) -> Result<(), RestoreError> {
    open_file_builder.syscalls.set_step(STEP_OPEN_FILE, number);
    let path = create_directory(open_file_builder.syscalls, &format!("{PRIVATE_DIR}/deleted-{open_file}"), status)?;
    open_file_builder.syscalls.call_expecting(0, abi::OPEN, &[path, value(reopen_flags(flags))]);
    open_file_builder.syscalls.call_expecting(0, abi::RMDIR, &[path]);
    open_file_builder.store_open_file(0, open_file);
    Ok(())
}

/// Enters the deleted current directory.
pub(super) fn enter_deleted_directory(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let Some(status) = descriptor.process.deleted_cwd else { return Ok(()) };
    syscall_builder.set_step(STEP_CHANGE_DIRECTORY, 0);
    let path =
        create_directory(syscall_builder, &format!("{PRIVATE_DIR}/deleted-of-{}", descriptor.process.pid), status)?;
    syscall_builder.call_expecting(0, abi::CHDIR, &[path]);
    syscall_builder.call_expecting(0, abi::RMDIR, &[path]);
    Ok(())
}

fn create_directory(
    syscall_builder: &mut SyscallBuilder<'_>,
    path: &str,
    status: FileStatus,
) -> Result<SyscallArgument, RestoreError> {
    const PRIVATE_MODE: u32 = 0o700;
    let path = syscall_builder.text_argument(path)?;
    syscall_builder.call_expecting(0, abi::MKDIR, &[path, value(PRIVATE_MODE)]);
    syscall_builder.call_expecting(0, abi::CHOWN, &[path, value(status.uid), value(status.gid)]);
    syscall_builder.call_expecting(0, abi::CHMOD, &[path, value(status.mode)]);
    Ok(path)
}
