//! Unmounts volumes in containers when the node has unmounted them. A container shows the volumes that the node had mounted
//! when it was built, and a volume stays in use as long as a container shows it. A volume that a process uses stays mounted.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use farfork_sys::mount::table;
use farfork_sys::{mount, namespace};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::process::fchdir;

use crate::root::blueprint::ServedMount;

/// Longest wait for a container: unmounting may wait for the process that serves the volume.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// Unmounts these volumes in the container whose first process is `init`. Returns those that processes of the container use.
pub(crate) fn release(init_pid: i32, init: &OwnedFd, volumes: &BTreeSet<ServedMount>) -> BTreeSet<ServedMount> {
    if volumes.is_empty() {
        return BTreeSet::new();
    }
    let shown = find_shown(init_pid, volumes);
    if shown.is_empty() {
        return shown;
    }
    release_in_thread(init, shown).unwrap_or_else(|error| {
        // At the same time, the pool ends containers that show a volume which the node has unmounted. An unmount that takes
        // long has removed the mount before it waits for the server.
        for volume in find_shown(init_pid, volumes) {
            let point = volume.point.display();
            tracing::warn!(%error, init = init_pid, %point, "an unmounted volume stays mounted in a container");
        }
        BTreeSet::new()
    })
}

/// Returns which of these volumes a container shows. A container that has ended shows none.
fn find_shown(init_pid: i32, volumes: &BTreeSet<ServedMount>) -> BTreeSet<ServedMount> {
    let Ok(mounts) = table::read_mounts_of(init_pid) else { return BTreeSet::new() };
    ServedMount::find(&mounts).intersection(volumes).cloned().collect()
}

/// Unmounts the volumes in a temporary thread, which enters the container's mount namespace.
fn release_in_thread(init: &OwnedFd, volumes: BTreeSet<ServedMount>) -> io::Result<BTreeSet<ServedMount>> {
    let init = init.try_clone()?;
    let (sender, receiver) = mpsc::channel();
    let body = move || {
        let released = namespace::enter_mounts(init.as_fd()).map(|()| unmount_unused(volumes));
        // An error means that the caller no longer waits.
        let _ = sender.send(released);
    };
    thread::Builder::new().name("volume-release".to_owned()).spawn(body)?;
    receiver.recv_timeout(RELEASE_LIMIT).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Unmounts volumes of the thread's mount namespace. Returns those that are in use.
fn unmount_unused(mut volumes: BTreeSet<ServedMount>) -> BTreeSet<ServedMount> {
    volumes.retain(|volume| match unmount_one(volume) {
        Ok(()) => false,
        Err(error) => {
            let is_in_use = error.raw_os_error() == Some(Errno::BUSY.raw_os_error());
            if !is_in_use {
                tracing::warn!(point = %volume.point.display(), %error, "a volume stays mounted in a container");
            }
            is_in_use
        }
    });
    volumes
}

/// Unmounts one volume. At the same time, processes of the container may change its path. Another mount must not be
/// unmounted instead: it may hide files of the node. So the parent directory is opened without following symbolic links. A
/// mount point in it cannot be renamed.
fn unmount_one(volume: &ServedMount) -> io::Result<()> {
    let (Some(directory), Some(name)) = (volume.point.parent(), volume.point.file_name()) else { return Ok(()) };
    let name = Path::new(name);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    fchdir(openat2(CWD, directory, flags, Mode::empty(), resolve)?)?;
    // The volume's server is not queried, because it may not answer.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, name, flags, StatxFlags::empty())?;
    let device = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor);
    if device != volume.device {
        return Err(io::Error::other("another file system is mounted over it"));
    }
    mount::unmount_unused(name)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use farfork_sys::mount::table::Attributes;

    use super::*;

    /// Runs in its own mount namespace, with a file system at `volume/data`, and `other` next to it.
    fn run_with_volume(body: impl FnOnce(&Path, &BTreeSet<ServedMount>) + Send) {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().canonicalize().unwrap();
        let run = || {
            namespace::unshare_container(false).unwrap();
            mount::make_private(Path::new("/")).unwrap();
            let point = directory.join("volume/data");
            mount_tmpfs(&point);
            fs::write(point.join("file"), "volume").unwrap();
            let mounts = table::read_thread_mounts().unwrap();
            let device = mounts.iter().find(|mount| mount.point == point).unwrap().device.clone();
            body(&directory, &BTreeSet::from([ServedMount { device, point, is_volume: true }]));
        };
        thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    fn mount_tmpfs(point: &Path) {
        fs::create_dir_all(point).unwrap();
        let tmpfs = mount::create_filesystem("tmpfs", &[], Attributes::empty()).unwrap();
        mount::attach(tmpfs.as_fd(), point).unwrap();
    }

    #[test]
    fn a_volume_is_unmounted_when_nothing_uses_it() {
        run_with_volume(|directory, volumes| {
            let file = File::open(directory.join("volume/data/file")).unwrap();
            assert_eq!(unmount_unused(volumes.clone()), *volumes);
            assert!(directory.join("volume/data/file").exists());
            drop(file);
            assert!(unmount_unused(volumes.clone()).is_empty());
            assert!(!directory.join("volume/data/file").exists());
        });
    }

    #[test]
    fn a_container_that_has_ended_shows_no_volume() {
        run_with_volume(|directory, _| {
            let point = directory.join("served");
            fs::create_dir(&point).unwrap();
            let server = File::options().read(true).write(true).open("/dev/fuse").unwrap();
            let fd = server.as_raw_fd().to_string();
            let options = [("fd", &*fd), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")];
            let served = mount::create_filesystem("fuse", &options, Attributes::empty()).unwrap();
            mount::attach(served.as_fd(), &point).unwrap();
            let volumes = ServedMount::find(&table::read_thread_mounts().unwrap());
            assert!(volumes.iter().any(|volume| volume.point == point), "{volumes:?}");
            let mut container = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let pid = container.id().cast_signed();
            assert_eq!(find_shown(pid, &volumes), volumes);
            container.kill().unwrap();
            let pidfd = farfork_sys::pidfd::open(pid).unwrap();
            assert!(farfork_sys::pidfd::wait_exit(&pidfd, Duration::from_secs(60)).unwrap());
            assert!(find_shown(pid, &volumes).is_empty());
            container.wait().unwrap();
        });
    }

    #[test]
    fn only_the_recorded_volume_is_unmounted() {
        run_with_volume(|directory, volumes| {
            let other = directory.join("other/data");
            mount_tmpfs(&other);
            fs::write(other.join("cover"), "").unwrap();
            fs::rename(directory.join("volume"), directory.join("renamed")).unwrap();
            symlink(directory.join("other"), directory.join("volume")).unwrap();
            assert!(unmount_unused(volumes.clone()).is_empty());
            fs::remove_file(directory.join("volume")).unwrap();
            fs::rename(directory.join("renamed"), directory.join("volume")).unwrap();
            mount_tmpfs(&directory.join("volume/data"));
            fs::write(directory.join("volume/data/cover"), "").unwrap();
            assert!(unmount_unused(volumes.clone()).is_empty());
            for point in ["other/data", "volume/data"] {
                assert!(directory.join(point).join("cover").exists(), "{point}");
            }
        });
    }
}
