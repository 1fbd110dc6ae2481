//! Random sets of nodes are killed while all nodes write. The survivors continue in time, and no acknowledged file is lost.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_volume::process::ProcessRole;
use fastrand::Rng;
use rustix::fs::fstatfs;
use rustix::process::Signal;

use super::mounted_volume::LOG_BYTES;
use super::test_node::{FUSE_SUPER_MAGIC, SetOnDrop};
use super::volume_cluster::{THREE_NODES, VolumeCluster};

/// Tests of this file that take minutes.
pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("survivors_of_random_deaths_continue_in_time", || run_rounds(rounds()))];

const DETECTION_MS: u64 = 2_000;
/// No call takes longer than the time of failure detection and this time, as long as one replica lives.
const WORK_TIME_MAX: Duration = Duration::from_secs(5);
/// Number of files that each survivor writes after the deaths.
const FILES_AFTER_DEATHS: u32 = 3;
const FILE_BYTES_MAX: usize = 40_000;
const RETRY_WAIT: Duration = Duration::from_millis(20);

/// The number of rounds: FARFORK_DEATH_ROUNDS, or 30.
fn rounds() -> u32 {
    std::env::var("FARFORK_DEATH_ROUNDS").map_or(30, |rounds| rounds.parse().expect("a number"))
}

/// The progress of the programs of all nodes.
#[derive(Default)]
struct RoundProgress {
    acknowledged: Mutex<BTreeMap<String, Vec<u8>>>,
    must_stop: AtomicBool,
    /// The number of files that each node has written in this round.
    written: [AtomicU32; THREE_NODES.len()],
    /// Time of the last death of a process.
    died_at: Mutex<Option<Instant>>,
    /// The longest time until a call of each node has succeeded, since its begin or since the last death during the call.
    longest: [Mutex<Duration>; THREE_NODES.len()],
}

/// Writes and syncs a file on the volume. Fails if the volume is not mounted: the files would be in the directory below.
fn write_on_volume(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    if fstatfs(&file)?.f_type != FUSE_SUPER_MAGIC {
        return Err(io::Error::other("the volume is not mounted"));
    }
    file.write_all(bytes)?;
    file.sync_all()
}

impl RoundProgress {
    fn record_death(&self) {
        *self.died_at.lock().unwrap() = Some(Instant::now());
    }

    /// Writes files on a node, and reads files of all nodes, until the round ends. A call that fails because the client is
    /// replaced is repeated, and counts as one call.
    fn run_programs(&self, node: usize, root: &Path, round: u32, mut random: Rng) {
        for file in 0.. {
            let (name, started) = (format!("{round}-{node}-{file}"), Instant::now());
            let bytes = vec![random.u8(..); random.usize(..FILE_BYTES_MAX)];
            while write_on_volume(&root.join(&name), &bytes).is_err() {
                if self.must_stop.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(RETRY_WAIT);
            }
            let (earlier, content) = {
                let mut acknowledged = self.acknowledged.lock().unwrap();
                acknowledged.insert(name, bytes);
                let (earlier, content) = acknowledged.iter().nth(random.usize(..acknowledged.len())).unwrap();
                (earlier.clone(), content.clone())
            };
            // A client that is being replaced answers with an error.
            if let Ok(found) = fs::read(root.join(&earlier)) {
                assert!(found == content, "node {node}, {earlier}: {} of {} bytes", found.len(), content.len());
            }
            let waits_since = self.died_at.lock().unwrap().map_or(started, |died_at| died_at.max(started));
            let mut longest = self.longest[node].lock().unwrap();
            *longest = longest.max(waits_since.elapsed());
            drop(longest);
            self.written[node].fetch_add(1, Ordering::Relaxed);
            if self.must_stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Kills nodes at a random time: at the same time or one after the other, and some after their offload process was stopped.
fn kill(cluster: &mut VolumeCluster, victims: &[usize], progress: &RoundProgress, random: &mut Rng) {
    thread::sleep(Duration::from_millis(random.u64(50..500)));
    let is_simultaneous = random.bool();
    let is_stopped_first = random.u32(..4) == 0;
    if is_stopped_first {
        // A stopped process answers no call, but its connections stay.
        cluster.nodes[victims[0]].signal(&[ProcessRole::Offload], Signal::STOP);
        progress.record_death();
        thread::sleep(Duration::from_millis(random.u64(..2 * DETECTION_MS)));
    }
    if is_simultaneous {
        progress.record_death();
        cluster.kill_nodes(victims);
    } else {
        for victim in victims {
            progress.record_death();
            cluster.kill_nodes(&[*victim]);
            thread::sleep(Duration::from_millis(random.u64(..2 * DETECTION_MS)));
        }
    }
}

fn run_rounds(rounds: u32) {
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    let (mut random, mut acknowledged) = (Rng::with_seed(7), BTreeMap::new());
    for round in 0..rounds {
        let progress = RoundProgress { acknowledged: Mutex::new(acknowledged), ..RoundProgress::default() };
        let deaths = random.usize(1..THREE_NODES.len());
        let mut nodes = [0, 1, 2];
        random.shuffle(&mut nodes);
        let (victims, survivors) = nodes.split_at(deaths);
        let roots = [0, 1, 2].map(|node| cluster.path(node));
        thread::scope(|scope| {
            let _stop = SetOnDrop(&progress.must_stop);
            for (node, root) in roots.iter().enumerate() {
                let (progress, random) = (&progress, random.fork());
                scope.spawn(move || progress.run_programs(node, root, round, random));
            }
            kill(&mut cluster, victims, &progress, &mut random);
            let written = |node: &usize| progress.written[*node].load(Ordering::Relaxed);
            let before: Vec<u32> = survivors.iter().map(written).collect();
            for (survivor, before) in survivors.iter().zip(before) {
                cluster.nodes[*survivor]
                    .wait_for("the survivors write", || written(survivor) >= before + FILES_AFTER_DEATHS);
            }
        });
        for survivor in survivors {
            let longest = *progress.longest[*survivor].lock().unwrap();
            let limit = Duration::from_millis(DETECTION_MS) + WORK_TIME_MAX;
            println!("round {round}: {victims:?} died, a call of node {survivor} took at most {longest:.1?}");
            assert!(
                longest <= limit,
                "round {round}: a call of node {survivor} took {longest:?} after {victims:?} died"
            );
        }
        acknowledged = progress.acknowledged.into_inner().unwrap();
        victims.iter().for_each(|victim| cluster.nodes[*victim].start_processes());
        cluster.wait_for_chain(survivors[0], THREE_NODES.len());
        victims.iter().for_each(|victim| cluster.nodes[*victim].mount());
        cluster.nodes.iter().for_each(|node| node.wait_until_mounted());
        let tree = cluster.published_tree();
        for (name, bytes) in &acknowledged {
            let found = tree.get(Path::new(name));
            assert!(
                found.is_some_and(|(_, found)| found == bytes),
                "round {round}: {name} is lost after {victims:?} died"
            );
        }
    }
    println!("{rounds} rounds, {} acknowledged files", acknowledged.len());
}
