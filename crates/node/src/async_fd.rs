//! Watches kernel descriptors for which the asynchronous runtime has no type, such as pidfd and inotify.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The owner of a descriptor, which keeps it open until it is dropped.
#[derive(Debug)]
pub(crate) struct FdOwner<T>(pub(crate) T);

impl<T: AsFd> AsRawFd for FdOwner<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches a descriptor for becoming readable and writable. Must be called within the runtime.
///
/// # Errors
/// As epoll_ctl(2).
#[expect(deprecated, reason = "its successor is unsafe for owners whose descriptor changes or closes; ours do neither")]
pub(crate) fn watch_read_write<T: AsFd>(owner: T) -> io::Result<AsyncFd<FdOwner<T>>> {
    AsyncFd::with_interest(FdOwner(owner), Interest::READABLE | Interest::WRITABLE)
}

/// Watches a descriptor for becoming readable. Must be called within the runtime.
///
/// # Errors
/// As epoll_ctl(2).
#[expect(deprecated, reason = "its successor is unsafe for owners whose descriptor changes or closes; ours do neither")]
pub(crate) fn watch_readable<T: AsFd>(owner: T) -> io::Result<AsyncFd<FdOwner<T>>> {
    AsyncFd::with_interest(FdOwner(owner), Interest::READABLE)
}
