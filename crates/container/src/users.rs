//! Users and groups of a container's own: a user namespace with ids that no one else on the machine uses.
//!
//! Locks on a file that all nodes of the machine share record which ids are taken, one byte per range. Init holds the
//! file open, and so the lock, for as long as it lives: no id has to be given back.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use farfork_sys::user_namespace::{self, IdRange};

use crate::error::ContainerError;

/// The first number that containers have: those below are given out by distributions (to 60,000 and from 524,288 on) and by systemd
/// for its containers (to 1,879,048,191).
const ID_FIRST: u32 = 0x7000_0000;
/// As many users as a machine without a directory service has, `nobody` included.
const IDS_PER_CONTAINER: u32 = 1 << 16;
/// To where numbers have a sign in some programs.
const ID_RANGES: u32 = (0x8000_0000 - ID_FIRST) / IDS_PER_CONTAINER;

/// Numbers that are a container's alone as long as anybody has the lock open.
#[derive(Debug)]
pub(crate) struct ReservedIds {
    pub(crate) range: IdRange,
    pub(crate) lock: File,
}

impl ReservedIds {
    /// Takes the first that are free, from the range `hint` on. The file `locks` stays, empty: removing it would let two nodes have
    /// different ones.
    pub(crate) fn acquire(locks: &Path, hint: u64) -> Result<Self, ContainerError> {
        let failed = |cause| ContainerError::UserRanges { path: locks.to_owned(), cause };
        let mut options = File::options();
        let lock = options.write(true).create(true).truncate(false).mode(0o600).open(locks).map_err(failed)?;
        for offset in 0..ID_RANGES {
            let range = ((hint + u64::from(offset)) % u64::from(ID_RANGES)) as u32;
            if user_namespace::try_lock_byte(&lock, range).map_err(failed)? {
                return Ok(Self {
                    range: IdRange { first: ID_FIRST + range * IDS_PER_CONTAINER, count: IDS_PER_CONTAINER },
                    lock,
                });
            }
        }
        Err(ContainerError::IdRangesExhausted { ranges: ID_RANGES })
    }
}

/// Users of a container whose first process lives.
#[derive(Debug)]
pub(crate) struct ContainerUsers {
    pub(crate) range: IdRange,
    pub(crate) namespace: OwnedFd,
}

impl ContainerUsers {
    /// Gives the user namespace of a container's first process its numbers.
    pub(crate) fn map_ids(init_pid: i32, numbers: IdRange) -> io::Result<Self> {
        user_namespace::write_id_maps(init_pid, numbers)?;
        Ok(Self { range: numbers, namespace: user_namespace::open(init_pid)? })
    }

    /// To show the owners of files by.
    pub(crate) fn namespace(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Whom a file of the node is to belong to in the container; as on the node where there is no number for that.
    pub(crate) fn owner_inside(&self, file: &std::fs::Metadata) -> (u32, u32) {
        let outside = |number: u32| self.range.to_host(number).unwrap_or(number);
        (outside(file.uid()), outside(file.gid()))
    }
}
