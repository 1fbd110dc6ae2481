//! Reads a shared tree into the namespace of a client. All records of the client's log must be published.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Stat, Timespec, Timestamps, lgetxattr, llistxattr, readlinkat, statat, utimensat,
};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use super::directory_walk::{DirectoryWalk, open_directory};
use super::inode_record::{InodeRecord, XATTR_NAME};
use super::layout::SharedTree;
use crate::record::{EntryName, FileKind, InodeAttributes, InodeNumber, Timestamp, XATTR_BYTES_MAX};
use crate::view::{Inode, InodeContent, LoadedInode, VolumeNamespace};

/// Size of the buffer for the names of all extended attributes of an inode. The attributes of the volume and of security
/// modules are included.
const NAME_LIST_BYTES: usize = 64 << 10;

/// Reads all inodes, for a client that has used numbers up to `inode_max`.
///
/// # Errors
/// As the system calls; `InvalidData` for a file without an inode number, such as one that another program has copied into
/// the tree.
pub fn load_namespace(shared: &SharedTree, client: u16, inode_max: u64) -> io::Result<VolumeNamespace> {
    let (_, root) = load_inode(&shared.tree, c".".to_bytes())?;
    let mut namespace = VolumeNamespace::new(root, client, inode_max);
    let mut walk = DirectoryWalk::start(InodeNumber::ROOT, open_directory(&shared.tree, b".")?);
    while let Some(directory) = walk.next()? {
        for entry in Dir::read_from(&directory.file)? {
            let Some(name) = EntryName::new(entry?.file_name().to_bytes()) else { continue };
            let (number, inode) = load_inode(&directory.file, name.as_bytes())?;
            if inode.is_directory() {
                walk.add(&directory, name.clone(), number);
            }
            namespace.load(directory.inode, name, number, inode);
        }
    }
    Ok(namespace)
}

pub(super) fn load_inode(directory: &OwnedFd, name: &[u8]) -> io::Result<(InodeNumber, LoadedInode)> {
    let state = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    let mut value = [0; 64];
    let length = lgetxattr(path.as_slice(), XATTR_NAME, &mut value[..]);
    let record = length.ok().and_then(|length| InodeRecord::decode(&value[..length]));
    let Some(record) = record else {
        let text = format!("\"{}\" in the shared tree has no inode number", name.escape_ascii());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    };
    let mut inode = Inode::new(attributes_of(&state, record.changed)?);
    if let InodeContent::Symlink(target) = &mut inode.content {
        *target = readlinkat(directory, name, Vec::new())?.into_bytes();
        restore_access_time(directory, name, &state)?;
    }
    inode.xattrs = load_xattrs(&path)?;
    Ok((record.inode, inode))
}

/// Restores the access time that readlink(2) has changed. Files and directories are opened with O_NOATIME, which does not
/// exist for symbolic links.
fn restore_access_time(directory: &OwnedFd, name: &[u8], state: &Stat) -> io::Result<()> {
    let timespec = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
    let times = Timestamps {
        last_access: timespec(state.st_atime, state.st_atime_nsec),
        last_modification: timespec(state.st_mtime, state.st_mtime_nsec),
    };
    Ok(utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn attributes_of(state: &Stat, changed: Timestamp) -> io::Result<InodeAttributes> {
    let kind = match FileType::from_raw_mode(state.st_mode) {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return Err(io::ErrorKind::InvalidData.into()),
    };
    let timestamp = |seconds: i64, nanoseconds: u64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
    Ok(InodeAttributes {
        kind,
        mode: (state.st_mode & 0o7777) as u16,
        user: state.st_uid,
        group: state.st_gid,
        device: state.st_rdev as u32,
        size: if kind == FileKind::Regular { state.st_size as u64 } else { 0 },
        accessed: timestamp(state.st_atime, state.st_atime_nsec),
        modified: timestamp(state.st_mtime, state.st_mtime_nsec),
        changed,
    })
}

/// Reads all extended attributes, except the volume's own attribute and the SELinux label, which belongs to the host.
fn load_xattrs(path: &[u8]) -> io::Result<std::collections::BTreeMap<ByteBuf, ByteBuf>> {
    let mut names = vec![0; NAME_LIST_BYTES];
    let length = match llistxattr(path, names.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut xattrs = std::collections::BTreeMap::new();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    for name in names.filter(|name| *name != XATTR_NAME && *name != b"security.selinux") {
        let mut value = vec![0; XATTR_BYTES_MAX];
        let length = lgetxattr(path, name, value.as_mut_slice())?;
        value.truncate(length);
        xattrs.insert(ByteBuf::from(name), ByteBuf::from(value));
    }
    Ok(xattrs)
}
