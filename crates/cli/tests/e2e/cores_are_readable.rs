//! The core of a child has the registers of each thread and all memory, including pages that the child had not touched.
//! The child continues.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use farfork_sys::process_memory::read_process;

use crate::harness::memory::Comparison;
use crate::harness::{Cluster, Parent, Program, Seed, scratch};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_core_contains_all_memory", all_memory),
    Test::shared("readelf_and_gdb_read_a_core", by_debuggers),
    Test::shared("a_child_runs_on_after_its_core_was_written", run_on),
    Test::shared("a_failed_core_leaves_no_file", failures),
];

const LOAD: u32 = 1;

/// Number of bytes at the start of a core that contain the headers and notes, for a process with few threads.
const HEAD_BYTES: usize = 64 << 10;

/// How long children touch memory, in milliseconds: many times the duration of a core dump. Then the children run until
/// they are signalled.
const PAGING_MS: u64 = 4_000;

/// A loadable segment of a core file: offset, address, bytes in the file, bytes in memory.
struct Segment {
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

fn segments(core: &File) -> Vec<Segment> {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        core.read_exact_at(&mut bytes, at).expect("a header");
        u64::from_le_bytes(bytes)
    };
    assert_eq!(word(0) as u32, u32::from_le_bytes(*b"\x7fELF"));
    let count = word(56) & 0xffff;
    let headers = (0..count).map(|index| 64 + 56 * index).filter(|at| word(*at) as u32 == LOAD);
    let segment = |at| Segment {
        offset: word(at + 8),
        address: word(at + 16),
        file_bytes: word(at + 32),
        memory_bytes: word(at + 40),
    };
    headers.map(segment).collect()
}

/// Compares the core byte by byte with the child's memory. The child is paused before its first instruction, so it has
/// almost no pages.
fn all_memory(cluster: &Cluster) {
    let parent = Parent::start(Program::Threads, &["64"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1), "--paused"]).remove(0);
    let directory = scratch::directory();
    let path = directory.path().join("core");
    let said = cluster.first().json(&["core", &child.id, "--output", &path.to_string_lossy()]);
    let file = fs::metadata(&path).expect("the core file exists");
    assert_eq!((file.permissions().mode() & 0o777, Some(file.len())), (0o600, said["file_bytes"].as_u64()), "{said}");
    assert!(file.blocks() * 512 < file.len(), "the core has no holes");
    assert!(said["stopped_us"].as_u64().is_some_and(|stopped| stopped > 0), "{said}");

    let core = File::open(&path).expect("the core");
    let (mut compared, mut mapped_bytes) = (Comparison::default(), 0);
    for segment in segments(&core) {
        mapped_bytes += segment.memory_bytes;
        let (mut expected, mut found) = (vec![0; 4096], vec![0; 4096]);
        for at in (0..segment.file_bytes).step_by(4096) {
            // Inaccessible pages and pages after the end of a mapped file cannot be compared.
            if read_process(child.pid, segment.address + at, &mut expected).is_ok() {
                core.read_exact_at(&mut found, segment.offset + at).expect("the segment is complete");
                compared.add("a segment", segment.address + at, &expected, &found);
            }
        }
    }
    compared.require_only_rseq(child.pid);
    let compared_bytes = compared.pages as u64 * 4096;
    assert!(compared_bytes > 64 << 20 && mapped_bytes > compared_bytes, "{compared_bytes} of {mapped_bytes} bytes");
    cluster.first().json(&["unpause", &child.id]);
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
}

fn output_of(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn is_installed(tool: &str) -> bool {
    Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn by_debuggers(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["8"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let directory = scratch::directory();
    let path = directory.path().join("core");
    let said = cluster.node(1).json(&["core", &child.id, "--output", &path.to_string_lossy()]);
    let threads = said["threads"].as_u64().expect("a number") as usize;
    assert!(threads > 2, "{said}");
    let notes = output_of(Command::new("readelf").args(["--notes", "--wide"]).arg(&path));
    for (note, count) in
        [("NT_PRSTATUS", threads), ("NT_FPREGSET", threads), ("NT_X86_XSTATE", threads), ("NT_PRPSINFO", 1)]
    {
        assert_eq!(notes.matches(note).count(), count, "{note}");
    }
    assert!(notes.contains("NT_AUXV") && notes.contains("NT_FILE"), "no note NT_AUXV or NT_FILE");
    // Some versions of readelf(1) do not decode NT_FILE, the note with the mapped files.
    let head = fs::read(&path).expect("the core").into_iter().take(HEAD_BYTES).collect::<Vec<u8>>();
    assert!(head.windows(7).any(|bytes| bytes == b"/waits\0"), "no note contains the program's path");
    require_gdb_to_understand(&path, parent.pid(), threads);
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
}

fn require_gdb_to_understand(core: &Path, parent: i32, threads: usize) {
    if !is_installed("gdb") {
        return eprintln!("gdb is not installed: only readelf has read the core");
    }
    let program = format!("/proc/{parent}/exe");
    let commands = ["-batch", "-nx", "-ex", "info threads", "-ex", "bt", "-ex", "thread apply all bt"];
    let said = output_of(Command::new("gdb").args(commands).arg(program).arg(core));
    let listed = said.lines().filter(|line| line.contains("LWP") && line.contains(" in ")).count();
    assert!(listed >= threads, "{threads} threads: {said}");
    assert!(said.contains("main ("), "gdb does not show main(): {said}");
    for complaint in ["corrupt", "Cannot access memory", "not a core dump", "warning: Unexpected size"] {
        assert!(!said.contains(complaint), "{complaint}: {said}");
    }
}

/// A child that touches memory during the core dump continues, and finds the right memory.
fn run_on(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Situation("paging"), &["64"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(
        &[format!("81 {PAGING_MS} held"), format!("82 {PAGING_MS} calls held")],
        &["--to", cluster.name(1)],
    );
    let directory = scratch::directory();
    for child in &children {
        let path = directory.path().join("core");
        let said = cluster.first().json(&["core", &child.id, "--output", &path.to_string_lossy()]);
        assert!(said["file_bytes"].as_u64() > Some(64 << 20), "{said}");
    }
    seed.release_children(&children);
    seed.check_answers(&parent, &children, &[81, 82]);
    let ended = &children[0].id;
    let path = directory.path().join("late").to_string_lossy().into_owned();
    cluster.first().run_failing(&["core", ended, "--output", &path]).require_mentions(&[ended, "ended"]);
    parent.require_unharmed();
}

fn failures(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["64"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1), "--paused"]).remove(0);
    cluster
        .first()
        .run_failing(&["core", &child.id, "--output", "/nonexistent/core"])
        .require_mentions(&["/nonexistent/core"]);
    cluster.first().json(&["drop", "--force", seed.id()]);
    let directory = scratch::directory();
    let path = directory.path().join("core").to_string_lossy().into_owned();
    let refused = cluster.first().run_failing(&["core", &child.id, "--output", &path]);
    refused.require_mentions(&[&child.id, "cannot settle"]);
    assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 0);
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
}
