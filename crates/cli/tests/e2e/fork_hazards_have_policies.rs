//! Hazards of a program that continues in two places, except those that other tests cover. `docs/fork-correctness.md`
//! lists all hazards.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use farfork_sys::process::{MapEntry, read_maps};
use farfork_sys::process_memory::read_process;

use crate::harness::{Cluster, Parent, Program, Seed, WAIT_TIMEOUT, programs, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("no_lock_has_two_owners", file_locks),
    Test::shared("a_seed_keeps_no_file_lock", seed_and_locks),
    Test::shared("the_parents_descendants_are_copied_into_the_child", own_children),
    Test::shared("a_child_has_the_host_name_of_its_node", host_names),
    Test::shared("a_mapped_file_is_the_parents_version", mapped_file),
    Test::shared("a_private_mapping_shows_writes_to_a_memfd", private_memfd),
    Test::shared("a_private_mapping_shows_writes_to_shared_anonymous_memory", private_anonymous),
    Test::shared("a_private_mapping_shows_writes_to_a_deleted_file", private_deleted_file),
    Test::shared("a_private_mapping_shows_writes_to_posix_shared_memory", private_posix_memory),
    Test::shared("a_private_mapping_shows_writes_to_a_file", private_file),
    Test::shared("private_mappings_of_descendants_show_writes", private_descendants),
    Test::shared("a_private_mapping_hides_writes_to_a_file_opened_later", private_file_opened_later),
    Test::shared("private_mappings_of_segments_and_huge_pages_hide_writes", private_copy),
    Test::shared("libc_random_state_is_copied_and_kernel_random_numbers_differ", random_state),
    Test::shared("a_lock_held_by_another_thread_is_released", held_lock),
    Test::shared("temporary_files_of_one_name_are_separate", temporary_files),
    Test::shared("files_opened_by_a_child_are_the_nodes_current_files", files_later),
    Test::shared("device_and_inode_numbers_of_a_file_differ", file_numbers),
    Test::shared("a_chrooted_parents_files_are_those_of_its_root", jailed),
    Test::shared("a_tls_connection_inside_the_process_goes_on", encrypted_connection),
    Test::shared("debuggers_get_an_error_for_missing_pages", memory_of_a_child),
];

const PAGE_BYTES: usize = 4096;

/// PROT_READ and PROT_WRITE.
const WRITABLE: u8 = 3;

/// Longest wait until the kernel has closed the files of a killed process.
const END_LIMIT: Duration = Duration::from_secs(60);

fn situation(name: &'static str, arguments: &[&str]) -> Parent {
    Parent::start(Program::Situation(name), arguments)
}

/// Checks two children, one after the other: the first must change nothing that the second finds.
fn check_twice(cluster: &Cluster, mut parent: Parent, options: &[&str]) {
    let seed = Seed::prepare(cluster.first(), &parent);
    for number in [31, 32] {
        seed.fork_and_check(&parent, number, &[&["--to", cluster.name(1)], options].concat());
    }
    parent.require_unharmed();
}

/// Returns the paths of three files to lock in a directory.
fn lock_files(directory: &Path) -> [String; 3] {
    ["flock", "posix", "ofd"].map(|name| directory.join(name).to_string_lossy().into_owned())
}

fn file_locks(cluster: &Cluster) {
    let directory = scratch::directory();
    let paths = lock_files(directory.path());
    let mut parent = situation("file_locks", &paths.each_ref().map(String::as_str));
    let seed = Seed::prepare(cluster.first(), &parent);
    // The directory is shared: otherwise a child would lock its own copy of a file.
    let shared = directory.path().to_string_lossy();
    let options = ["--to", cluster.name(1), "--shared", &shared];
    cluster
        .first()
        .run_failing(&[&["fork", seed.id()], &options[..]].concat())
        .require_mentions(&["lock", "fd 3", &paths[0]]);
    parent.require_unharmed();
    parent.kill();
    seed.fork_and_check(&parent, 31, &options);
}

/// A flock(2) lock belongs to the open file description, which the template shares. The lock must still end with the
/// parent.
fn seed_and_locks(cluster: &Cluster) {
    let directory = scratch::directory();
    let paths = lock_files(directory.path());
    let mut parent = situation("file_locks", &paths.each_ref().map(String::as_str));
    let seed = Seed::prepare(cluster.first(), &parent);
    let file = File::open(&paths[0]).expect("the parent made it");
    assert!(file.try_lock().is_err(), "the parent does not hold the lock");
    parent.kill();
    wait::wait_until("the lock ends with the parent", END_LIMIT, || file.try_lock().ok());
    cluster.first().json(&["inspect", seed.id()]);
}

