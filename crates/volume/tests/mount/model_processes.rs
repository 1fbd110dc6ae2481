//! Processes on two nodes execute random operations in turns. Each result and each error must be the one that the same sequence
//! has on a local directory.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::fs::Mode;
use rustix::io::Errno;

use super::model::{
    Operation, OperationResult, Side, digest, random_operation, require_equal_trees, wait_for_equal_trees,
};
use super::real_programs::ProcessMain;
use super::test_node::{WAIT_LIMIT, process_command};
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] =
    &[("processes_of_two_nodes_get_the_results_of_a_local_file_system", || run(0..4))];

pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("a_hundred_sequences_of_two_nodes_have_the_results_of_a_local_file_system", || run(0..100))];

pub(crate) const PROCESSES: &[(&str, ProcessMain)] = &[("model-process", run_process)];

/// Two processes of each node.
const NODE_OF_PROCESS: [usize; 4] = [0, 1, 0, 1];
const STEPS: u64 = 150;

fn operation_of(seed: u64, step: u64) -> Operation {
    random_operation(&mut Rng::with_seed(seed << 32 | step))
}

/// Reads numbers of steps, and writes the results.
fn run_process(arguments: &[String]) {
    rustix::process::umask(Mode::empty());
    let (mut side, seed) = (Side::new(arguments[0].as_ref()), arguments[1].parse().unwrap());
    for step in std::io::stdin().lines() {
        let result = side.execute(&operation_of(seed, step.unwrap().parse().unwrap()));
        println!("{result:?}");
    }
}

/// A process that executes operations on a volume. It ends when the value is dropped.
struct ModelProcess {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl ModelProcess {
    fn start(root: &Path, seed: u64) -> Self {
        let mut command = process_command("model-process");
        command.arg(root).arg(seed.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, output }
    }

    fn execute(&mut self, step: u64) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{step}").unwrap();
        self.output.next().expect("the process answers").unwrap()
    }
}

impl Drop for ModelProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether an operation may use a name or data that is some milliseconds older than the last change of another node
/// (`docs/guide/volumes.md`). It changes nothing, so it can be repeated.
fn may_read_old(operation: &Operation) -> bool {
    match operation {
        Operation::Read { .. }
        | Operation::StatFile { .. }
        | Operation::Stat { .. }
        | Operation::ReadSymlink { .. }
        | Operation::ReadDirectory { .. }
        | Operation::ReadXattrs { .. } => true,
        // The kernel answers without a request.
        Operation::Rename { path, new_path, .. } => path == new_path,
        _ => false,
    }
}

/// Whether a path of the operation leads through a directory. If another node has just replaced it, the operation may find the names
/// of the old one (`docs/guide/volumes.md`).
fn has_directory(operation: &Operation) -> bool {
    match operation {
        Operation::Rename { path, new_path, .. } | Operation::Link { path, new_path } => {
            path.contains('/') || new_path.contains('/')
        }
        Operation::Open { path, .. }
        | Operation::MakeDirectory { path, .. }
        | Operation::MakeFifo { path, .. }
        | Operation::RemoveFile { path }
        | Operation::RemoveDirectory { path }
        | Operation::MakeSymlink { path, .. } => path.contains('/'),
        _ => false,
    }
}

fn run_sequence(cluster: &VolumeCluster, local: &Path, seed: u64) {
    let name = format!("sequence-{seed}");
    let local = local.join(&name);
    fs::create_dir(&local).unwrap();
    fs::create_dir(cluster.path(0).join(&name)).unwrap();
    let mut random = Rng::with_seed(seed);
    let mut processes = NODE_OF_PROCESS.map(|node| ModelProcess::start(&cluster.path(node).join(&name), seed));
    let mut sides = NODE_OF_PROCESS.map(|_| Side::new(&local));
    for step in 0..STEPS {
        let process = random.usize(..processes.len());
        let operation = operation_of(seed, step);
        let result = sides[process].execute(&operation);
        let is_removed = sides[process].is_removed(&operation);
        let expected = format!("{result:?}");
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let found = processes[process].execute(step);
            let is_one_of =
                |errors: &[Errno]| errors.iter().any(|error| found == format!("{:?}", OperationResult::Err(*error)));
            let is_read = matches!(operation, Operation::Read { .. } | Operation::StatFile { .. });
            // As on NFS: another node has removed the file, so its changes do not reach this node.
            if found == expected || is_removed && (is_one_of(&[Errno::STALE]) || is_read) {
                break;
            }
            // The kernel may refuse a call because of an older name that it has cached.
            let is_refused = result.is_err() && found.starts_with("Err(");
            // A process of the other node reads the named pipe, which connects only processes of one node.
            if let Operation::Open { slot, .. } = operation
                && result.is_ok()
                && is_one_of(&[Errno::NXIO])
            {
                sides[process].execute(&Operation::Close { slot }).unwrap();
                break;
            }
            // Another node has just replaced a file by a directory, or a directory by a file (`docs/guide/volumes.md`).
            let is_of_old_kind = is_one_of(&[Errno::NOTDIR, Errno::ISDIR]);
            let is_missing = has_directory(&operation) && is_one_of(&[Errno::NOENT, Errno::EXIST]);
            let may_repeat = may_read_old(&operation) || is_refused || is_of_old_kind || is_missing;
            assert!(
                may_repeat && Instant::now() < deadline,
                "seed {seed}, step {step}, process {process}: {operation:?}\n volume {found:.200}\n local  {expected:.200}"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
    drop((processes, sides));
    let (expected, deadline) = (digest(&local), Instant::now() + WAIT_LIMIT);
    for node in 0..2 {
        let root = cluster.path(node).join(&name);
        // The kernel may have older attributes for some milliseconds.
        while digest(&root) != expected && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        require_equal_trees(&digest(&root), &expected, &format!("seed {seed}, node {node} and a local directory"));
    }
    fs::remove_dir_all(&local).unwrap();
}

/// `VOLUME_MODEL_SEED` selects one sequence.
fn run(seeds: Range<u64>) {
    rustix::process::umask(Mode::empty());
    let seed = std::env::var("VOLUME_MODEL_SEED").map(|text| text.parse().expect("a number"));
    let seeds = seed.map_or(seeds, |seed: u64| seed..seed + 1);
    let cluster = VolumeCluster::three_replicas();
    let local = tempfile::tempdir().unwrap();
    let started = Instant::now();
    seeds.clone().for_each(|seed| run_sequence(&cluster, local.path(), seed));
    wait_for_equal_trees(&cluster);
    cluster.published_tree();
    println!("sequences {seeds:?} of {STEPS} operations on two nodes: {:.1} s", started.elapsed().as_secs_f64());
}
