//! The root of an ended container, kept for the next container. The next container uses the root only if it is
//! unchanged. Building and removing roots is most of a container's cost (`docs/decisions/017-roots.md`).
//!
//! Only the mount namespace is kept. The other namespaces, init and the control group are new for each container.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_sys::mount;
use farfork_sys::mount::table::{self, MountTable};
use farfork_sys::namespace;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, futimens, ioctl_getflags, openat,
    statfs, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{chdir, fchdir};

use super::blueprint::RootBlueprint;
use super::mount_plan::MountStep;
use super::{PRIVATE_DIR, make_private_dir};
use crate::error::ContainerError;

/// STATX_MNT_ID_UNIQUE (Linux 6.8); older kernels ignore it.
const UNIQUE_MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Maximum number of files that are removed to clear a private directory. A directory with more files is replaced.
const PRIVATE_FILES_MAX: usize = 4;

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };

/// The only entry of a devpts file system while no terminal is open.
const PTMX: &str = "ptmx";

//  build -> fingerprint -> a child runs, ends with all processes -> fingerprint -+- same -> dentries dropped -> next
//                                                                               +- changed -> discarded
//
// Every write to this root leaves a trace. The container's layers hold only directories that the builder made, and their
// times and attributes show each change. The free space of the layers' file system shows everything else. Only the kernel
// sets times of change (ctime). All processes of the container have ended. Only a process outside of the container, to which
// a descriptor was sent, could still have a file or directory open. `RootReuseKey` selects the requests whose containers
// such a process may see.

/// A cached root. Dropping it removes the root, unless processes of a container still use it.
#[derive(Debug)]
pub(crate) struct CachedRoot {
    mounts: OwnedFd,
    /// The mount table of `mounts`.
    table: MountTable,
    blueprint: RootBlueprint,
    layers: RootLayers,
    fingerprint: RootFingerprint,
}

/// The parts of a root that do not belong to the node.
#[derive(Debug)]
pub(crate) struct RootLayers {
    /// The directory of all upper layers, which no path of the root leads to.
    pub(super) upper_dir: OwnedFd,
    /// The mount points of overlays.
    pub(super) overlays: Vec<PathBuf>,
    /// Files and directories of the upper layers, relative to `upper_dir`, where no mount covers them; and files of the
    /// root, as absolute paths.
    pub(super) files: Vec<PathBuf>,
}

/// The observed state of a root, before its `/proc` is mounted.
#[derive(Debug, PartialEq, Eq)]
struct RootFingerprint {
    table: Vec<u8>,
    files: Vec<FileFingerprint>,
    /// Free space of the file system of all layers.
    room: FreeSpace,
    /// The private directory.
    private: PrivateDirFingerprint,
}

/// The observed state of the private directory.
type PrivateDirFingerprint = (FileFingerprint, FreeSpace);

/// The observed state of a file. Times are seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileFingerprint {
    kind_and_mode: u16,
    owner: (u32, u32),
    links: u32,
    bytes: u64,
    blocks: u64,
    attributes: u64,
    extended_attributes_bytes: usize,
    /// Device number (major, minor), and mount id.
    device_and_mount: ((u32, u32), u64),
    accessed: (i64, u32),
    modified: (i64, u32),
    changed: (i64, u32),
    created: (i64, u32),
}

/// Free space of a file system: blocks and files.
type FreeSpace = (u64, u64);

impl CachedRoot {
    /// Takes the fingerprint of the root that the calling thread has built in the mount namespace `mounts`. `proc` is the
    /// node's `/proc`.
    pub(crate) fn new(
        mounts: OwnedFd,
        proc: BorrowedFd<'_>,
        blueprint: &RootBlueprint,
        mut own: RootLayers,
    ) -> Result<Self, ContainerError> {
        for terminals in blueprint.steps.iter().filter(|step| matches!(step, MountStep::Terminals { .. })) {
            own.files.extend([terminals.point().to_owned(), terminals.point().join(PTMX)]);
        }
        own.files.sort();
        own.files.dedup();
        let table = MountTable::open(proc).map_err(inspection_failed)?;
        let built = run_in_layers_dir(&mut own, |own| {
            // A missing file cannot appear without a change to its parent directory.
            own.files.retain(|path| path.is_absolute() || path.symlink_metadata().is_ok());
            RootFingerprint::read(own, &table)
        });
        let built = built.map_err(inspection_failed)?;
        Ok(Self { mounts, table, blueprint: blueprint.clone(), layers: own, fingerprint: built })
    }

