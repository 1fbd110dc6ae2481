//! A child finds the contents that its parent's open and mapped files had at prepare. Otherwise the fork is refused,
//! and the message names the file.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, programs, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_replaced_file_keeps_its_contents", replaced),
    Test::shared("a_removed_file_keeps_its_contents", removed),
    Test::shared("a_fork_is_refused_after_a_change_in_place", changed),
    Test::shared("a_fork_is_refused_after_a_replaced_file_was_changed", changed_after_replacement),
    Test::shared("a_file_replaced_right_after_prepare_keeps_its_contents", replaced_at_once),
    Test::shared("a_fork_is_refused_after_a_change_right_after_prepare", changed_at_once),
    Test::shared("a_fork_is_refused_after_a_replaced_private_mapping_was_changed", replaced_mapping_changed),
    Test::shared("a_sealed_seed_keeps_the_contents_of_replaced_files", sealed),
    Test::shared("snapshot_files_keeps_the_contents_of_changed_files", copied),
    Test::shared("a_fork_is_refused_while_a_database_is_written", database),
    Test::shared("an_appended_file_keeps_its_length", added_to),
    Test::shared("new_attributes_or_equal_bytes_are_not_a_change", touched),
    Test::shared("a_mapped_numpy_array_keeps_its_contents", mapped_array),
    Test::shared("a_replaced_executable_keeps_its_contents", installed_anew),
    Test::shared("a_shared_path_has_its_current_contents", shared_path),
];

/// The names of the files of `kept_files.c`, one for each kind of access.
const KINDS: [&str; 8] = ["read", "both", "shared", "private", "copied", "written", "log", "plain_log"];

/// The names of the files that the parent can write to. Farfork cannot prove that these files have not changed since
/// prepare.
const UNPROVED_KINDS: [&str; 4] = ["both", "log", "plain_log", "written"];

/// Number of kinds of files that a child reads: the first ones of `KINDS`.
const READ_KINDS: usize = 6;

/// Number of rounds in which a file is changed right after prepare has answered.
const AT_ONCE_ROUNDS: usize = 12;

/// The payload of a child that must find the changed contents.
const TAKES_CHANGES: u64 = 900;

fn parent(directory: &Path, kind: Option<&str>) -> Parent {
    let directory = directory.to_string_lossy();
    let arguments: Vec<&str> = std::iter::once(&*directory).chain(kind).collect();
    Parent::start(Program::Situation("kept_files"), &arguments)
}

/// Checks children on the owner's node and on another node.
fn check_everywhere(cluster: &Cluster, seed: &Seed, parent: &Parent) {
    for (number, node) in [(31, 0), (32, 1), (33, 0)] {
        seed.fork_and_check(parent, number, &["--to", cluster.name(node)]);
    }
}

fn require_refused(cluster: &Cluster, seed: &Seed, path: &Path) {
    for node in [0, 1] {
        let refused = cluster.first().run_failing(&["fork", seed.id(), "--to", cluster.name(node)]);
        refused.require_mentions(&[&path.to_string_lossy(), "changed", "--changed-files allow"]);
    }
}

fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).and_then(|()| fs::rename(new, path)).expect("a directory of ours");
}

fn replaced(cluster: &Cluster) {
    let directory = scratch::directory();
    let mut parent = parent(directory.path(), None);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 30, &["--to", cluster.name(0)]);
    let unproved = UNPROVED_KINDS.map(|kind| directory.path().join(kind));
    assert_eq!(cluster.first().json(&["inspect", seed.id()])["unproved_files"], serde_json::json!(unproved));
    KINDS.iter().for_each(|kind| replace(&directory.path().join(kind), b"another"));
    check_everywhere(cluster, &seed, &parent);
    for kind in KINDS {
        assert_eq!(
            fs::read(directory.path().join(kind)).expect("it is there"),
            b"another",
            "a child changed the node's file"
        );
    }
    parent.require_unharmed();
}

/// Replaces a file by one of the same length and modification time, right after prepare. Prepare answers before all
/// files are read.
fn replaced_at_once(cluster: &Cluster) {
    for kind in ["shared", "private"].into_iter().cycle().take(AT_ONCE_ROUNDS) {
        let directory = scratch::directory();
        let (mut parent, path) = (parent(directory.path(), Some(kind)), directory.path().join(kind));
        let (before, new) = (fs::metadata(&path).expect("it is there"), path.with_extension("new"));
        let bytes = vec![1; before.len() as usize];
        fs::write(&new, bytes).expect("a directory of ours");
        let times = fs::FileTimes::new().set_modified(before.modified().expect("a time"));
        File::options().write(true).open(&new).and_then(|file| file.set_times(times)).expect("a file of ours");
        let seed = Seed::prepare(cluster.first(), &parent);
        fs::rename(&new, &path).expect("a directory of ours");
        seed.fork_and_check(&parent, 31, &["--to", cluster.name(0)]);
        seed.fork_and_check(&parent, 32, &["--to", cluster.name(1)]);
        parent.require_unharmed();
    }
}