fn own_children(cluster: &Cluster) {
    let parent = situation("own_children", &[]);
    let checked = cluster.first().run(&["check", &parent.pid_text()]);
    assert!(checked.stdout.contains("its 1 living descendants are carried with it"), "{}", checked.stdout);
    check_twice(cluster, parent, &[]);
}

fn host_names(cluster: &Cluster) {
    let name = || fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    let before = name();
    check_twice(cluster, situation("host_names", &[]), &[]);
    assert_eq!(name(), before, "a child has renamed its node");
}

/// Before the fork, the file is replaced by another one of the same size, as in an upgrade.
fn mapped_file(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("file");
    let mut parent = situation("mapped_file", &[&path.to_string_lossy()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let bytes = fs::metadata(&path).expect("the parent wrote it").len();
    let newer = directory.path().join("newer");
    fs::write(&newer, vec![0x5a; usize::try_from(bytes).expect("a small file")]).expect("a small file");
    fs::rename(&newer, &path).expect("both are here");
    seed.fork_and_check(&parent, 33, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}

/// In a child, pages that were not written through a private mapping have the contents of the parent's object at
/// prepare. Only writes to the child's own object change them.
fn private_mapping(cluster: &Cluster, arguments: &[&str], is_written_since: bool) {
    let mut parent = situation("private_mapping", arguments);
    let checked = cluster.first().run(&["check", &parent.pid_text()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    if is_written_since {
        let object = fs::OpenOptions::new().write(true).open(format!("/proc/{}/fd/3", parent.pid()));
        let page = vec![0x5a; PAGE_BYTES];
        object
            .and_then(|object| object.write_all_at(&page, PAGE_BYTES as u64))
            .expect("the parent has the object open as descriptor 3");
    }
    // One after the other, so that the later children are copies of a zygote.
    let ways = [&[][..], &[], &[], &["--strategy", "eager"], &["--untrusted"]];
    for (number, options) in (31..).zip(ways) {
        seed.fork_and_check(&parent, number, &[&["--to", cluster.name(1)], options].concat());
    }
    let middle = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let again = Seed::prepare_process(cluster.node(1), &middle.pid.to_string(), &[]);
    again.fork_and_check(&parent, 41, &["--to", cluster.name(2)]);
    parent.require_unharmed();
    assert!(!checked.stdout.contains("it has private mappings of"), "{}", checked.stdout);
}

fn private_memfd(cluster: &Cluster) {
    private_mapping(cluster, &["memfd"], true);
}

fn private_anonymous(cluster: &Cluster) {
    private_mapping(cluster, &["anonymous"], true);
}

fn private_descendants(cluster: &Cluster) {
    private_mapping(cluster, &["descendant"], true);
}

fn private_deleted_file(cluster: &Cluster) {
    let directory = scratch::directory();
    private_mapping(cluster, &["deleted", &directory.path().join("file").to_string_lossy()], true);
}

fn private_posix_memory(cluster: &Cluster) {
    let path = format!("/dev/shm/farfork-private-{}", std::process::id());
    private_mapping(cluster, &["shared-memory", &path], true);
    fs::remove_file(&path).expect("the parent made it");
}

/// Also forks on the parent's node, where the path of the child's mapping leads to the parent's file.
fn private_file(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("file");
    private_mapping(cluster, &["file", &path.to_string_lossy()], false);
    let before = fs::read(&path).expect("the parent wrote it");
    let parent = situation("private_mapping", &["file", &directory.path().join("other").to_string_lossy()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 33, &[]);
    assert_eq!(
        before,
        fs::read(directory.path().join("other")).expect("the parent wrote the file"),
        "a child changed the node's file"
    );
}

/// check, prepare and the seed name a mapping that no longer follows its object in children.
fn private_copy(cluster: &Cluster) {
    for (kind, name) in [("segment", "/SYSV00000000 (deleted)"), ("huge", "/memfd:huge (deleted)")] {
        let mut parent = situation("private_copy", &[kind]);
        let note = format!("it has private mappings of {name}, to which it may write");
        let checked = cluster.first().run(&["check", &parent.pid_text()]);
        assert!(checked.stdout.contains(&note), "{}", checked.stdout);
        let prepared = cluster.first().run(&["prepare", &parent.pid_text(), "--json"]);
        let seed = Seed::from_json(cluster.first(), &prepared.stdout);
        let inspected = cluster.first().json(&["inspect", seed.id()]);
        assert!(inspected["notes"].to_string().contains(&note), "{inspected}");
        for number in [31, 32] {
            seed.fork_and_check(&parent, number, &["--to", cluster.name(1)]);
        }
        parent.require_unharmed();
    }
}

/// The overlay does not replace a file that is open only for reading: a child that later opens it for writing writes to
/// a copy.
fn private_file_opened_later(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("file");
    check_twice(cluster, situation("private_copy", &["file", &path.to_string_lossy()]), &[]);
}

fn random_state(cluster: &Cluster) {
    let parent = situation("random_state", &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(&["1".to_owned(), "2".to_owned()], &["--to", &cluster.names(&[1, 2])]);
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    let said =
        cluster.first().json_ignoring_status(&[&["wait", "--results", "--timeout", WAIT_TIMEOUT], &ids[..]].concat());
    let distinct = |word: &str| {
        let ends = said["children"].as_array().expect("children").iter();
        let lines = ends.flat_map(|end| end["stdout"].as_str().unwrap_or_default().lines());
        lines.filter(|line| line.starts_with(word)).collect::<BTreeSet<_>>().len()
    };
    assert_eq!((distinct("libc "), distinct("kernel "), distinct("seeded ")), (1, 2, 2), "{said}");
}

fn held_lock(cluster: &Cluster) {
    check_twice(cluster, situation("held_lock", &[]), &[]);
}

/// Several children create temporary files with the same names, on one node at the same time.
fn temporary_files(cluster: &Cluster) {
    let directory = scratch::directory();
    let mut parent = situation("temporary_file", &[&directory.path().to_string_lossy()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers = [41, 42, 43];
    let children = seed.fork_detached(&numbers.map(|number: u64| number.to_string()), &["--to", cluster.name(1)]);
    seed.check_answers(&parent, &children, &numbers);
    let left = fs::read_dir(directory.path()).expect("the directory").count();
    assert_eq!(left, 0, "a child's file is on the node");
    parent.require_unharmed();
}

/// Files are changed and removed between prepare and fork, like a program's temporary files.
fn files_later(cluster: &Cluster) {
    let directory = scratch::directory();
    let [changed, removed] = ["changed", "removed"].map(|name| directory.path().join(name));
    let paths = [&changed, &removed].map(|path| path.to_string_lossy().into_owned());
    let mut parent = situation("files_changed_later", &paths.each_ref().map(String::as_str));
    let seed = Seed::prepare(cluster.first(), &parent);
    fs::write(&changed, "after").expect("the parent wrote it");
    fs::remove_file(&removed).expect("the parent wrote it");
    for number in [51, 52] {
        seed.fork_and_check(&parent, number, &["--to", cluster.name(1)]);
    }
    assert!(!removed.exists(), "a child's file is on the node");
    parent.require_unharmed();
}

fn file_numbers(cluster: &Cluster) {
    let directory = scratch::directory();
    check_twice(cluster, situation("file_numbers", &[&directory.path().to_string_lossy()]), &[]);
}

fn jailed(cluster: &Cluster) {
    let directory = scratch::directory();
    check_twice(cluster, situation("chrooted", &[&directory.path().to_string_lossy()]), &[]);
}

fn encrypted_connection(cluster: &Cluster) {
    let program = programs::sources().join("situations/tls_connection.py");
    check_twice(cluster, Parent::start_command(Command::new(programs::python()).arg(program)), &[]);
}

/// Reads of `/proc/PID/mem` and ptrace(2) cannot wait for a page: they fail, and never return zeroes.
/// process_vm_readv(2) waits.
fn memory_of_a_child(cluster: &Cluster) {
    let mut parent = situation("paging", &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = &seed.fork_idle(1, &["--to", cluster.name(1), "--paused"])[0];
    let open = |pid: i32| File::open(format!("/proc/{pid}/mem")).expect("root may open it");
    let (expected, found) = (open(seed.template_pid()), open(child.pid));
    let mut still_to_come = 0;
    for address in private_pages(child.pid) {
        let Some(word) = word_at(&expected, address).filter(|word| *word != 0) else { continue };
        match word_at(&found, address) {
            Some(there) => assert_eq!(there, word, "the present page at {address:x} is wrong"),
            None => {
                still_to_come += 1;
                let mut bytes = [0; 8];
                assert_eq!(read_process(child.pid, address, &mut bytes).expect("the page is fetched"), bytes.len());
                assert_eq!(u64::from_le_bytes(bytes), word, "the fetched page at {address:x} is wrong");
            }
        }
    }
    assert!(still_to_come > 0, "the paused child has all of its memory");
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    parent.require_unharmed();
}

fn private_pages(pid: i32) -> impl Iterator<Item = u64> {
    let is_private = |entry: &MapEntry| entry.path.is_empty() && entry.protection & WRITABLE == WRITABLE;
    let mappings = read_maps(pid).expect("the child has a map").into_iter().filter(is_private);
    mappings.flat_map(|entry| (entry.start..entry.end).step_by(PAGE_BYTES))
}

fn word_at(memory: &File, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, address).ok().map(|()| u64::from_le_bytes(bytes))
}
