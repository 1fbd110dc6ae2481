//! fio writes blocks with checksums at random offsets, and verifies them on each node.

use std::path::Path;
use std::process::Command;

use super::run;
use crate::volume_cluster::VolumeCluster;

/// Options of fio that differ between runs.
const METHODS: &[&[&str]] = &[
    &["--ioengine=psync", "--fsync=16"],
    &["--ioengine=mmap", "--fsync=32"],
    &["--ioengine=psync", "--bs=2k", "--sync=1"],
    &["--ioengine=libaio", "--direct=1", "--iodepth=16", "--fsync=64"],
    &["--ioengine=pvsync2", "--bs=7168", "--fdatasync=16"],
];

/// Runs only the first two methods.
pub(super) fn verifies_what_it_wrote_on_each_node() {
    verify_on_each_node(&METHODS[..2], "512k", 1);
}

pub(super) fn verifies_large_files_on_each_node() {
    verify_on_each_node(METHODS, "32m", 4);
}

/// Runs each method on one node, and again on another node, where it overwrites the files.
fn verify_on_each_node(methods: &[&[&str]], size: &str, jobs: u32) {
    let cluster = VolumeCluster::three_replicas();
    for (number, method) in methods.iter().enumerate() {
        for (round, writer) in [number % 3, (number + 1) % 3].into_iter().enumerate() {
            let job = FioJob { number, round, size, jobs, method };
            job.run(&cluster.path(writer), &["--end_fsync=1", "--do_verify=1"]);
            for reader in 0..3 {
                job.run(&cluster.path(reader), &["--verify_only"]);
            }
        }
    }
}

/// A job with the same random seed on each node, so that the verifying node knows the expected blocks.
struct FioJob<'a> {
    number: usize,
    round: usize,
    size: &'a str,
    jobs: u32,
    method: &'a [&'a str],
}

impl FioJob<'_> {
    fn run(&self, directory: &Path, options: &[&str]) {
        let Self { number, round, size, jobs, method } = self;
        let mut command = Command::new("fio");
        command.args(["--name=job", "--thread", "--rw=randwrite", "--bs=4k", "--group_reporting"]);
        command.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--verify_dump=0"]);
        command.arg(format!("--randseed={}", 100 * number + round)).arg(format!("--size={size}"));
        command.arg(format!("--numjobs={jobs}")).arg(format!("--filename_format=file-{number}-$jobnum"));
        command.arg(format!("--directory={}", directory.display())).args(*method).args(options);
        let report = run(command.current_dir("/"));
        assert!(report.contains("err= 0"), "round {round} in {}: {report}", directory.display());
    }
}
