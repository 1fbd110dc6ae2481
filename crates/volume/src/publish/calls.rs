//! The system calls that change a shared tree. The error of a failed call names the operation. Tests limit the number of
//! calls with [`CallBudget`], to simulate a crash between any two calls.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FallocateFlags, Gid, Mode, Timestamps, Uid, XattrFlags, chmodat, chownat, fallocate, fchmod, fchown,
    fremovexattr, fsetxattr, ftruncate, futimens, linkat, lremovexattr, lsetxattr, mkdirat, mknodat, renameat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::inode_record::XATTR_NAME;

/// Why changes were not published to the shared tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The shared tree refused a change.
    #[error("cannot {operation} in the shared tree: {source}")]
    Call {
        /// The change that failed, for the message.
        operation: &'static str,
        /// Why it failed.
        source: Errno,
    },
    /// The shared tree and the log do not belong together, or the published mark cannot be read.
    #[error("the shared tree does not match the log: {0}")]
    Mismatch(&'static str),
    /// The budget of a test is used up.
    #[error("crash injected")]
    InjectedCrash,
}

impl PublishError {
    /// Returns a function that adds the operation to the errno of a failed call.
    pub(super) fn call(operation: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Call { operation, source }
    }
}

/// The errno of an error; EIO if no system call returned it.
pub(crate) fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The number of calls that may still be made. Unlimited outside of tests.
#[derive(Debug, Default)]
pub struct CallBudget {
    calls_left: Cell<Option<u64>>,
}

impl CallBudget {
    /// Allows this many calls. All later calls fail.
    pub fn limited(calls: u64) -> Self {
        Self { calls_left: Cell::new(Some(calls)) }
    }

    fn spend(&self) -> Result<(), PublishError> {
        match self.calls_left.get() {
            None => Ok(()),
            Some(0) => Err(PublishError::InjectedCrash),
            Some(left) => {
                self.calls_left.set(Some(left - 1));
                Ok(())
            }
        }
    }

    /// Makes one call. The error `expected` counts as success: the call succeeded before a crash.
    pub(super) fn make(
        &self,
        operation: &'static str,
        expected: Option<Errno>,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), PublishError> {
        self.spend()?;
        match call() {
            Err(source) if Some(source) != expected => Err(PublishError::Call { operation, source }),
            _ => Ok(()),
        }
    }

    pub(super) fn make_directory(&self, parent: impl AsFd, name: &[u8]) -> Result<(), PublishError> {
        self.make("make a directory", Some(Errno::EXIST), || mkdirat(parent, name, Mode::RWXU))
    }

    pub(super) fn make_node(
        &self,
        parent: impl AsFd,
        name: &[u8],
        kind: rustix::fs::FileType,
        device: u32,
    ) -> Result<(), PublishError> {
        let mode = Mode::RUSR | Mode::WUSR;
        self.make("make a file", Some(Errno::EXIST), || mknodat(parent, name, kind, mode, device.into()))
    }

    pub(super) fn make_symlink(&self, target: &[u8], parent: impl AsFd, name: &[u8]) -> Result<(), PublishError> {
        self.make("make a symbolic link", Some(Errno::EXIST), || symlinkat(target, parent, name))
    }

    /// Makes a hard link. Returns whether the new name was free.
    pub(super) fn link(
        &self,
        old_parent: &OwnedFd,
        old_name: &[u8],
        new_parent: &OwnedFd,
        new_name: &[u8],
    ) -> Result<bool, PublishError> {
        self.spend()?;
        match linkat(old_parent, old_name, new_parent, new_name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(source) => Err(PublishError::Call { operation: "link a file", source }),
        }
    }

    pub(super) fn rename(
        &self,
        old_parent: &OwnedFd,
        old_name: &[u8],
        new_parent: &OwnedFd,
        new_name: &[u8],
    ) -> Result<(), PublishError> {
        self.make("rename", None, || renameat(old_parent, old_name, new_parent, new_name))
    }

    pub(super) fn unlink(&self, parent: impl AsFd, name: &[u8]) -> Result<(), PublishError> {
        self.make("unlink a file", Some(Errno::NOENT), || unlinkat(parent, name, AtFlags::empty()))
    }

    pub(super) fn remove_directory(&self, parent: impl AsFd, name: &[u8]) -> Result<(), PublishError> {
        self.make("remove a directory", Some(Errno::NOENT), || unlinkat(parent, name, AtFlags::REMOVEDIR))
    }

    pub(super) fn truncate(&self, file: impl AsFd, bytes: u64) -> Result<(), PublishError> {
        self.make("truncate a file", None, || ftruncate(file, bytes))
    }

    pub(super) fn allocate(
        &self,
        file: impl AsFd,
        mode: FallocateFlags,
        offset: u64,
        bytes: u64,
    ) -> Result<(), PublishError> {
        self.make("allocate space", None, || fallocate(file, mode, offset, bytes))
    }

    pub(super) fn set_owner(&self, parent: impl AsFd, name: &[u8], user: u32, group: u32) -> Result<(), PublishError> {
        let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
        self.make("change an owner", None, || chownat(parent, name, user, group, AtFlags::SYMLINK_NOFOLLOW))
    }

    pub(super) fn set_mode(&self, parent: impl AsFd, name: &[u8], mode: u16) -> Result<(), PublishError> {
        self.make("change a mode", None, || chmodat(parent, name, Mode::from_raw_mode(mode.into()), AtFlags::empty()))
    }

    pub(super) fn set_times(&self, parent: impl AsFd, name: &[u8], times: &Timestamps) -> Result<(), PublishError> {
        self.make("set timestamps", None, || utimensat(parent, name, times, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Sets owner, mode and timestamps of an open directory.
    pub(super) fn set_directory_attributes(
        &self,
        directory: impl AsFd + Copy,
        attributes: &crate::record::InodeAttributes,
        times: &Timestamps,
    ) -> Result<(), PublishError> {
        let (user, group) = (Some(Uid::from_raw(attributes.user)), Some(Gid::from_raw(attributes.group)));
        self.make("change an owner", None, || fchown(directory, user, group))?;
        self.make("change a mode", None, || fchmod(directory, Mode::from_raw_mode(attributes.mode.into())))?;
        self.make("set timestamps", None, || futimens(directory, times))
    }

    pub(super) fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), PublishError> {
        match value {
            Some(value) => self.make("set an extended attribute", None, || {
                unless_unsupported(name, lsetxattr(path, name, value, XattrFlags::empty()))
            }),
            None => self.make("remove an extended attribute", Some(Errno::NODATA), || {
                unless_unsupported(name, lremovexattr(path, name))
            }),
        }
    }

    pub(super) fn set_directory_xattr(
        &self,
        directory: impl AsFd,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), PublishError> {
        match value {
            Some(value) => self.make("set an extended attribute", None, || {
                unless_unsupported(name, fsetxattr(directory, name, value, XattrFlags::empty()))
            }),
            None => self.make("remove an extended attribute", Some(Errno::NODATA), || {
                unless_unsupported(name, fremovexattr(directory, name))
            }),
        }
    }
}

/// Ignores an attribute that the file system or a security module of this node refuses, so that later changes are published.
fn unless_unsupported(name: &[u8], result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(error @ (Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL)) if name != XATTR_NAME => {
            let name = String::from_utf8_lossy(name);
            tracing::warn!(%error, %name, "the shared tree does not keep an extended attribute");
            Ok(())
        }
        result => result,
    }
}
