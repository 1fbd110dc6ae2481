//! RocksDB: kills db_bench while it writes with fsync(2). The database must be consistent on each node.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use farfork_volume::process::ProcessRole;

use super::run;
use crate::volume_cluster::VolumeCluster;

/// Small tables, so that flushes and compactions run often.
const OPTIONS: &[&str] = &[
    "--sync=1",
    "--threads=2",
    "--value_size=400",
    "--compression_type=none",
    "--write_buffer_size=65536",
    "--target_file_size_base=65536",
    "--max_bytes_for_level_base=262144",
];

/// Number of changes of the table count before a kill, so that flushes and compactions have run.
const TABLE_CHANGES_MIN: u32 = 4;

pub(super) fn is_consistent_after_a_kill() {
    let cluster = VolumeCluster::three_replicas();
    check_kill(&cluster, 0, None);
    check_rest(&cluster, 1);
}

/// The nodes write to the database in turns; processes of the volume are killed, too.
pub(super) fn is_consistent_after_many_kills() {
    let cluster = VolumeCluster::three_replicas();
    let roles = [None, Some(ProcessRole::Client), Some(ProcessRole::Worker), Some(ProcessRole::Offload)];
    for round in 0..12 {
        check_kill(&cluster, round % 3, roles[round % 4]);
    }
    check_rest(&cluster, 2);
}

fn db_bench(database: &Path, benchmarks: &str, number: u32) -> Command {
    let mut command = Command::new("db_bench");
    command.arg(format!("--benchmarks={benchmarks}")).arg(format!("--db={}", database.display()));
    command.arg(format!("--num={number}")).args(OPTIONS).stdin(Stdio::null());
    command
}

/// Counts the complete tables of a database.
fn table_count(database: &Path) -> usize {
    let entries = fs::read_dir(database).into_iter().flatten();
    entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|name| name == "sst")).count()
}

fn check_kill(cluster: &VolumeCluster, writer: usize, role: Option<ProcessRole>) {
    let database = cluster.path(writer).join("database");
    let is_new = !database.exists();
    let benchmark = if is_new { "fillrandom" } else { "overwrite" };
    let mut command = db_bench(&database, benchmark, 10_000_000);
    command.arg(format!("--use_existing_db={}", u8::from(!is_new)));
    let mut program = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_tables(cluster, writer, &database, &mut program);
    if let Some(role) = role {
        cluster.nodes[writer].kill(&[role]);
    }
    program.kill().unwrap();
    program.wait().unwrap();
    for node in [writer, (writer + 1) % 3] {
        check_consistency(&cluster.path(node).join("database"));
    }
}

/// Waits until the program has written so much that a compaction has run.
fn wait_for_tables(cluster: &VolumeCluster, writer: usize, database: &Path, program: &mut Child) {
    let (mut changes, mut last) = (0, table_count(database));
    cluster.nodes[writer].wait_for("the program writes tables", || {
        let ended = program.try_wait().unwrap();
        assert!(ended.is_none(), "the program ended: {ended:?}");
        let count = table_count(database);
        changes += u32::from(count != last);
        last = count;
        changes >= TABLE_CHANGES_MIN
    });
}

fn check_consistency(database: &Path) {
    let report = run(Command::new("ldb").arg(format!("--db={}", database.display())).arg("checkconsistency"));
    assert!(report.contains("OK"), "{report}");
    let directory = format!("--file={}", database.display());
    run(Command::new("sst_dump").arg(directory).args(["--command=verify"]));
}

/// Another node writes to the database. Then all nodes must read the same keys.
fn check_rest(cluster: &VolumeCluster, writer: usize) {
    let database = |node: usize| cluster.path(node).join("database");
    run(db_bench(&database(writer), "overwrite,compact,verifychecksum", 200).arg("--use_existing_db=1"));
    let contents = |node: usize| {
        run(Command::new("ldb").arg(format!("--db={}", database(node).display())).args(["scan", "--hex"]))
    };
    let expected = contents(writer);
    assert!(expected.lines().count() > 100, "{} keys", expected.lines().count());
    for node in 0..3 {
        check_consistency(&database(node));
        assert!(contents(node) == expected, "node {node} reads other keys than node {writer}");
    }
}