fn changed_at_once(cluster: &Cluster) {
    for kind in ["shared", "private", "copied"].into_iter().cycle().take(AT_ONCE_ROUNDS) {
        let directory = scratch::directory();
        let (parent, path) = (parent(directory.path(), Some(kind)), directory.path().join(kind));
        let file = File::options().write(true).open(&path).expect("it is there");
        let seed = Seed::prepare(cluster.first(), &parent);
        file.write_all_at(&[1; 8], 512).expect("it can be written");
        require_refused(cluster, &seed, &path);
    }
}

/// Pages that were not written through a private mapping are those of the file at prepare, whatever file is at the path
/// now.
fn replaced_mapping_changed(cluster: &Cluster) {
    let directory = scratch::directory();
    let (parent, path) = (parent(directory.path(), Some("copied")), directory.path().join("copied"));
    let file = File::options().write(true).open(&path).expect("it is there");
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.template_pid();
    replace(&path, &fs::read(&path).expect("it is there"));
    seed.fork_and_check(&parent, 31, &["--to", cluster.name(0)]);
    file.write_all_at(&[1; 8], 8192).expect("it can be written");
    for node in [0, 1] {
        let refused = cluster.first().run_failing(&["fork", seed.id(), "--to", cluster.name(node)]);
        refused.require_mentions(&[&path.to_string_lossy(), "changed"]);
    }
}

fn removed(cluster: &Cluster) {
    let directory = scratch::directory();
    let mut parent = parent(directory.path(), None);
    let seed = Seed::prepare(cluster.first(), &parent);
    KINDS.iter().for_each(|kind| fs::remove_file(directory.path().join(kind)).expect("it was there"));
    check_everywhere(cluster, &seed, &parent);
    parent.require_unharmed();
    let said = cluster.first().json(&["inspect", seed.id()]);
    assert!(said["held_files"].as_u64().is_some_and(|files| files >= 6), "{said}");
    assert!(said["held_file_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{said}");
}

fn changed(cluster: &Cluster) {
    for kind in &KINDS[..READ_KINDS] {
        let directory = scratch::directory();
        let mut parent = parent(directory.path(), Some(kind));
        let (seed, path) = (Seed::prepare(cluster.first(), &parent), directory.path().join(kind));
        let mut bytes = fs::read(&path).expect("it is there");
        bytes[512..520].fill(1);
        fs::write(&path, &bytes).expect("it is there");
        require_refused(cluster, &seed, &path);
        File::options().write(true).open(&path).and_then(|file| file.set_len(100)).expect("it is there");
        require_refused(cluster, &seed, &path);
        parent.require_unharmed();
    }
    let directory = scratch::directory();
    let (parent, path) = (parent(directory.path(), Some("read")), directory.path().join("read"));
    let seed = Seed::prepare(cluster.first(), &parent);
    // The words that the program expects after the change: those of a file with index 0.
    let words = (7..7 + fs::metadata(&path).expect("it is there").len() / 8).flat_map(|at| word_of(at).to_ne_bytes());
    fs::write(&path, words.collect::<Vec<u8>>()).expect("it is there");
    require_refused(cluster, &seed, &path);
    for node in [0, 1] {
        let options = ["--changed-files", "allow", "--to", cluster.name(node)];
        seed.fork_and_check(&parent, TAKES_CHANGES, &options);
    }
    // The changed file has no path any more, so its current content is not available.
    fs::remove_file(&path).expect("it is there");
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--changed-files", "allow"]);
    refused.require_mentions(&[&path.to_string_lossy(), "changed in place", "prepare its parent again"]);
    assert!(!refused.message.contains("fork it with --changed-files"), "{}", refused.message);
}

/// SplitMix64, like `word_of` in the programs.
fn word_of(index: u64) -> u64 {
    let mut z = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Replaces the file. Then a process that still has the old file open changes the old file.
fn changed_after_replacement(cluster: &Cluster) {
    for kind in &KINDS[..READ_KINDS] {
        let directory = scratch::directory();
        let parent = parent(directory.path(), Some(kind));
        let (seed, path) = (Seed::prepare(cluster.first(), &parent), directory.path().join(kind));
        let mut old = File::options().write(true).open(&path).expect("it is there");
        replace(&path, b"another");
        old.write_all(b"changed").expect("a file of ours");
        require_refused(cluster, &seed, &path);
    }
}

/// The image includes the files, so replacing them does not affect children.
fn sealed(cluster: &Cluster) {
    let directory = scratch::directory();
    let parent = parent(directory.path(), None);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--sealed", "--wait"]);
    KINDS.iter().for_each(|kind| replace(&directory.path().join(kind), b"another"));
    check_everywhere(cluster, &seed, &parent);
}

/// With `--snapshot-files`, prepare copies the files that the parent can read or has mapped shared, while it is
/// stopped.
fn copied(cluster: &Cluster) {
    for kind in ["read", "both", "shared", "written"] {
        let directory = scratch::directory();
        let mut parent = parent(directory.path(), Some(kind));
        let seed = Seed::prepare_with(cluster.first(), &parent, &["--snapshot-files"]);
        let path = directory.path().join(kind);
        fs::write(&path, b"changed in place").expect("it is there");
        check_everywhere(cluster, &seed, &parent);
        if ["read", "both"].contains(&kind) {
            parent.require_unharmed();
        }
    }
}

/// The parent continues to write to its database.
fn database(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("database");
    let program = programs::sources().join("situations/database.py");
    let parent = Parent::start_command(Command::new(programs::python()).arg(program).arg(&path));
    let seed = Seed::prepare(cluster.first(), &parent);
    let modified = || fs::metadata(&path).and_then(|found| found.modified()).expect("it is there");
    let then = modified();
    wait::wait_until("the parent writes", Duration::from_secs(60), || (modified() != then).then_some(()));
    require_refused(cluster, &seed, &path);
}

fn added_to(cluster: &Cluster) {
    for kind in ["log", "plain_log"] {
        let directory = scratch::directory();
        let mut parent = parent(directory.path(), Some(kind));
        let (seed, path) = (Seed::prepare(cluster.first(), &parent), directory.path().join(kind));
        let bytes = fs::metadata(&path).expect("it is there").len();
        let add =
            || File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"the parent's line\n"));
        add().expect("it is there");
        check_everywhere(cluster, &seed, &parent);
        add().expect("it is there");
        check_everywhere(cluster, &seed, &parent);
        assert_eq!(fs::metadata(&path).expect("it is there").len(), bytes + 36, "a child wrote to the node's file");
        parent.require_unharmed();
    }
}

