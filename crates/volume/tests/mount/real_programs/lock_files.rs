//! Programs of several nodes that exclude each other with files: O_EXCL, mkdir(2), link(2), and git, which renames its locks.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::run;
use crate::programs::git;
use crate::test_node::WAIT_LIMIT;
use crate::volume_cluster::VolumeCluster;

/// Takes a lock in a directory, on a node, or fails with `AlreadyExists`.
type TakeLock = fn(&Path, usize) -> io::Result<()>;

/// Ways to take a lock. Removing the file or directory releases the lock.
const LOCK_KINDS: &[(&str, TakeLock)] =
    &[("open", lock_with_open), ("mkdir", lock_with_mkdir), ("link", lock_with_link)];

fn lock_with_open(root: &Path, _node: usize) -> io::Result<()> {
    File::create_new(root.join("open")).map(drop)
}

fn lock_with_mkdir(root: &Path, _node: usize) -> io::Result<()> {
    fs::create_dir(root.join("mkdir"))
}

/// Takes a lock as programs do on NFS: a link count of 2 shows that the lock was taken.
fn lock_with_link(root: &Path, node: usize) -> io::Result<()> {
    let own = root.join(format!("own-{node}"));
    let file = File::create(&own)?;
    let result = fs::hard_link(&own, root.join("link"));
    assert_eq!(file.metadata()?.nlink() == 2, result.is_ok(), "{result:?} on node {node}");
    fs::remove_file(own)?;
    result
}

/// Each node increments a counter under a lock. No increment is lost.
pub(super) fn a_lock_file_excludes_other_nodes() {
    const INCREMENTS: u64 = 10;
    let cluster = VolumeCluster::three_replicas();
    for (kind, lock) in LOCK_KINDS {
        let counter = format!("counter-{kind}");
        fs::write(cluster.path(0).join(&counter), "0").unwrap();
        thread::scope(|scope| {
            for node in 0..3 {
                let (root, counter) = (cluster.path(node), cluster.path(node).join(&counter));
                scope.spawn(move || {
                    for _ in 0..INCREMENTS {
                        take_lock(&root, node, *lock);
                        let value: u64 = fs::read_to_string(&counter).unwrap().parse().unwrap();
                        fs::write(&counter, (value + 1).to_string()).unwrap();
                        let lock = root.join(kind);
                        if *kind == "mkdir" { fs::remove_dir(lock) } else { fs::remove_file(lock) }.unwrap();
                    }
                });
            }
        });
        let found = fs::read_to_string(cluster.path(1).join(&counter)).unwrap();
        assert_eq!(found, (3 * INCREMENTS).to_string(), "{kind}");
    }
}

fn take_lock(root: &Path, node: usize, lock: TakeLock) {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        match lock(root, node) {
            Ok(()) => return,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error} on node {node}"),
        }
        assert!(Instant::now() < deadline, "node {node} does not get the lock");
        thread::sleep(Duration::from_micros(500));
    }
}

/// Each node has a clone in the volume, and pushes commits to its own branch of one repository.
pub(super) fn git_pushes_from_each_node_to_one_repository() {
    const COMMITS: usize = 2;
    let cluster = VolumeCluster::three_replicas();
    let root = |node: usize| cluster.path(node);
    run(git(&root(0)).args(["init", "--quiet", "--bare", "origin"]));
    thread::scope(|scope| {
        for node in 0..3 {
            let root = root(node);
            scope.spawn(move || {
                let (clone, branch) = (root.join(format!("clone-{node}")), format!("branch-{node}"));
                run(git(&root).args(["init", "--quiet", "--initial-branch", &branch]).arg(&clone));
                run(git(&clone).args(["remote", "add", "origin"]).arg(root.join("origin")));
                for commit in 0..COMMITS {
                    let mut file = File::create(clone.join(format!("file-{commit}"))).unwrap();
                    write!(file, "{node} {commit}").unwrap();
                    drop(file);
                    run(git(&clone).args(["add", "."]));
                    run(git(&clone).args(["commit", "--quiet", "--message", "one"]));
                    run(git(&clone).args(["push", "--quiet", "origin", &branch]));
                }
            });
        }
    });
    run(git(&root(1).join("origin")).args(["gc", "--quiet"]));
    for node in [2, 0, 1] {
        let origin = root(node).join("origin");
        run(git(&origin).args(["fsck", "--full", "--strict"]));
        let count = run(git(&origin).args(["rev-list", "--all", "--count"]));
        assert_eq!(count.trim(), (3 * COMMITS).to_string(), "on node {node}");
    }
}
