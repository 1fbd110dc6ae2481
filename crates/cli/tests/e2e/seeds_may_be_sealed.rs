//! A sealed seed has its memory in a file. It outlives its template, its parent and its node's daemon. A damaged file
//! is refused, and a child never reads a wrong byte of it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Cluster, Parent, Program, Seed, WAIT_TIMEOUT, memory, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_sealed_seed_outlives_a_killed_daemon_and_parent", outlive_daemon),
    Test::alone("a_sealed_seed_outlives_a_daemon_that_stops", outlive_stop),
    Test::alone("a_sealed_seed_keeps_its_working_set", remember_touches),
    Test::alone("while_children_fetch_pages", while_paging),
    Test::alone("unless_the_disk_is_full", no_room),
    Test::alone("a_damaged_image_is_detected", damaged),
    Test::shared("the_image_has_the_memory_of_the_template", same_memory),
    Test::shared("with_shared_memory", shared_memory),
    Test::shared("a_seed_is_dropped_while_it_is_sealed", dropped),
    Test::shared("from_a_frozen_parent", frozen),
    Test::shared("while_the_parent_writes_its_files", while_writing),
];

const MEMORY_MIB: &str = "64";
/// How long a child touches memory, in milliseconds: longer than the time without a daemon.
const PAGING_MS: u64 = 6000;
/// Longest wait until an image is written to a disk that other processes use too, and until the template has ended.
const SEALED_LIMIT: Duration = Duration::from_secs(120);

fn sealed(cluster: &Cluster, parent: &Parent) -> Seed {
    let seed = Seed::prepare_with(cluster.first(), parent, &["--sealed", "--wait"]);
    assert_eq!(seed.prepare_output["seal"]["state"], "sealed", "{}", seed.prepare_output);
    seed
}

/// A file that is changed while it is sealed is not in the image. Children use the file at its path, with its length at the
/// prepare.
fn while_writing(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().to_string_lossy().into_owned();
    let mut parent = Parent::start(Program::Situation("result_files"), &[&path]);
    for number in 81..85 {
        let seed = sealed(cluster, &parent);
        seed.fork_and_check(&parent, number, &["--to", cluster.name(1)]);
    }
    parent.require_unharmed();
}

fn image_of(said: &Value) -> PathBuf {
    said["seal"]["image"].as_str().unwrap_or_else(|| panic!("no image in {said}")).into()
}

fn wait_until_sealed(cluster: &Cluster, seed: &Seed) -> Value {
    wait::wait_until("the seed is sealed", SEALED_LIMIT, || {
        Some(cluster.first().json(&["inspect", seed.id()])).filter(|said| said["seal"]["state"] != "sealing")
    })
}

fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn outlive_daemon() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let unsealed = Seed::prepare(cluster.first(), &parent);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--sealed", "--name", "kept"]);
    let children = seed.fork_detached(&[format!("61 {PAGING_MS}")], &["--to", cluster.name(1)]);
    let said = wait_until_sealed(&cluster, &seed);
    assert_eq!((&said["seal"]["state"], &said["template_pid"]), (&"sealed".into(), &0.into()), "{said}");
    let image = image_of(&said);
    assert_eq!(fs::metadata(&image).expect("the image").permissions().mode() & 0o777, 0o600);
    parent.kill();
    cluster.kill_daemon(0);
    cluster.restart_daemon(0);
    cluster.wait_until_all_are_alive();

    let listed = cluster.first().json(&["seeds"]);
    let seeds = listed["seeds"].as_array().expect("seeds");
    assert_eq!(
        (seeds.len(), &seeds[0]["seed"]),
        (1, &seed.id().into()),
        "not exactly the sealed seed is listed: {listed}"
    );
    assert_eq!((&seeds[0]["name"], &seeds[0]["seal"]["state"]), (&"kept".into(), &"sealed".into()), "{listed}");
    cluster.node(1).run_failing(&["fork", unsealed.id(), "--detach"]).require_mentions(&[unsealed.id()]);
    // Check a child that fetched pages while the daemon was replaced, and new children on both nodes.
    seed.check_answers(&parent, &children, &[61]);
    for (number, node) in [(62, 0), (63, 1)] {
        let children = seed.fork_detached(&[format!("{number} 200")], &["--to", cluster.name(node)]);
        seed.check_answers(&parent, &children, &[number]);
    }
    cluster.first().json(&["drop", "--force", "kept"]);
    assert!(!image.exists(), "the image was not removed with its seed");
    drop((seed, unsealed));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// A stopped daemon leaves complete images. The next daemon removes incomplete ones.
