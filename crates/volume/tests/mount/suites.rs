//! Third-party test suites: fsx and pjdfstest, in pinned versions. They are built once, into a cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

use super::model::wait_for_equal_trees;
use super::mounted_volume::MountedVolume;
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("fsx_finds_no_difference", fsx_finds_no_difference),
    ("fsx_finds_no_difference_on_two_nodes", || run_fsx_on_two_nodes("300")),
    ("pjdfstest_has_no_failure", pjdfstest_has_no_failure),
];

pub(crate) const LONG_TESTS: &[(&str, fn())] = &[
    ("long_fsx_finds_no_difference_on_two_nodes", || run_fsx_on_two_nodes("20000")),
    ("pjdfstest_has_no_failure_on_two_nodes", pjdfstest_has_no_failure_on_two_nodes),
];

const FSX_VERSION: &str = "0.3.2";
const PJDFSTEST_VERSION: &str = "0.2.2";
const FSX_OPERATIONS: &str = "8000";
const FSX_SEEDS: [&str; 2] = ["1", "2"];

/// Configuration of fsx: mapped access, sparse files, punched holes and fsync(2), in addition to reads and writes.
const FSX_CONFIGURATION: &str = "\
flen = 2097152
[weights]
truncate = 1.0
fsync = 1.0
fdatasync = 1.0
punch_hole = 1.0
posix_fallocate = 1.0
mapread = 5.0
mapwrite = 5.0
read = 5.0
write = 5.0
close_open = 1.0
sendfile = 1.0
copy_file_range = 1.0
";

const PJDFSTEST_CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Fewest tests of pjdfstest that must pass: fewer mean that the configuration skips too many. No failure is accepted.
const PJDFSTEST_TESTS_MIN: usize = 380;

/// Returns the program of a crate. Builds it if it is not in the cache.
fn suite_program(name: &str, version: &str) -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cache = std::env::var_os("FARFORK_CACHE").map_or(home.join(".cache/farfork"), PathBuf::from);
    let folder = cache.join(format!("{name}-{version}"));
    let program = folder.join("bin").join(name);
    if !program.exists() {
        let arguments = ["install", name, "--locked", "--debug", "--version", version, "--root"];
        let status =
            Command::new("cargo").args(arguments).arg(&folder).env_remove("CARGO_TARGET_DIR").status().unwrap();
        assert!(status.success(), "{name} cannot be built: {status}");
    }
    program
}

fn run_in(directory: &Path, command: &mut Command) -> (bool, String) {
    let output = command.current_dir(directory).stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn fsx_finds_no_difference() {
    let volume = MountedVolume::create();
    for seed in FSX_SEEDS {
        run_fsx(volume.local_path(), &volume.path().join("file"), FSX_OPERATIONS, seed);
    }
}

/// Runs fsx, which compares a file with its own copy in memory after each operation.
fn run_fsx(local: &Path, file: &Path, operations: &str, seed: &str) {
    let configuration = local.join(format!("fsx-{seed}.toml"));
    fs::write(&configuration, FSX_CONFIGURATION).unwrap();
    let mut fsx = Command::new(suite_program("fsx", FSX_VERSION));
    fsx.args(["-N", operations, "-S", seed, "-f"]).arg(&configuration).arg(file);
    let (is_success, text) = run_in(local, &mut fsx);
    let end: Vec<&str> = text.lines().rev().take(30).collect();
    assert!(is_success, "seed {seed}: {end:#?}");
}

/// Runs fsx on two of three nodes at the same time, each with its own file. Both files must be the same on each node.
fn run_fsx_on_two_nodes(operations: &str) {
    let cluster = VolumeCluster::three_replicas();
    let local = TempDir::new().unwrap();
    thread::scope(|scope| {
        for (node, seed) in FSX_SEEDS.into_iter().enumerate() {
            let (local, file) = (local.path(), cluster.path(node).join(format!("file-{node}")));
            scope.spawn(move || run_fsx(local, &file, operations, seed));
        }
    });
    assert!(wait_for_equal_trees(&cluster).len() > FSX_SEEDS.len(), "the root, and each file");
    cluster.published_tree();
}

fn pjdfstest_has_no_failure() {
    let volume = MountedVolume::create();
    run_pjdfstest(volume.local_path(), &volume.path());
}

/// Runs pjdfstest on two of three nodes at the same time, each in its own directory.
fn pjdfstest_has_no_failure_on_two_nodes() {
    let cluster = VolumeCluster::three_replicas();
    let local = TempDir::new().unwrap();
    thread::scope(|scope| {
        for node in 0..2 {
            let (local, directory) = (local.path(), cluster.path(node).join(format!("node-{node}")));
            fs::create_dir(&directory).unwrap();
            scope.spawn(move || run_pjdfstest(local, &directory));
        }
    });
    wait_for_equal_trees(&cluster);
    cluster.published_tree();
}

fn run_pjdfstest(local: &Path, directory: &Path) {
    let configuration = local.join(directory.file_name().unwrap()).with_extension("toml");
    fs::write(&configuration, PJDFSTEST_CONFIGURATION).unwrap();
    let mut suite = Command::new(suite_program("pjdfstest", PJDFSTEST_VERSION));
    suite.arg("-c").arg(&configuration).arg("-p").arg(directory);
    let (is_success, text) = run_in(local, &mut suite);
    let failures: Vec<&str> = text.lines().filter(|line| line.ends_with("FAILED")).collect();
    assert!(is_success, "{failures:#?}\n{text}");
    let passed = text.lines().filter(|line| line.ends_with(" ok")).count();
    assert!(passed >= PJDFSTEST_TESTS_MIN, "only {passed} tests passed\n{text}");
}
