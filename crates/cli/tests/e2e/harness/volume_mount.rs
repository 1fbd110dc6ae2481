//! Unmounts volumes at the end of a test.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::wait;

/// Longest wait until processes of other tests have closed inherited descriptors.
const BUSY_LIMIT: Duration = Duration::from_secs(30);

/// Unmounts a volume with umount(8), like a user.
///
/// A process that another test starts has copies of this process's descriptors until it calls execve(2). A copy of a
/// file on the mount keeps the mount busy, even if the file is closed here.
#[track_caller]
pub(crate) fn unmount_volume(directory: &Path) {
    wait::wait_until("the volume is unmounted", BUSY_LIMIT, || {
        let output = Command::new("umount").arg(directory).output().expect("umount");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || stderr.contains("busy"), "umount {}: {stderr}", directory.display());
        output.status.success().then_some(())
    });
}
