//! The attributes of an inode: kind, owner, permissions, size and timestamps.

use serde::{Deserialize, Serialize};

/// The number of an inode of a volume. A number is not reused while records of its first use may be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The directory at the top of a volume.
    pub const ROOT: Self = Self(1);
    /// Number of low bits, which count the inodes of one client. The bits above are the client's number, so two clients
    /// never choose the same inode number.
    const CLIENT_SHIFT: u32 = 44;

    /// The number before the first one that a client may give to an inode.
    pub const fn before_first_of(client: u16) -> Self {
        Self(if client == 0 { Self::ROOT.0 } else { (client as u64) << Self::CLIENT_SHIFT })
    }

    /// Whether this number is in the range of a client.
    pub const fn belongs_to(self, client: u16) -> bool {
        self.0 >> Self::CLIENT_SHIFT == client as u64
    }
}

/// Time since 1970-01-01 00:00:00 UTC; negative before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// Less than 1,000,000,000.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Whether the nanoseconds are less than a second.
    pub fn is_valid(self) -> bool {
        self.nanoseconds < 1_000_000_000
    }
}

/// The type of a file, as in `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// A file with data.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

/// The attributes of an inode. Link counts are not stored: they follow from the directory entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeAttributes {
    /// Kind of file, which never changes.
    pub kind: FileKind,
    /// Permission bits, with set-user-id, set-group-id and sticky: 12 bits.
    pub mode: u16,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Device number of a device node, 0 otherwise.
    pub device: u32,
    /// Size in bytes of a regular file, 0 otherwise.
    pub size: u64,
    /// `st_atim`.
    pub accessed: Timestamp,
    /// `st_mtim`.
    pub modified: Timestamp,
    /// `st_ctim`.
    pub changed: Timestamp,
}

#[cfg(test)]
impl InodeAttributes {
    /// The attributes of an empty file of root.
    pub(crate) fn of_root(kind: FileKind, mode: u16) -> Self {
        let time = Timestamp::default();
        let (accessed, modified, changed) = (time, time, time);
        Self { kind, mode, user: 0, group: 0, device: 0, size: 0, accessed, modified, changed }
    }
}