fn outlive_stop() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Waits, &["16"]);
    let seed = sealed(&cluster, &parent);
    cluster.stop_daemon(0);
    let unfinished =
        image_of(&seed.prepare_output).with_file_name(format!("{}.s0123456789abcdef.image.new", cluster.name(0)));
    fs::write(&unfinished, b"half of something").expect("the directory is there");
    cluster.restart_daemon(0);
    cluster.wait_until_all_are_alive();
    assert!(!unfinished.exists(), "the incomplete image was not removed");
    seed.fork_and_check(&parent, 64, &["--to", cluster.name(1)]);
    seed.fork_and_check(&parent, 65, &[]);
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// The next daemon still has the working set of a sealed seed. It removes a working set without an image.
fn remember_touches() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Waits, &["16"]);
    let seed = sealed(&cluster, &parent);
    let set = image_of(&seed.prepare_output).with_extension("set");
    let told = || cluster.first().json(&["inspect", seed.id()])["working_set_bytes"].as_u64().expect("a number");
    seed.fork_and_check(&parent, 69, &["--to", cluster.name(1)]);
    let known =
        wait::wait_until("a working set", SEALED_LIMIT, || Some(told()).filter(|bytes| *bytes > 0 && set.exists()));
    assert_eq!(fs::metadata(&set).expect("the set").permissions().mode() & 0o777, 0o600);
    cluster.stop_daemon(0);
    // The file may have more pages than `known`, which the child reported before it ended.
    let stray = set.with_file_name(format!("{}.s0123456789abcdef.set", cluster.name(0)));
    fs::copy(&set, &stray).expect("the directory is there");
    cluster.restart_daemon(0);
    cluster.wait_until_all_are_alive();
    assert!(told() >= known, "{} of {known} bytes are in the recorded working set", told());
    assert!(!stray.exists(), "a working set without an image was not removed");
    seed.fork_and_check(&parent, 70, &["--to", cluster.name(1)]);
    // A working set is only a hint: children answer correctly whatever the file contains.
    cluster.stop_daemon(0);
    fs::write(&set, b"FFWSET1\nsomething else entirely").expect("the set");
    cluster.restart_daemon(0);
    cluster.wait_until_all_are_alive();
    seed.fork_and_check(&parent, 71, &["--to", cluster.name(1)]);
    cluster.first().json(&["drop", "--force", seed.id()]);
    wait::wait_until("the working set is removed with its seed", SEALED_LIMIT, || (!set.exists()).then_some(()));
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// The template ends while children fetch pages from it, over the network and on its own host.
fn while_paging() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("paging"), &["256"]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--sealed"]);
    let template = seed.template_pid();
    let numbers = [66, 67, 68];
    let payloads = [format!("66 {PAGING_MS}"), format!("67 {PAGING_MS}"), format!("68 {PAGING_MS} calls")];
    let children = seed.fork_detached(&payloads, &["--to", &cluster.names(&[0, 1])]);
    let said = wait_until_sealed(&cluster, &seed);
    assert_eq!(said["seal"]["state"], "sealed", "{said}");
    wait::wait_until("the template has ended", SEALED_LIMIT, || (!is_alive(template)).then_some(()));
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// A small tmpfs of the test.
struct SmallDisk(crate::harness::scratch::TestDirectory);

