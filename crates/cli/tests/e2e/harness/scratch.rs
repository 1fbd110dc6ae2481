//! Temporary files, directories and small disks of one test.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::{NamedTempFile, TempDir};

/// A file with this content, removed when the value is dropped.
pub(crate) fn file(content: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("the temporary directory can be written");
    file.write_all(content.as_bytes()).expect("a small file can be written");
    file
}

/// A directory, removed when the value is dropped.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("the temporary directory can be written")
}

/// A file system with little room. It is removed with the value.
pub(crate) struct Disk {
    directory: TempDir,
}

impl Disk {
    /// In memory, of so many MiB.
    pub(crate) fn of_mib(mib: u64) -> Self {
        let directory = directory();
        let options = std::ffi::CString::new(format!("size={mib}m")).expect("no NUL");
        mount("farfork-test", directory.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str()))
            .expect("root may mount");
        Self { directory }
    }

    /// An XFS in a sparse file, of so many MiB: at least 300.
    pub(crate) fn with_reflinks(mib: u64) -> Self {
        let (directory, image) = (directory(), NamedTempFile::new().expect("the temporary directory can be written"));
        image.as_file().set_len(mib << 20).expect("a sparse file takes no room");
        run_command(Command::new("mkfs.xfs").arg("-q").arg(image.path()));
        // The loop device keeps the file, and is removed with the mount.
        run_command(Command::new("mount").args(["-t", "xfs", "-o", "loop"]).arg(image.path()).arg(directory.path()));
        Self { directory }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Uses up all free space.
    pub(crate) fn fill(&self) {
        let mut file = File::create(self.filler_path()).expect("an empty file has room");
        let outcome = io::copy(&mut io::repeat(0), &mut file);
        assert_eq!(outcome.expect_err("it is full").kind(), io::ErrorKind::StorageFull);
    }

    /// Frees this many of the bytes that `fill` took.
    pub(crate) fn free(&self, bytes: u64) {
        let file = File::options().write(true).open(self.filler_path()).expect("it was filled");
        let length = file.metadata().expect("a file").len();
        file.set_len(length.saturating_sub(bytes)).expect("to be shorter takes no room");
    }

    /// Frees all bytes that `fill` took.
    pub(crate) fn free_all(&self) {
        fs::remove_file(self.filler_path()).expect("it was filled");
    }

    fn filler_path(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.path(), UnmountFlags::DETACH) {
            eprintln!("the file system of a test is still there: {error}");
        }
    }
}

fn run_command(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
