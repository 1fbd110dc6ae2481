//! Temporary files, directories and small disks of one test.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::{NamedTempFile, TempDir};

use super::print_error;

/// Makes a file with this content. It is removed when the value is dropped.
pub(crate) fn file(content: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("the temporary directory can be written");
    file.write_all(content.as_bytes()).expect("a small file can be written");
    file
}

/// A directory of a test. Dropping the value removes it, unless the test fails: then programs of the test may still run, and
/// only the state files of their clusters name the network namespaces and control groups. The runner kills the programs
/// first, and then removes the clusters and the directory.
#[derive(Debug)]
pub(crate) struct TestDirectory(TempDir);

impl TestDirectory {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves the directory to the runner.
    pub(crate) fn keep(&mut self) {
        self.0.disable_cleanup(true);
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        if thread::panicking() {
            self.keep();
        }
    }
}

/// Makes a directory.
pub(crate) fn directory() -> TestDirectory {
    TestDirectory(tempfile::tempdir().expect("the temporary directory can be written"))
}

/// A small file system. It is removed when the value is dropped.
pub(crate) struct Disk {
    directory: TestDirectory,
}

impl Disk {
    /// Makes a tmpfs of `mib` MiB.
    pub(crate) fn of_mib(mib: u64) -> Self {
        let directory = directory();
        let options = std::ffi::CString::new(format!("size={mib}m")).expect("no NUL");
        mount("farfork-test", directory.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str()))
            .expect("root may mount");
        Self { directory }
    }

    /// Makes an XFS file system of `mib` MiB in a sparse file. The minimum is 300.
    pub(crate) fn with_reflinks(mib: u64) -> Self {
        let (directory, image) = (directory(), NamedTempFile::new().expect("the temporary directory can be written"));
        image.as_file().set_len(mib << 20).expect("a sparse file needs no space");
        run_command(Command::new("mkfs.xfs").arg("-q").arg(image.path()));
        // The loop device keeps the image file open, and is removed when the file system is unmounted.
        run_command(Command::new("mount").args(["-t", "xfs", "-o", "loop"]).arg(image.path()).arg(directory.path()));
        Self { directory }
    }

    /// The directory at which the file system is mounted.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file that uses all free space.
    pub(crate) fn fill(&self) {
        let mut file = File::create(self.filler_path()).expect("an empty file needs no space");
        let outcome = io::copy(&mut io::repeat(0), &mut file);
        assert_eq!(outcome.expect_err("a write fails at the end").kind(), io::ErrorKind::StorageFull);
    }

    /// Frees this many bytes of the space that `fill` used.
    pub(crate) fn free(&self, bytes: u64) {
        let file = File::options().write(true).open(self.filler_path()).expect("it was filled");
        let length = file.metadata().expect("a file").len();
        file.set_len(length.saturating_sub(bytes)).expect("a file can be shortened");
    }

    /// Frees all space that `fill` used.
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
            print_error(format_args!("the file system of a test is still mounted: {error}"));
        }
    }
}

fn run_command(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
