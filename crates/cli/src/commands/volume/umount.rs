//! `farfork volume umount DIR`: unmounts a volume, if necessary by force. The commands need no daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_terminal::privilege;
use farfork_volume::mount::{
    UnmountMode, describe_mount_users, has_volume_mount, release_covered_directory, unmount_volume,
};
use tonic::Code;

use crate::GlobalArgs;
use crate::output::{print_json, print_line};

/// Unmount a volume, as umount(8) does.
///
/// The command also makes a directory writable again that `mount --protect` has made immutable, if the background process of the
/// mount was killed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume umount /mnt/data
  farfork volume umount /mnt/data --force

Exit status: 0 the volume is unmounted, 1 failure, 2 wrong usage.")]
pub(crate) struct UnmountVolume {
    /// Directory at which the volume is mounted.
    directory: PathBuf,
    /// Unmount the volume although programs use it or wait for it.
    ///
    /// The command aborts the connection between kernel and volume. All calls on the mount then fail with ECONNABORTED or
    /// ENOTCONN, in each mount namespace. This also ends programs in state D, which SIGKILL cannot end. Data that was written
    /// stays in the log of this node. Stores to shared mappings are lost if the kernel has not written them back.
    #[arg(long)]
    force: bool,
}

impl UnmountVolume {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it unmounts a file system")?;
        let object = format!("directory {}", self.directory.display());
        let failure = |code, error: io::Error| Failure::new(code, &object, error.to_string());
        let directory = locate_mount(&self.directory).map_err(|error| failure(Code::NotFound, error))?;
        let is_mounted = has_volume_mount(&directory).map_err(|error| failure(Code::Internal, error))?;
        let mode = if self.force { UnmountMode::AbortCalls } else { UnmountMode::RefuseBusy };
        unmount_volume(&directory, mode).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                let cause = describe_mount_users(&directory).unwrap_or_else(|_| "programs use the volume".to_owned());
                Failure::new(Code::FailedPrecondition, &object, cause)
                    .with_next_step("end the programs and drop their seeds, unmount what is mounted below, or abort all calls with --force")
            }
            _ => failure(Code::Internal, error),
        })?;
        let was_protected = release_covered_directory(&directory).map_err(|error| failure(Code::Internal, error))?;
        if !is_mounted && !was_protected {
            let failure = Failure::new(Code::NotFound, &object, "no volume is mounted at it");
            return Err(failure.with_next_step("`grep fuse.farfork /proc/mounts` lists the mounts").into());
        }
        if global.json {
            print_json(&serde_json::json!({ "directory": directory.to_string_lossy(), "unmounted": is_mounted }));
        } else {
            let result = if is_mounted { "unmounted" } else { "no longer immutable" };
            print_line(&format!("{} is {result}", directory.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The path of a mount in the mount table. Makes no call on the mount itself, which may not answer, unless a symbolic link leads to
/// it.
fn locate_mount(directory: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(directory)?;
    if let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) {
        let path = parent.canonicalize()?.join(name);
        if has_volume_mount(&path)? {
            return Ok(path);
        }
    }
    absolute.canonicalize()
}
