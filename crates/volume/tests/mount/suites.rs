//! Third-party test suites: fsx and pjdfstest, in pinned versions. They are built once, into a cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::mounted_volume::MountedVolume;

pub(crate) const TESTS: &[(&str, fn())] =
    &[("fsx_finds_no_difference", fsx_finds_no_difference), ("pjdfstest_has_no_failure", pjdfstest_has_no_failure)];

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
    let configuration = volume.local_path().join("fsx.toml");
    fs::write(&configuration, FSX_CONFIGURATION).unwrap();
    for seed in FSX_SEEDS {
        let mut fsx = Command::new(suite_program("fsx", FSX_VERSION));
        fsx.args(["-N", FSX_OPERATIONS, "-S", seed, "-f"]).arg(&configuration).arg(volume.path().join("file"));
        let (is_success, text) = run_in(volume.local_path(), &mut fsx);
        let end: Vec<&str> = text.lines().rev().take(30).collect();
        assert!(is_success, "seed {seed}: {end:#?}");
    }
}

fn pjdfstest_has_no_failure() {
    let volume = MountedVolume::create();
    let configuration = volume.local_path().join("pjdfstest.toml");
    fs::write(&configuration, PJDFSTEST_CONFIGURATION).unwrap();
    let mut suite = Command::new(suite_program("pjdfstest", PJDFSTEST_VERSION));
    suite.arg("-c").arg(&configuration).arg("-p").arg(volume.path());
    let (is_success, text) = run_in(volume.local_path(), &mut suite);
    let failures: Vec<&str> = text.lines().filter(|line| line.ends_with("FAILED")).collect();
    assert!(is_success, "{failures:#?}\n{text}");
    let passed = text.lines().filter(|line| line.ends_with(" ok")).count();
    assert!(passed >= PJDFSTEST_TESTS_MIN, "only {passed} tests passed\n{text}");
}