    /// The version number of the node's mounts that the root shows.
    pub(crate) fn mounts_version(&self) -> u64 {
        self.blueprint.version
    }

    /// Moves the calling thread into this root and its mount namespace, and into new namespaces of the other kinds. Unmounts
    /// `/proc`, checks that the root is unchanged, and empties the private directory.
    ///
    /// # Errors
    /// [`ContainerError::RootChanged`] if the root has changed; other errors if it could not be inspected.
    pub(crate) fn enter(mut self, with_network: bool) -> Result<Self, ContainerError> {
        let entering = |cause| ContainerError::Namespace { operation: "enter a cached root", cause };
        namespace::unshare_with_mounts(self.mounts.as_fd(), with_network).map_err(entering)?;
        // This /proc shows the pid namespace of the ended container.
        mount::detach(Path::new("/proc")).map_err(|cause| root_changed("/proc", cause))?;
        let private = self.check_unchanged()?;
        self.layers.overlays.iter().try_for_each(|point| mount::drop_dentry_cache(point)).map_err(inspection_failed)?;
        self.remount_mqueue()?;
        self.replace_private_dir(private, with_network)?;
        Ok(self)
    }

    /// Checks that the root is unchanged, except for the private directory. Returns the current state of that directory.
    fn check_unchanged(&mut self) -> Result<PrivateDirFingerprint, ContainerError> {
        let now = run_in_layers_dir(&mut self.layers, |own| RootFingerprint::read(own, &self.table));
        let now = now.map_err(|cause| root_changed("its contents", cause))?;
        if now.table != self.fingerprint.table {
            return Err(root_changed("mounts", "they have changed"));
        }
        let files = self.layers.files.iter().zip(now.files.iter().zip(&self.fingerprint.files));
        if let Some((path, _)) = files.into_iter().find(|(_, (now, built))| now != built) {
            return Err(root_changed(path.display(), "it was changed or read"));
        }
        if now.room != self.fingerprint.room {
            return Err(root_changed("its file system", "its free space has changed"));
        }
        self.require_no_terminals()?;
        Ok(now.private)
    }

    fn require_no_terminals(&self) -> Result<(), ContainerError> {
        for step in self.blueprint.steps.iter().filter(|step| matches!(step, MountStep::Terminals { .. })) {
            // Listing the directory must not change its access time.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
            let listed = openat(CWD, step.point(), flags, Mode::empty()).and_then(Dir::new);
            for entry in listed.map_err(|cause| root_changed("terminals", cause))? {
                let entry = entry.map_err(|cause| root_changed("terminals", cause))?;
                if ![".", "..", PTMX].map(str::as_bytes).contains(&entry.file_name().to_bytes()) {
                    return Err(root_changed("terminals", "one is open"));
                }
            }
        }
        Ok(())
    }

    /// Empties the private directory: it may have data for the previous container, such as a payload.
    ///
    /// An unchanged directory stays. A container with its own network cannot have sent a descriptor of the directory to
    /// another process, so removing the files is sufficient. Otherwise a new directory is mounted.
    fn replace_private_dir(&mut self, now: PrivateDirFingerprint, with_network: bool) -> Result<(), ContainerError> {
        if now == self.fingerprint.private || (with_network && self.clear_private_dir().unwrap_or(false)) {
            return Ok(());
        }
        let point = Path::new(PRIVATE_DIR);
        mount::detach(point).map_err(inspection_failed)?;
        make_private_dir(None)?;
        self.fingerprint.private = RootFingerprint::read_private_dir().map_err(inspection_failed)?;
        self.record_replaced_mount(point)
    }

    /// Updates the stored mount table after a mount was replaced. Reading the table again would take as long as the whole
    /// inspection.
    fn record_replaced_mount(&mut self, point: &Path) -> Result<(), ContainerError> {
        let noted = table::with_replaced_mount(&self.fingerprint.table, point).map_err(inspection_failed)?;
        self.fingerprint.table = noted.map_or_else(|| self.table.read_text(), Ok).map_err(inspection_failed)?;
        debug_assert_eq!(self.table.read_text().ok().as_ref(), Some(&self.fingerprint.table), "{}", point.display());
        Ok(())
    }

