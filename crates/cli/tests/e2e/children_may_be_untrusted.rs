//! Untrusted children: every thread and process of the child is kept inside the container. The child's memory contains
//! no secret that gives access to a seed. Trusted children keep their privileges.

use std::fs;
use std::path::Path;

use farfork_fork::pager::MemoryPlan;
use farfork_sys::process::read_maps;
use farfork_sys::process_memory::read_process;

use crate::harness::{Cluster, Parent, Program, Seed, scratch};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("an_untrusted_child_cannot_escape", no_escape),
    Test::shared("a_trusted_child_keeps_its_rights", trusted_child),
    Test::shared("a_python_program_with_threads_runs_untrusted", python),
    Test::shared("the_seed_token_is_not_in_the_childs_memory", tokens),
    Test::shared("a_grandchild_inherits_the_restrictions", children_of_one),
    Test::shared("the_file_system_is_read_only_on_request", read_only),
];

/// Number of bytes to read at once.
const CHUNK_BYTES: usize = 1 << 20;

fn escaping(cluster: &Cluster) -> Parent {
    let socket = cluster.node(1).socket().to_string_lossy().into_owned();
    Parent::start(Program::Situation("escaping"), &[&socket])
}

/// Returns the ways out of the container that a child finds. All other checks of the child must pass.
fn ways(seed: &Seed, options: &[&str]) -> Vec<String> {
    let ended = seed.fork_attached("7", options);
    assert_eq!(ended.status.code(), Some(42), "{}{}", ended.stdout, ended.stderr);
    ended.stdout.lines().filter_map(|line| line.strip_prefix("open ")).map(str::to_owned).collect()
}

fn no_escape(cluster: &Cluster) {
    let mut parent = escaping(cluster);
    let seed = Seed::prepare(cluster.first(), &parent);
    for network in ["private", "shared"] {
        let open = ways(&seed, &["--to", cluster.name(1), "--untrusted", "--net", network]);
        assert!(open.is_empty(), "{network}: {}", open.join("\n"));
    }
    let ended = seed.fork_idle(1, &["--untrusted"]);
    let said = cluster.first().json(&["inspect", &ended[0].id]);
    assert_eq!((&said["untrusted"], &said["read_only"]), (&true.into(), &false.into()), "{said}");
    let record = Path::new(said["directory"].as_str().expect("a directory")).join("child.json");
    let record = fs::read(record).expect("a child has a record");
    let record: serde_json::Value = serde_json::from_slice(&record).expect("its record is JSON");
    assert_eq!(record["untrusted"], true, "{record}");
    parent.require_unharmed();
}

/// The attempts of the program are real: in a trusted child, many ways are open.
fn trusted_child(cluster: &Cluster) {
    let mut parent = escaping(cluster);
    let seed = Seed::prepare(cluster.first(), &parent);
    let open = ways(&seed, &["--to", cluster.name(1)]);
    for way in ["unshare uts", "setns", "mount", "chroot", "ptrace", "mknod", "chown", "/proc/sys/kernel/printk"] {
        assert!(open.iter().any(|found| found == way), "{way} is closed, too:\n{}", open.join("\n"));
    }
    let closed = ["the daemon's socket", "process "];
    assert!(!open.iter().any(|way| closed.iter().any(|closed| way.starts_with(closed))), "{}", open.join("\n"));
    let child = seed.fork_idle(1, &[]);
    let said = cluster.first().json(&["inspect", &child[0].id]);
    assert_eq!((&said["untrusted"], &said["read_only"]), (&false.into(), &false.into()), "{said}");
    parent.require_unharmed();
}

fn python(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Arrays, &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 11, &["--to", cluster.name(1), "--untrusted"]);
    parent.require_unharmed();
}

fn tokens(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = &seed.fork_idle(1, &["--to", cluster.name(1), "--untrusted", "--strategy", "eager"])[0];
    let said = cluster.first().json(&["inspect", &child.id]);
    let plan = MemoryPlan::read(Path::new(said["directory"].as_str().expect("a directory")));
    let token = *plan.expect("the pager has a plan").sources[0].token.expose();
    assert!(has_in_memory(cluster.daemon_pid(1), &token), "the search does not find the token in the daemon's memory");
    assert!(!has_in_memory(child.pid, &token), "the child has the token of its seed in its memory");
    assert!(!has_in_memory(child.pid, b"PRIVATE KEY-----"), "the child has a key in its memory");
    let process = |file: &str| fs::read(format!("/proc/{}/{file}", child.pid)).expect("the child lives");
    assert_eq!(process("environ"), fs::read(format!("/proc/{}/environ", parent.pid())).expect("the parent lives"));
    // A descriptor that leaked from the daemon would be an additional one.
    let files = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").count();
    assert!(
        files(child.pid) <= files(parent.pid()),
        "{} files, the parent has {}",
        files(child.pid),
        files(parent.pid())
    );
    parent.require_unharmed();
}

/// Returns whether a readable page of a process contains these bytes.
fn has_in_memory(pid: i32, wanted: &[u8]) -> bool {
    let areas = read_maps(pid).expect("its maps can be read").into_iter().filter(|area| area.protection & 1 != 0);
    areas.filter(|area| !area.path.starts_with(b"[v")).any(|area| {
        let mut bytes = vec![0; CHUNK_BYTES + wanted.len()];
        (area.start..area.end).step_by(CHUNK_BYTES).any(|at| {
            let length = bytes.len().min((area.end - at) as usize);
            let read = read_process(pid, at, &mut bytes[..length]).unwrap_or(0);
            bytes[..read].windows(wanted.len()).any(|window| window == wanted)
        })
    })
}

/// A child of an untrusted child is untrusted too: the seed contains no privileges that its process lacks.
fn children_of_one(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = &seed.fork_idle(1, &["--untrusted"])[0];
    let second = Seed::prepare_process(cluster.first(), &child.pid.to_string(), &[]);
    let grandchild = &second.fork_idle(1, &[])[0];
    let status = fs::read_to_string(format!("/proc/{}/status", grandchild.pid)).expect("it lives");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000", "Seccomp_filters:\t1"] {
        assert!(status.lines().any(|found| found == line), "no {line} in {status}");
    }
    parent.require_unharmed();
}

fn read_only(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("lines");
    let mut parent = Parent::start(Program::Situation("appending"), &[&path.to_string_lossy()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--read-only"]);
    refused.require_mentions(&["opening a file", &path.to_string_lossy(), "Read-only file system"]);
    let mut other = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &other);
    for options in [&["--read-only"][..], &["--read-only", "--untrusted"]] {
        let child = &seed.fork_idle(1, options)[0];
        let said = cluster.first().json(&["inspect", &child.id]);
        assert_eq!(said["read_only"], true, "{said}");
        let root = format!("/proc/{}/root", child.pid);
        let written = |file: &str| fs::write(format!("{root}{file}"), "x").map_err(|error| error.kind());
        assert_eq!(written("/tmp/written"), Err(std::io::ErrorKind::ReadOnlyFilesystem), "{options:?}");
        assert_eq!(written("/dev/shm/written"), Ok(()), "{options:?}");
        seed.fork_and_check(&other, 5, options);
    }
    parent.require_unharmed();
    other.require_unharmed();
}
