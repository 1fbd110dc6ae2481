//! Operations that several FUSE requests share.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::thread;

use fuser::{FileAttr, INodeNo, Request};
use rustix::io::Errno;

use super::client::{PlannedOperation, VolumeClient};
use super::conversion::{attributes_of, caller_of, name_of, number_of};
use super::filesystem::VolumeFilesystem;
use crate::record::InodeNumber;
use crate::view::{AttributeChange, Inode, NewInode, XattrMode};

impl VolumeFilesystem {
    /// Answers a lookup or an open(2) when the view has what other clients have logged before. That may need requests of this mount to be
    /// served, so another thread waits.
    pub(super) fn refreshed(&self, answer: impl FnOnce(&VolumeClient) + Send + 'static) {
        if !self.client.may_be_stale() {
            return answer(&self.client);
        }
        let client = Arc::clone(&self.client);
        // Without a thread the request is dropped, which answers EIO.
        let started = thread::Builder::new().name("refresh".to_owned()).spawn(move || {
            client.wait_refreshed();
            answer(&client);
        });
        if let Err(error) = started {
            tracing::error!(%error, "a file is not opened");
        }
    }

    /// Creates an inode and counts the kernel's reference to it.
    pub(super) fn create_inode(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new: &NewInode,
    ) -> Result<FileAttr, Errno> {
        let (caller, name) = (caller_of(request), name_of(name)?);
        let inode = self.client.execute(&[], |namespace| {
            let planned = namespace.plan_create(number_of(parent), &name, new, caller)?;
            Ok(PlannedOperation::new(planned.effects, planned.inode))
        })?;
        self.counted_attributes(inode)
    }

    pub(super) fn counted_attributes(&self, inode: InodeNumber) -> Result<FileAttr, Errno> {
        let mut state = self.client.lock();
        state.namespace.count_lookup(inode);
        Ok(attributes_of(inode, state.namespace.inode(inode)?))
    }

    pub(super) fn attributes(&self, inode: InodeNumber) -> Result<FileAttr, Errno> {
        Ok(attributes_of(inode, self.client.lock().namespace.inode(inode)?))
    }

    pub(super) fn change_attributes(
        &self,
        request: &Request,
        inode: INodeNo,
        change: AttributeChange,
    ) -> Result<(), Errno> {
        let caller = caller_of(request);
        self.client.execute(&[], |namespace| {
            Ok(PlannedOperation::new(namespace.plan_set_attributes(number_of(inode), change, caller)?, ()))
        })
    }

    pub(super) fn with_inode<T>(
        &self,
        inode: INodeNo,
        read: impl FnOnce(&Inode) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        read(self.client.lock().namespace.inode(number_of(inode))?)
    }

    /// Writes, and returns how many bytes.
    pub(super) fn write_data(
        &self,
        request: &Request,
        inode: INodeNo,
        offset: u64,
        data: &[u8],
        keeps_privileges: bool,
    ) -> Result<u32, Errno> {
        let (caller, bytes) = (caller_of(request), data.len() as u32);
        if data.is_empty() {
            return Ok(0);
        }
        self.client.execute(data, |namespace| {
            let planned = namespace.plan_write(number_of(inode), offset, bytes, keeps_privileges, caller)?;
            Ok(PlannedOperation::new(planned, bytes))
        })
    }

    pub(super) fn set_xattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let caller = caller_of(request);
        self.client.execute(&[], |namespace| {
            let planned = namespace.plan_set_xattr(number_of(inode), name.as_bytes(), value, mode, caller)?;
            Ok(PlannedOperation::new(planned, ()))
        })
    }
}
