//! The Linux Test Project's tests of file locks and of system calls on files, if `LTP` names the directory of a built copy. They run
//! on one of three nodes, and another node must then see the same files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::model::wait_for_equal_trees;
use super::volume_cluster::VolumeCluster;

/// The tests of the suites that are given.
pub(crate) fn tests() -> Vec<(&'static str, fn())> {
    let given = [("LTP", "ltp_has_no_unexpected_failure", ltp_has_no_unexpected_failure as fn())];
    given
        .into_iter()
        .filter(|(variable, _, _)| std::env::var_os(variable).is_some())
        .map(|(_, name, test)| (name, test))
        .collect()
}

/// Files of `runtest` with the commands of the tests.
const LTP_LISTS: [&str; 3] = ["syscalls", "fs_perms_simple", "fcntl-locktests"];

/// Prefixes of tests in `syscalls` that use files. The others test processes, memory, sockets or the machine.
const LTP_FILE_CALLS: &[&str] = &[
    "access",
    "chdir",
    "chmod",
    "chown",
    "close",
    "copy_file_range",
    "creat",
    "dup",
    "faccessat",
    "fallocate",
    "fchdir",
    "fchmod",
    "fchown",
    "fcntl",
    "fdatasync",
    "fgetxattr",
    "flistxattr",
    "flock",
    "fremovexattr",
    "fsetxattr",
    "fstat",
    "fsync",
    "ftruncate",
    "futimesat",
    "getcwd",
    "getdents",
    "getxattr",
    "lchown",
    "lgetxattr",
    "link",
    "listxattr",
    "llistxattr",
    "llseek",
    "lremovexattr",
    "lseek",
    "lstat",
    "mkdir",
    "mknod",
    "mmap",
    "msync",
    "open",
    "pread",
    "pwrite",
    "read",
    "removexattr",
    "rename",
    "rmdir",
    "sendfile",
    "setxattr",
    "splice",
    "stat",
    "symlink",
    "truncate",
    "umask",
    "unlink",
    "utime",
    "write",
];

/// Tests whose failure is accepted, with the reason.
const LTP_ACCEPTED: &[(&str, &str)] = &[];

/// Longest time of a test, as an argument of timeout(1). LTP itself ends most tests after 30 s.
const LTP_TEST_LIMIT: &str = "600";

/// Exit status of a test (`TPASS`, `TWARN`, `TCONF`). Any other one is a failure, also those of timeout(1).
const LTP_PASSED: i32 = 0;
const LTP_WARNED: i32 = 4;
const LTP_NOT_SUPPORTED: i32 = 32;
/// Fewest tests that must pass: fewer mean that the copy is not complete.
const LTP_TESTS_MIN: usize = 300;

fn ltp_has_no_unexpected_failure() {
    let root = PathBuf::from(std::env::var_os("LTP").expect("a directory"));
    let cluster = VolumeCluster::three_replicas();
    let (mut passed, mut unsupported, mut failures) = (0, Vec::new(), BTreeMap::new());
    for (name, command) in ltp_commands(&root) {
        let directory = cluster.path(0).join("ltp");
        fs::create_dir_all(&directory).unwrap();
        let (status, text) = run_ltp(&root, &directory, &command);
        match status {
            LTP_PASSED | LTP_WARNED => passed += 1,
            LTP_NOT_SUPPORTED => unsupported.push(name),
            _ => _ = failures.insert(name, text),
        }
    }
    println!("LTP: {passed} tests passed, {} are not supported: {}", unsupported.len(), unsupported.join(" "));
    for (name, reason) in LTP_ACCEPTED {
        if failures.remove(*name).is_some() {
            println!("LTP: {name} failed, as expected: {reason}");
        }
    }
    assert!(failures.is_empty(), "LTP: {:?} failed\n{failures:#?}", failures.keys());
    assert!(passed >= LTP_TESTS_MIN, "only {passed} tests of {} passed", root.display());
    wait_for_equal_trees(&cluster);
    cluster.published_tree();
}

/// Names and commands of the tests that use files.
fn ltp_commands(root: &Path) -> Vec<(String, String)> {
    let mut commands = Vec::new();
    for list in LTP_LISTS {
        let path = root.join("runtest").join(list);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let tests = lines.filter_map(|line| line.split_once(char::is_whitespace));
        let uses_files = |name: &str| list != "syscalls" || LTP_FILE_CALLS.iter().any(|call| name.starts_with(call));
        let tests = tests.filter(|(name, _)| uses_files(name));
        commands.extend(tests.map(|(name, command)| (name.to_owned(), command.trim().to_owned())));
    }
    commands
}

/// Runs a test, which makes its files in a directory. Returns its exit status, -1 after a signal, and its output.
fn run_ltp(root: &Path, directory: &Path, command: &str) -> (i32, String) {
    let mut path = OsString::from(root.join("testcases/bin"));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut test = Command::new("timeout");
    test.args(["--kill-after=10", LTP_TEST_LIMIT, "sh", "-c", command]).current_dir(directory);
    test.env("LTPROOT", root).env("PATH", path).env("TMPDIR", directory).env("KCONFIG_SKIP_CHECK", "1");
    let output = test.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().unwrap_or(-1), text)
}
