//! Answers to FUSE requests: a result, or an error.

use std::time::Duration;

use fuser::{FileAttr, FileType, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr};
use rustix::io::Errno;

use super::conversion::error_of;

/// How long the kernel may cache entries and attributes. `KernelCaches` invalidates them when they change.
pub(super) const CACHE_TIME: Duration = Duration::from_secs(3600);
/// Always 0: an inode number is not reused while the kernel knows it.
pub(super) const GENERATION: Generation = Generation(0);

/// The attributes of an inode.
pub(super) struct CachedAttributes {
    pub(super) attributes: FileAttr,
    /// How long the kernel may cache them.
    pub(super) cache_time: Duration,
}

pub(super) fn answer_entry(reply: ReplyEntry, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attributes) => {
            // The kernel sends no request when it follows a symbolic link, or opens a named pipe, a socket or a device.
            // Another node may have replaced the name, so the kernel must look it up at each use.
            let sends_open = matches!(attributes.kind, FileType::RegularFile | FileType::Directory);
            let cache_time = if sends_open { CACHE_TIME } else { Duration::ZERO };
            reply.entry(&cache_time, &attributes, GENERATION);
        }
        Err(error) => reply.error(error_of(error)),
    }
}

pub(super) fn answer_attributes(reply: ReplyAttr, result: Result<CachedAttributes, Errno>) {
    match result {
        Ok(CachedAttributes { attributes, cache_time }) => reply.attr(&cache_time, &attributes),
        Err(error) => reply.error(error_of(error)),
    }
}

pub(super) fn answer_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error_of(error)),
    }
}

/// Answers with a value, or with its length if `size` is 0.
pub(super) fn answer_xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(error_of(Errno::RANGE)),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error_of(error)),
    }
}

pub(super) fn answer_write(reply: ReplyWrite, result: Result<u32, Errno>) {
    match result {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(error_of(error)),
    }
}