/// A new mode, a new name, or writing the same bytes again does not count as a change of contents.
fn touched(cluster: &Cluster) {
    let directory = scratch::directory();
    let parent = parent(directory.path(), None);
    let seed = Seed::prepare(cluster.first(), &parent);
    // Waits until the seed is complete: file digests are computed after the parent has resumed.
    seed.template_pid();
    for kind in KINDS {
        let path = directory.path().join(kind);
        fs::hard_link(&path, path.with_extension("link")).expect("a directory of ours");
        // A truncation discards the pages of a private mapping.
        if kind != "copied" {
            fs::read(&path).and_then(|bytes| fs::write(&path, bytes)).expect("it is there");
        }
    }
    check_everywhere(cluster, &seed, &parent);
}

fn mapped_array(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("array.npy");
    let program = programs::sources().join("situations/mapped_array.py");
    let mut parent = Parent::start_command(Command::new(programs::python()).arg(program).arg(&path));
    let seed = Seed::prepare(cluster.first(), &parent);
    replace(&path, &vec![7; 1 << 20]);
    check_everywhere(cluster, &seed, &parent);
    parent.require_unharmed();
}

/// Replaces the executable of a running program, as a package manager does.
fn installed_anew(cluster: &Cluster) {
    let directory = scratch::directory();
    let program = directory.path().join("program");
    let command = Program::Situation("idle").command();
    programs::copy(command.get_program(), &program);
    let parent = Parent::start_command(&mut Command::new(&program));
    let seed = Seed::prepare(cluster.first(), &parent);
    replace(&program, b"another program");
    let children = [0, 1].map(|node| seed.fork_idle(1, &["--to", cluster.name(node)]).remove(0));
    for child in &children {
        let bytes = fs::read(format!("/proc/{}/exe", child.pid)).expect("it runs");
        assert_eq!(bytes, fs::read(format!("/proc/{}/exe", parent.pid())).expect("it runs"));
        cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    }
}

/// With a shared path, a child gets the current file.
fn shared_path(cluster: &Cluster) {
    let directory = scratch::directory();
    let (parent, path) = (parent(directory.path(), Some("read")), directory.path().join("read"));
    let seed = Seed::prepare(cluster.first(), &parent);
    let words = (7..7 + fs::metadata(&path).expect("it is there").len() / 8).flat_map(|at| word_of(at).to_ne_bytes());
    fs::write(&path, words.collect::<Vec<u8>>()).expect("it is there");
    let shared = directory.path().to_string_lossy().into_owned();
    seed.fork_and_check(&parent, TAKES_CHANGES, &["--shared", &shared]);
}
