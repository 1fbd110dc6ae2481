//! tar extracts many small files on one node, and compares them on each node.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::run;
use crate::volume_cluster::VolumeCluster;

const DIRECTORY_FILES: usize = 250;

pub(super) fn small_archive_is_compared_on_each_node() {
    compare_on_each_node(750);
}

pub(super) fn large_archives_are_compared_on_each_node() {
    compare_on_each_node(5_000);
    compare_on_each_node(100_000);
}

fn compare_on_each_node(files: usize) {
    let local = tempfile::tempdir().unwrap();
    let archive = local.path().join("archive.tar");
    make_archive(&local.path().join("tree"), files, &archive);
    let cluster = VolumeCluster::three_replicas();
    let started = Instant::now();
    run(&mut tar(&archive, &cluster.path(0), "--extract"));
    println!("{files} files: extracted in {:.1?}", started.elapsed());
    for node in [1, 2, 0] {
        let started = Instant::now();
        let differences = run(&mut tar(&archive, &cluster.path(node), "--compare"));
        assert_eq!(differences, "", "on node {node}");
        println!("{files} files: compared on node {node} in {:.1?}", started.elapsed());
    }
    fs::remove_dir_all(cluster.path(2).join("directory-0")).unwrap();
    for node in 0..3 {
        assert!(fs::read_dir(cluster.path(node).join("directory-0")).is_err(), "still exists on node {node}");
        let count = fs::read_dir(cluster.path(node).join("directory-1")).unwrap().count();
        assert_eq!(count, DIRECTORY_FILES, "on node {node}");
    }
}

fn make_archive(tree: &Path, files: usize, archive: &Path) {
    for number in 0..files {
        let directory = tree.join(format!("directory-{}", number / DIRECTORY_FILES));
        if number % DIRECTORY_FILES == 0 {
            fs::create_dir_all(&directory).unwrap();
        }
        fs::write(directory.join(format!("file-{number}")), format!("{number}\n").repeat(number % 100)).unwrap();
    }
    run(tar(archive, tree, "--create").args(["--sort=name", "."]));
}

fn tar(archive: &Path, directory: &Path, mode: &str) -> Command {
    let mut command = Command::new("tar");
    command.arg(mode).arg("--file").arg(archive).arg("--directory").arg(directory);
    command
}
