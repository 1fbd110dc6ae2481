//! rsync copies a tree with every kind of file to a volume, and must find no difference on any node.

use std::fs::{self, File, FileTimes};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use super::run;
use crate::volume_cluster::VolumeCluster;

const FILES: usize = 60;
const SPARSE_BYTES: u64 = 32 << 20;
/// Most allocated bytes of the sparse file, which has two blocks of data.
const SPARSE_ALLOCATED_BYTES_MAX: u64 = 1 << 20;

/// Runs rsync, and returns the changes that `--itemize-changes` prints. With `--acls`, rsync finds that the volume does not
/// support ACLs.
fn rsync(source: &Path, target: &Path, options: &[&str]) -> String {
    let mut command = Command::new("rsync");
    command.args(["--archive", "--hard-links", "--acls", "--xattrs", "--sparse", "--itemize-changes", "--delete"]);
    run(command.args(options).arg(source.join("")).arg(target.join("")))
}

/// Copies to node 0, from node 0 to a second directory on node 1, and to node 2 after changes.
pub(super) fn transfers_nothing_again() {
    let cluster = VolumeCluster::three_replicas();
    let source = tempfile::tempdir().unwrap();
    let source = source.path();
    make_tree(source);
    let copy = |node: usize| cluster.path(node).join("copy");
    let second = |node: usize| cluster.path(node).join("second");
    fs::create_dir(copy(0)).unwrap();
    assert!(rsync(source, &copy(0), &[]).lines().count() > FILES);
    for node in 0..3 {
        assert_eq!(rsync(source, &copy(node), &[]), "", "transferred again to node {node}");
        assert_eq!(rsync(source, &copy(node), &["--checksum", "--dry-run"]), "", "on node {node}");
    }
    rsync(&copy(1), &second(1), &[]);
    assert_eq!(rsync(&copy(0), &second(2), &["--checksum"]), "", "from node 0 to node 2");
    change_tree(source);
    assert!(!rsync(source, &copy(2), &["--inplace", "--checksum"]).is_empty());
    for node in 0..3 {
        assert_eq!(rsync(source, &copy(node), &["--checksum"]), "", "after changes, on node {node}");
        let names = [fs::metadata(copy(node).join("one-inode-0")), fs::metadata(copy(node).join("one-inode-2"))];
        let [first, last] = names.map(|metadata| (metadata.as_ref().unwrap().ino(), metadata.unwrap().nlink()));
        assert!(first == last && first.1 == 3, "node {node}: hard links {first:?} and {last:?}");
    }
    cluster.published_tree();
    for node in &cluster.nodes {
        let sparse = fs::metadata(node.volume_path().join("shared/tree/copy/sparse")).unwrap();
        assert_eq!(sparse.len(), SPARSE_BYTES);
        assert!(sparse.blocks() * 512 <= SPARSE_ALLOCATED_BYTES_MAX, "{} blocks", sparse.blocks());
    }
}

fn make_tree(root: &Path) {
    for number in 0..FILES {
        let directory = root.join(format!("directory-{}/inner-{}", number % 7, number % 3));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("file-{number}"));
        fs::write(&path, vec![number as u8; number * number * 30]).unwrap();
        let modified = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + number as u64, 123_456_789);
        File::options().write(true).open(&path).unwrap().set_times(FileTimes::new().set_modified(modified)).unwrap();
        chown(&path, Some(number as u32), Some(1000)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode([0o644, 0o4755, 0o2711, 0][number % 4])).unwrap();
        if number % 5 == 0 {
            setxattr(&path, "user.number", number.to_string().as_bytes(), XattrFlags::empty()).unwrap();
            setxattr(&path, "trusted.bytes", &[0, 255, number as u8], XattrFlags::empty()).unwrap();
        }
    }
    fs::write(root.join("one-inode-0"), b"linked").unwrap();
    fs::hard_link(root.join("one-inode-0"), root.join("directory-1/one-inode-1")).unwrap();
    fs::hard_link(root.join("one-inode-0"), root.join("one-inode-2")).unwrap();
    symlink("directory-1/one-inode-1", root.join("link")).unwrap();
    symlink("nowhere/".repeat(100), root.join("dangling")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&[1; 4096], 1 << 20).unwrap();
    sparse.write_all_at(&[2; 4096], 20 << 20).unwrap();
    sparse.set_len(SPARSE_BYTES).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("device", FileType::CharacterDevice)] {
        mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o640), 0x0103).unwrap();
    }
    let bytes = [&[b'\n', 0xff, b' ', b'\\', b'*'][..], &[b'x'; 250]].concat();
    fs::write(root.join(std::ffi::OsStr::from_bytes(&bytes)), b"a name of 255 bytes").unwrap();
    fs::create_dir(root.join("sticky")).unwrap();
    setxattr(root.join("sticky"), "user.directory", b"", XattrFlags::empty()).unwrap();
    fs::set_permissions(root.join("sticky"), fs::Permissions::from_mode(0o3777)).unwrap();
}

/// Extends, replaces, removes and moves files of a tree.
fn change_tree(root: &Path) {
    let directory = root.join("directory-1/inner-1");
    for entry in fs::read_dir(&directory).unwrap() {
        File::options().append(true).open(entry.unwrap().path()).unwrap().write_all(b"more").unwrap();
    }
    fs::remove_dir_all(root.join("directory-2")).unwrap();
    fs::write(root.join("directory-2"), b"a file instead of a directory").unwrap();
    fs::rename(root.join("directory-3"), root.join("moved")).unwrap();
    fs::remove_file(root.join("fifo")).unwrap();
    fs::create_dir(root.join("fifo")).unwrap();
    setxattr(root.join("fifo"), "user.new", &[7; 2000], XattrFlags::empty()).unwrap();
    let sparse = File::options().write(true).open(root.join("sparse")).unwrap();
    sparse.write_all_at(&[3; 4096], 8 << 20).unwrap();
}