impl SmallDisk {
    fn mount(mib: u32) -> Self {
        let directory = scratch::directory();
        let option = format!("size={mib}m");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(directory.path()).status();
        assert!(status.expect("mount(8)").success());
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

/// Sealing fails for lack of space. The seed can still be forked and reports the reason, and nothing of the image is
/// left.
fn no_room() {
    let disk = SmallDisk::mount(24);
    let directory = disk.path().to_string_lossy().into_owned();
    let cluster = Cluster::start_with(2, &["--images", &directory]);
    let mut parent = Parent::start(Program::Waits, &["32"]);
    let refused =
        cluster.first().run_failing(&["prepare", &parent.pid_text(), "--sealed", "--wait", "--name", "large"]);
    refused.require_mentions(&["not sealed", "are free there", &directory]);
    assert_eq!(fs::read_dir(disk.path()).expect("the disk").count(), 0);
    let said = cluster.first().json(&["inspect", "large"]);
    assert_eq!(said["seal"]["state"], "failed", "{said}");
    let id = said["seed"].as_str().expect("an id").to_owned();
    let large = Seed::from_json(cluster.first(), &said.to_string());
    large.fork_and_check(&parent, 69, &["--to", cluster.name(1)]);
    parent.require_unharmed();
    cluster.first().json(&["drop", "--force", &id]);

    let small_parent = Parent::start(Program::Waits, &["4"]);
    let small = sealed(&cluster, &small_parent);
    assert!(image_of(&small.prepare_output).starts_with(disk.path()), "{}", small.prepare_output);
    small.fork_and_check(&small_parent, 70, &["--to", cluster.name(1)]);
    drop((small, large));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn damaged() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Situation("paging"), &["16"]);
    let (cut, flipped) = (sealed(&cluster, &parent), sealed(&cluster, &parent));
    let (cut_image, flipped_image) = (image_of(&cut.prepare_output), image_of(&flipped.prepare_output));
    cluster.kill_daemon(0);
    let open = |path: &Path| File::options().read(true).write(true).open(path).expect("an image");
    let file = open(&cut_image);
    file.set_len(file.metadata().expect("it is there").len() - 4096).expect("the image can be truncated");
    // Change only pages: 1 MiB in the middle of the parent's 16 MiB.
    let file = open(&flipped_image);
    let middle = file.metadata().expect("it is there").len() / 2;
    let mut bytes = vec![0; 1 << 20];
    file.read_exact_at(&mut bytes, middle).expect("it can be read");
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
    file.write_all_at(&bytes, middle).expect("it can be written");
    cluster.restart_daemon(0);
    cluster.wait_until_all_are_alive();

    let refused = cluster.node(1).run_failing(&["fork", cut.id(), "--detach"]);
    refused.require_mentions(&[cut.id(), &cut_image.to_string_lossy(), "damaged"]);
    let child = &flipped.fork_detached(&["71 500".to_owned()], &["--to", cluster.name(1)])[0];
    let said = cluster.node(1).json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &child.id]);
    let log = cluster.node(1).json(&["logs", &child.id])["stderr"].as_str().unwrap_or_default().to_owned();
    assert!(!log.contains("wrong:"), "the child read a wrong byte: {log}");
    assert_eq!(said["children"][0]["exit_code"], 135, "SIGBUS: {said} {log}");
    assert!(log.contains("lost its memory"), "{log}");
    for seed in [&cut, &flipped] {
        cluster.first().json(&["drop", "--force", seed.id()]);
    }
    assert!(!cut_image.exists() && !flipped_image.exists());
    drop((cut, flipped));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Compares the memory of a child that was forked from the template with children that were forked from the image.
fn same_memory(cluster: &Cluster) {
    let parent = Parent::start(Program::Threads, &["64"]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--sealed"]);
    let paused = |node: usize| seed.fork_idle(1, &["--to", cluster.name(node), "--paused"]).remove(0);
    let before = paused(1);
    cluster.first().json(&["settle", &before.id]);
    assert_eq!(wait_until_sealed(cluster, &seed)["seal"]["state"], "sealed");
    let (remote, own) = (paused(2), paused(0));
    for child in [&remote, &own] {
        let compared = memory::compare_mappings_of(parent.pid(), before.pid, child.pid);
        assert!(compared.pages > (64 << 20) / 4096, "{compared:?}");
    }
    for child in [before, remote, own] {
        cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    }
}

/// The image also includes shared memory, which fork(2) does not copy.
fn shared_memory(cluster: &Cluster) {
    let parent = Parent::start(Program::Resource("shared_memory"), &[]);
    let seed = sealed(cluster, &parent);
    seed.fork_and_check(&parent, 72, &["--to", cluster.name(1)]);
    seed.fork_and_check(&parent, 73, &[]);
}

/// Dropping a seed leaves nothing of its image, even if the image is being written.
fn dropped(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["256"]);
    for _ in 0..3 {
        let seed = Seed::prepare_with(cluster.first(), &parent, &["--sealed"]);
        cluster.first().json(&["drop", "--force", seed.id()]);
    }
    let seed = sealed(cluster, &parent);
    let directory = image_of(&seed.prepare_output).parent().expect("a directory").to_owned();
    wait::wait_until("only one image is left", SEALED_LIMIT, || {
        (fs::read_dir(&directory).expect("the directory").count() == 1).then_some(())
    });
    cluster.first().json(&["drop", "--force", seed.id()]);
    wait::wait_until("no image is left", SEALED_LIMIT, || {
        (fs::read_dir(&directory).expect("the directory").count() == 0).then_some(())
    });
}

/// With `--freeze`, the parent is stopped until its image is complete.
fn frozen(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["64"]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--sealed", "--freeze", "--wait"]);
    parent.wait_for_ticks(10);
    seed.fork_and_check(&parent, 74, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}
