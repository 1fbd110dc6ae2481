//! Third-party programs: git, and SQLite that is killed in a transaction.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_volume::process::ProcessRole;

use super::mounted_volume::MountedVolume;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("git_clones_commits_collects_and_checks", git_clones_commits_collects_and_checks),
    ("sqlite_keeps_committed_transactions", sqlite_keeps_committed_transactions),
    ("sqlite_survives_a_killed_client", sqlite_survives_a_killed_client),
];

const SOURCE_FILES: usize = 300;

/// Runs a program, which must succeed, and returns its standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Returns a git command that ignores the configuration of the user who runs the test.
pub(crate) fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).env("HOME", directory).env("GIT_CONFIG_NOSYSTEM", "1");
    for (name, value) in
        [("AUTHOR_NAME", "a"), ("AUTHOR_EMAIL", "a@b"), ("COMMITTER_NAME", "a"), ("COMMITTER_EMAIL", "a@b")]
    {
        command.env(format!("GIT_{name}"), value);
    }
    command
}

fn git_clones_commits_collects_and_checks() {
    let mut volume = MountedVolume::create();
    let origin = volume.path().join("origin");
    fs::create_dir(&origin).unwrap();
    run(git(&origin).args(["init", "--quiet", "--initial-branch", "main"]));
    for number in 0..SOURCE_FILES {
        let directory = origin.join(format!("directory-{}", number % 10));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("file-{number}")), format!("{number}\n").repeat(number)).unwrap();
    }
    run(git(&origin).args(["add", "."]));
    run(git(&origin).args(["commit", "--quiet", "--message", "first"]));
    run(git(&volume.path()).args(["clone", "--quiet", "--no-hardlinks", "origin", "clone"]));
    let clone = volume.path().join("clone");
    for round in 0..5 {
        fs::write(clone.join("directory-0/file-0"), format!("round {round}")).unwrap();
        run(git(&clone).args(["commit", "--quiet", "--all", "--message", "round"]));
    }
    run(git(&clone).args(["gc", "--quiet"]));
    volume.kill(&[ProcessRole::Client]);
    run(git(&clone).args(["fsck", "--full", "--strict"]));
    assert_eq!(run(git(&clone).args(["status", "--porcelain"])), "");
    assert_eq!(run(git(&clone).args(["rev-list", "--count", "HEAD"])).trim(), "6");
    volume.unmount();
    volume.mount();
    run(git(&clone).args(["fsck", "--full", "--strict"]));
    run(git(&clone).args(["switch", "--quiet", "--create", "branch", "HEAD~3"]));
    assert_eq!(fs::read_to_string(clone.join("directory-0/file-0")).unwrap(), "round 1");
}

fn query(database: &Path, statement: &str) -> String {
    run(Command::new("sqlite3").args(["-cmd", ".timeout 60000"]).arg(database).arg(statement)).trim().to_owned()
}

/// Starts a process that inserts rows forever, and prints the number of rows after each commit.
fn start_inserting(database: &Path, batch: &str) -> std::process::Child {
    let mut shell = Command::new("sqlite3")
        .args(["-cmd", ".timeout 60000"])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = shell.stdin.take().unwrap();
    let batch = batch.to_owned();
    thread::spawn(move || {
        // Ends when the program is killed, because write(2) fails.
        while input.write_all(batch.as_bytes()).is_ok() {}
    });
    shell
}

/// The least number of rows that are committed before a kill.
const ROWS_MIN: u64 = 100;
const INSERT_BATCH: &str = "BEGIN; INSERT INTO t(x) VALUES (1); INSERT INTO t(x) VALUES (2); COMMIT; \
    SELECT count(*) FROM t;\n";

fn create_database(database: &Path) {
    let tables = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(id INTEGER PRIMARY KEY, x INTEGER);";
    assert_eq!(query(database, tables), "wal");
}

/// Kills the program or its volume with `kill`, and compares the database with the numbers that the program printed.
fn check_transactions(database: &Path, kill: impl FnOnce(&mut std::process::Child)) {
    let count = || query(database, "SELECT count(*) FROM t").parse::<u64>().unwrap();
    let mut shell = start_inserting(database, INSERT_BATCH);
    let (before, deadline) = (count(), Instant::now() + Duration::from_secs(60));
    while count() < before + ROWS_MIN {
        assert!(Instant::now() < deadline, "the program does not insert rows");
    }
    let seen = count();
    kill(&mut shell);
    let _ = shell.kill();
    let output = shell.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let printed: u64 = text.lines().filter_map(|line| line.parse().ok()).max().unwrap_or(0);
    assert_eq!(query(database, "PRAGMA integrity_check"), "ok");
    let found = count();
    assert!(found >= printed.max(seen), "{printed} rows were reported, {seen} read, {found} are there");
    assert_eq!(found % 2, 0, "a transaction has two rows");
}

fn sqlite_keeps_committed_transactions() {
    let volume = MountedVolume::create();
    let database = volume.path().join("database");
    create_database(&database);
    for _ in 0..3 {
        check_transactions(&database, |shell| shell.kill().unwrap());
    }
}

fn sqlite_survives_a_killed_client() {
    let volume = MountedVolume::create_with(super::mounted_volume::LOG_BYTES, Durability::Disk);
    let database = volume.path().join("database");
    create_database(&database);
    check_transactions(&database, |_| volume.kill(&[ProcessRole::Client]));
}