    /// Removes the files of the private directory. Returns whether the directory then equals its state after the build,
    /// except for its times, which are stored.
    fn clear_private_dir(&mut self) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = Dir::new(openat(CWD, PRIVATE_DIR, flags, Mode::empty())?)?;
        // `.` and `..` count too.
        for _ in 0..PRIVATE_FILES_MAX + 2 {
            let Some(entry) = directory.next().transpose()? else { break };
            let is_itself = [".", ".."].map(str::as_bytes).contains(&entry.file_name().to_bytes());
            if !is_itself && unlinkat(directory.fd()?, entry.file_name(), AtFlags::empty()).is_err() {
                return Ok(false);
            }
        }
        futimens(directory.fd()?, &Timestamps { last_access: NOW, last_modification: NOW })?;
        let now = RootFingerprint::read_private_dir()?;
        let (built, room) = &self.fingerprint.private;
        let is_as_built = now.0.equals_except_times(built) && now.1 == *room && has_no_flags(directory.fd()?)?;
        if is_as_built {
            self.fingerprint.private = now;
        }
        Ok(is_as_built)
    }

    /// Replaces the message queue file systems by those of the thread's new IPC namespace.
    fn remount_mqueue(&mut self) -> Result<(), ContainerError> {
        for step in Arc::clone(&self.blueprint.steps).iter() {
            if let MountStep::MessageQueues { point, attributes } = step {
                mount::detach(point).map_err(inspection_failed)?;
                let queues = mount::create_filesystem("mqueue", &[], *attributes).map_err(inspection_failed)?;
                mount::attach(queues.as_fd(), point).map_err(inspection_failed)?;
                self.record_replaced_mount(point)?;
            }
        }
        Ok(())
    }
}

/// Runs `look` with the directory of the layers as the working directory. Then changes to `/`, so that no process starts in
/// that directory.
fn run_in_layers_dir<T>(own: &mut RootLayers, look: impl FnOnce(&mut RootLayers) -> io::Result<T>) -> io::Result<T> {
    fchdir(&own.upper_dir)?;
    let seen = look(own);
    chdir("/")?;
    seen
}

impl RootFingerprint {
    /// Reads the fingerprint. The working directory must be the directory of the layers.
    fn read(own: &RootLayers, table: &MountTable) -> io::Result<Self> {
        Ok(Self {
            table: table.read_text()?,
            files: own.files.iter().map(|path| FileFingerprint::read(path)).collect::<io::Result<_>>()?,
            // An overlay reports the free space of its upper layer.
            room: read_free_space(Path::new("/"))?,
            private: Self::read_private_dir()?,
        })
    }

    fn read_private_dir() -> io::Result<PrivateDirFingerprint> {
        let path = Path::new(PRIVATE_DIR);
        Ok((FileFingerprint::read(path)?, read_free_space(path)?))
    }
}

fn read_free_space(point: &Path) -> io::Result<FreeSpace> {
    let counts = statfs(point)?;
    Ok((counts.f_bfree, counts.f_ffree))
}

impl FileFingerprint {
    /// Whether the fingerprints are equal, except for the times.
    fn equals_except_times(&self, other: &Self) -> bool {
        let Self { accessed, modified, changed, .. } = *other;
        Self { accessed, modified, changed, ..*self } == *other
    }

    fn read(path: &Path) -> io::Result<Self> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID | UNIQUE_MOUNT_ID;
        let seen = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
        let time = |time: rustix::fs::StatxTimestamp| (time.tv_sec, time.tv_nsec);
        Ok(Self {
            kind_and_mode: seen.stx_mode,
            owner: (seen.stx_uid, seen.stx_gid),
            links: seen.stx_nlink,
            bytes: seen.stx_size,
            blocks: seen.stx_blocks,
            attributes: seen.stx_attributes.bits(),
            extended_attributes_bytes: rustix::fs::llistxattr(path, &mut [0_u8; 0])?,
            device_and_mount: ((seen.stx_dev_major, seen.stx_dev_minor), seen.stx_mnt_id),
            accessed: time(seen.stx_atime),
            modified: time(seen.stx_mtime),
            changed: time(seen.stx_ctime),
            created: time(seen.stx_btime),
        })
    }
}

/// Whether a directory has none of the attributes of chattr(1). statx(2) reports only some of them.
fn has_no_flags(directory: BorrowedFd<'_>) -> io::Result<bool> {
    match ioctl_getflags(directory) {
        // The file system does not support these attributes.
        Err(Errno::NOTTY) => Ok(true),
        flags => Ok(flags?.is_empty()),
    }
}

fn root_changed(what: impl Display, why: impl Display) -> ContainerError {
    ContainerError::RootChanged { path: what.to_string(), why: why.to_string() }
}

fn inspection_failed(cause: io::Error) -> ContainerError {
    ContainerError::Mount { what: "a root for further containers", point: "/".into(), cause }
}
