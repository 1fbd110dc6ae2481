//! Users and groups of a container: a user namespace with ids that nothing else on the machine uses.
//!
//! Locks on a file that all nodes of the machine share record which ids are taken, one byte per range. Init has the file
//! open, so the lock ends with init, and ids need not be released.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use farfork_sys::user_namespace::{self, IdRange};

use crate::error::ContainerError;

/// The first id for containers. Distributions assign lower ids (up to 60,000, and from 524,288 on), and so does systemd for
/// its containers (up to 1,879,048,191).
const ID_FIRST: u32 = 0x7000_0000;
/// Number of ids of a container: all 16-bit ids, which include the overflow id 65,534. A machine without a directory
/// service uses no other ids.
const IDS_PER_CONTAINER: u32 = 1 << 16;
/// Number of ranges below the first id that is negative as a signed 32-bit number.
const ID_RANGES: u32 = (0x8000_0000 - ID_FIRST) / IDS_PER_CONTAINER;

/// Ids that only one container uses, as long as a process has the lock open.
#[derive(Debug)]
pub(crate) struct ReservedIds {
    pub(crate) range: IdRange,
    pub(crate) lock: File,
}

impl ReservedIds {
    /// Locks the first free range, starting at range number `hint`. The empty file `locks` is never removed: otherwise two
    /// nodes could lock different files.
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

/// The users of a container whose init is alive.
#[derive(Debug)]
pub(crate) struct ContainerUsers {
    pub(crate) range: IdRange,
    pub(crate) namespace: OwnedFd,
}

impl ContainerUsers {
    /// Sets the id mappings of the user namespace of a container's init.
    pub(crate) fn map_ids(init_pid: i32, numbers: IdRange) -> io::Result<Self> {
        user_namespace::write_id_maps(init_pid, numbers)?;
        Ok(Self { range: numbers, namespace: user_namespace::open(init_pid)? })
    }

    /// The user namespace, which maps the owners of files.
    pub(crate) fn namespace(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Returns the user and group ids on the node that appear in the container as the owner of `file`. Ids without a mapping
    /// stay unchanged.
    pub(crate) fn owner_inside(&self, file: &std::fs::Metadata) -> (u32, u32) {
        let outside = |number: u32| self.range.to_host(number).unwrap_or(number);
        (outside(file.uid()), outside(file.gid()))
    }
}
