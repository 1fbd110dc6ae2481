//! Injects faults into each process and the link of each node of a chain, while a program writes on each node. Afterwards
//! every node has all acknowledged data, and the replicas are equal.

use std::fs::{self, File};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_sys::pidfd;
use farfork_volume::process::ProcessRole::{self, Client, Offload, Worker};
use fastrand::Rng;
use rustix::process::Signal;

use super::crash::{StopOnDrop, WriterControl, WriterManifest, verify, write_until_stopped};
use super::test_network::TestNetwork;
use super::volume_cluster::{THREE_NODES, VolumeCluster};

pub(crate) const TESTS: &[(&str, fn())] = &[("nine_faults_of_the_matrix_lose_nothing", nine_faults)];
pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("all_faults_of_the_matrix_lose_nothing", all_faults), ("two_hundred_faults_lose_nothing", many_faults)];

/// Long, so that a node on a busy machine is not considered failed.
const DETECTION_MS: u64 = 10_000;
/// Too short to be detected as a failure.
const SHORT_STOP: Duration = Duration::from_millis(500);
/// Long enough that other processes stop waiting: the node leaves the chain, and a stopped client or worker is killed.
const LONG_STOP: Duration = Duration::from_millis(DETECTION_MS + 2_000);
/// Environment variable with the seed of the fault points, to repeat a run.
const SEED_VARIABLE: &str = "FARFORK_VOLUME_SEED";

/// The targets of kills and stops: one process, the processes of a node's daemon, or all processes of a node.
const TARGETS: [&[ProcessRole]; 5] = [&[Client], &[Worker], &[Offload], &[Offload, Worker], &[Offload, Worker, Client]];

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// SIGKILL to these processes.
    Kill(&'static [ProcessRole]),
    /// SIGSTOP to these processes, and SIGCONT after this time.
    Stop(&'static [ProcessRole], Duration),
    /// The link of the node is cut, and restored after this time.
    Cut(Duration),
}

/// A fault of one node.
#[derive(Clone, Copy, Debug)]
struct FaultPoint {
    node: usize,
    fault: Fault,
}

/// Returns every fault at each node, with stops and cuts of these durations.
fn matrix(times: &[Duration]) -> Vec<FaultPoint> {
    let kills = TARGETS.iter().map(|roles| Fault::Kill(roles));
    let stops = TARGETS.iter().flat_map(|roles| times.iter().map(|time| Fault::Stop(roles, *time)));
    let cuts = times.iter().map(|time| Fault::Cut(*time));
    let faults: Vec<Fault> = kills.chain(stops).chain(cuts).collect();
    let at_node = |node| faults.iter().map(move |fault| FaultPoint { node, fault: *fault });
    (0..THREE_NODES.len()).flat_map(at_node).collect()
}

fn random() -> Rng {
    let given = std::env::var(SEED_VARIABLE).ok().map(|text| text.parse().expect("a number"));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = given.unwrap_or_else(now);
    println!("{SEED_VARIABLE}={seed}");
    Rng::with_seed(seed)
}

fn nine_faults() {
    let mut points = matrix(&[SHORT_STOP]);
    random().shuffle(&mut points);
    inject(&points[..9]);
}

fn all_faults() {
    inject(&matrix(&[SHORT_STOP, LONG_STOP]));
}

fn many_faults() {
    let (mut random, points) = (random(), matrix(&[SHORT_STOP, LONG_STOP]));
    let chosen: Vec<FaultPoint> = (0..200).map(|_| points[random.usize(..points.len())]).collect();
    inject(&chosen);
}

/// Injects one fault after the other. Before the next fault, the program of each node must have written again.
fn inject(points: &[FaultPoint]) {
    let network = TestNetwork::start(THREE_NODES.len() as u8);
    let cluster = VolumeCluster::networked(&network, DETECTION_MS);
    for node in 0..THREE_NODES.len() {
        fs::create_dir(cluster.path(0).join(format!("writer-{node}"))).unwrap();
    }
    File::open(cluster.path(0)).unwrap().sync_all().unwrap();
    let controls: Vec<WriterControl> = THREE_NODES.iter().map(|_| WriterControl::default()).collect();
    let manifests: Vec<WriterManifest> = thread::scope(|scope| {
        let write = |(node, control)| {
            let root = cluster.path(node);
            scope.spawn(move || write_until_stopped(&root, node, control))
        };
        let writers: Vec<_> = controls.iter().enumerate().map(write).collect();
        let stop = StopOnDrop(&controls);
        points.iter().for_each(|point| inject_one(&cluster, &network, &controls, *point));
        drop(stop);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    cluster.wait_for_chain(0, THREE_NODES.len());
    for node in 0..THREE_NODES.len() {
        cluster.nodes[node].wait_until_mounted();
        manifests.iter().enumerate().for_each(|(writer, manifest)| verify(&cluster.path(node), writer, manifest));
    }
    cluster.published_tree();
}

fn inject_one(cluster: &VolumeCluster, network: &TestNetwork, controls: &[WriterControl], point: FaultPoint) {
    let FaultPoint { node, fault } = point;
    let (before, started) = (acknowledged(controls), Instant::now());
    match fault {
        Fault::Kill(roles) => cluster.nodes[node].kill(roles),
        Fault::Cut(time) => {
            network.cut_link(node);
            thread::sleep(time);
            network.restore_link(node);
        }
        Fault::Stop(roles, time) => {
            // SIGCONT must go to the stopped process, even if another process has replaced it.
            let Ok(stopped) = cluster.nodes[node].processes(roles) else { return };
            let signal =
                |signal: Signal| stopped.iter().for_each(|process| _ = pidfd::send_signal(process, signal.as_raw()));
            signal(Signal::STOP);
            thread::sleep(time);
            signal(Signal::CONT);
        }
    }
    let _describe = DescribeOnPanic(cluster);
    cluster.nodes[0].wait_for(&format!("all nodes write after {point:?}"), || {
        acknowledged(controls).iter().zip(&before).all(|(now, before)| *now > before + 2)
    });
    println!("{point:?}: all nodes write again after {:.1} s", started.elapsed().as_secs_f64());
}

/// Prints the state of each node when the test fails.
struct DescribeOnPanic<'a>(&'a VolumeCluster);

impl Drop for DescribeOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.nodes.iter().for_each(|node| println!("{:#?}", node.status()));
        }
    }
}

fn acknowledged(controls: &[WriterControl]) -> Vec<u64> {
    controls.iter().map(WriterControl::acknowledged).collect()
}
