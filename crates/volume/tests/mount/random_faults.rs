//! Random faults of nodes, links and members of etcd at the same time, while programs of all nodes write and read the same
//! files. No acknowledged byte is lost, no two clients write at the same time, and everything continues by itself.
//!
//! The history of each file is linearizable. Its operations are whole: open, write, fsync and close, or open, read and close.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_volume::process::ProcessRole;
use fastrand::Rng;
use rustix::fs::{Mode, OFlags, fstatfs, openat};
use rustix::io::Errno;
use rustix::process::Signal;

use super::etcd_catalog::EtcdCluster;
use super::history::{FileOperation, INITIAL, check_linearizable};
use super::test_network::TestNetwork;
use super::test_node::{FUSE_SUPER_MAGIC, SetOnDrop};
use super::volume_cluster::THREE_NODES;

/// Tests of this file that take minutes.
pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("histories_are_linearizable_during_random_faults", || run_rounds(rounds()))];

const DETECTION_MS: u64 = 2_000;
/// Number of files that all programs share.
const FILES: usize = 4;
const PROGRAMS_PER_NODE: usize = 2;
const FAULTS_PER_ROUND_MAX: usize = 3;
/// Longest time between the begins of two faults, and longest duration of one, in milliseconds.
const FAULT_GAP_MS: u64 = 1_000;
const FAULT_MS: u64 = 2 * DETECTION_MS;
const RETRY_WAIT: Duration = Duration::from_millis(20);
/// Number of operations of each program after the last fault has ended.
const OPERATIONS_AFTER_FAULTS: u64 = 3;
/// A file has this number of copies of one value, so that a part of a write would be seen.
const COPIES: usize = 512;
const VALUE_BYTES: usize = size_of::<u64>();
const RATES: [&str; 3] = ["1mbit", "10mbit", "100mbit"];

/// The number of rounds: FARFORK_FAULT_ROUNDS, or 20.
fn rounds() -> u64 {
    std::env::var("FARFORK_FAULT_ROUNDS").map_or(20, |rounds| rounds.parse().expect("a number"))
}

/// A fault of a node or of a member of etcd, with the index of the node or member.
#[derive(Clone, Copy, Debug)]
enum InjectedFault {
    KillNode(usize),
    KillProcess(usize, ProcessRole),
    StopProcess(usize, ProcessRole),
    CutLink(usize),
    SlowLink(usize, &'static str),
    KillEtcd(usize),
    StopEtcd(usize),
}

impl InjectedFault {
    fn random(random: &mut Rng) -> Self {
        const ROLES: [ProcessRole; 3] = [ProcessRole::Offload, ProcessRole::Worker, ProcessRole::Client];
        let (victim, role) = (random.usize(..THREE_NODES.len()), ROLES[random.usize(..ROLES.len())]);
        match random.u8(..7) {
            0 => Self::KillNode(victim),
            1 => Self::KillProcess(victim, role),
            2 => Self::StopProcess(victim, role),
            3 => Self::CutLink(victim),
            4 => Self::SlowLink(victim, RATES[random.usize(..RATES.len())]),
            5 => Self::KillEtcd(victim),
            _ => Self::StopEtcd(victim),
        }
    }

    /// Whether two faults may not be active at the same time: ending one would end the other or fail.
    fn excludes(self, other: Self) -> bool {
        let place = |fault: Self| match fault {
            Self::KillNode(node) | Self::KillProcess(node, _) | Self::StopProcess(node, _) => (0, node),
            Self::CutLink(node) | Self::SlowLink(node, _) => (1, node),
            Self::KillEtcd(member) | Self::StopEtcd(member) => (2, member),
        };
        place(self) == place(other)
    }

    fn begin(self, cluster: &mut EtcdCluster, network: &TestNetwork) {
        match self {
            Self::KillNode(node) => cluster.volumes.kill_nodes(&[node]),
            Self::KillProcess(node, role) => cluster.volumes.nodes[node].signal_if_alive(role, Signal::KILL),
            Self::StopProcess(node, role) => cluster.volumes.nodes[node].signal_if_alive(role, Signal::STOP),
            Self::CutLink(node) => network.cut_link(node),
            Self::SlowLink(node, rate) => network.limit_rate(node, rate),
            Self::KillEtcd(member) => cluster.etcd.kill(member).unwrap(),
            Self::StopEtcd(member) => cluster.etcd.signal(member, Signal::STOP).unwrap(),
        }
    }

    /// Ends the fault, except that a killed node stays dead.
    fn end(self, cluster: &mut EtcdCluster, network: &TestNetwork) {
        match self {
            Self::KillNode(_) | Self::KillProcess(..) => {}
            Self::StopProcess(node, role) => cluster.volumes.nodes[node].signal_if_alive(role, Signal::CONT),
            Self::CutLink(node) => network.restore_link(node),
            Self::SlowLink(node, _) => network.remove_rate_limit(node),
            Self::KillEtcd(member) => cluster.etcd.restart(member).unwrap(),
            Self::StopEtcd(member) => cluster.etcd.signal(member, Signal::CONT).unwrap(),
        }
    }

    /// The node that is killed.
    fn killed_node(self) -> Option<usize> {
        if let Self::KillNode(node) = self { Some(node) } else { None }
    }
}

/// Chooses faults that can be active at the same time.
fn choose_faults(random: &mut Rng) -> Vec<InjectedFault> {
    let mut faults: Vec<InjectedFault> = Vec::new();
    for _ in 0..random.usize(1..=FAULTS_PER_ROUND_MAX) {
        let fault = InjectedFault::random(random);
        if !faults.iter().any(|other| other.excludes(fault)) {
            faults.push(fault);
        }
    }
    faults
}

/// Begins and ends the faults at random times. Then starts the killed nodes, and waits until all nodes have the volume.
fn inject(faults: &[InjectedFault], cluster: &mut EtcdCluster, network: &TestNetwork, random: &mut Rng) {
    let sleep = |limit, random: &mut Rng| thread::sleep(Duration::from_millis(random.u64(..limit)));
    for fault in faults {
        sleep(FAULT_GAP_MS, random);
        fault.begin(cluster, network);
    }
    let mut ends = faults.to_vec();
    random.shuffle(&mut ends);
    for fault in ends {
        sleep(FAULT_MS, random);
        fault.end(cluster, network);
    }
    let killed: Vec<usize> = faults.iter().filter_map(|fault| fault.killed_node()).collect();
    killed.iter().for_each(|node| cluster.volumes.nodes[*node].start_processes());
    let nodes = &mut cluster.volumes.nodes;
    for node in &*nodes {
        node.wait_for("the chain has all replicas", || {
            node.try_status().is_ok_and(|status| status.record.chain.len() == THREE_NODES.len())
        });
    }
    killed.iter().for_each(|node| nodes[*node].mount());
    nodes.iter().for_each(|node| node.wait_until_mounted());
}

/// Opens a file on a mounted volume. Otherwise, the path would lead to the directory below the mount.
fn open_on_volume(root: &Path, name: &str, flags: OFlags) -> io::Result<File> {
    let directory = File::open(root)?;
    if fstatfs(&directory)?.f_type != FUSE_SUPER_MAGIC {
        return Err(io::Error::other("the volume is not mounted"));
    }
    Ok(File::from(openat(&directory, name, flags, Mode::RUSR | Mode::WUSR)?))
}

fn write_value(root: &Path, name: &str, value: u64) -> io::Result<()> {
    let file = open_on_volume(root, name, OFlags::CREATE | OFlags::WRONLY)?;
    file.write_all_at(&value.to_ne_bytes().repeat(COPIES), 0)?;
    file.sync_all()
}

fn read_value(root: &Path, name: &str) -> io::Result<u64> {
    let file = match open_on_volume(root, name, OFlags::RDONLY) {
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(INITIAL),
        opened => opened?,
    };
    let mut bytes = [0; COPIES * VALUE_BYTES];
    // A file that was created and not written yet is empty.
    let length = file.read_at(&mut bytes, 0)?;
    let mut values = bytes[..length].chunks(VALUE_BYTES).map(|value| u64::from_ne_bytes(value.try_into().unwrap()));
    let value = values.next().unwrap_or(INITIAL);
    assert!(values.all(|other| other == value), "{name} has parts of two writes");
    Ok(value)
}

/// The operations of all programs in a round.
struct Round {
    number: u64,
    origin: Instant,
    must_stop: AtomicBool,
    next_value: AtomicU64,
    /// The operations on each file.
    histories: [Mutex<Vec<FileOperation>>; FILES],
    /// The number of operations of each program that have succeeded.
    succeeded: Vec<AtomicU64>,
}

impl Round {
    fn new(number: u64) -> Self {
        Self {
            number,
            origin: Instant::now(),
            must_stop: AtomicBool::new(false),
            next_value: AtomicU64::new(INITIAL + 1),
            histories: Default::default(),
            succeeded: (0..THREE_NODES.len() * PROGRAMS_PER_NODE).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Nanoseconds since the begin of the round, never 0.
    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64 + 1
    }

    /// Reads or writes a file once. Returns whether the operation succeeded.
    fn operate(&self, node: usize, root: &Path, file: usize, is_write: bool) -> bool {
        let name = format!("{}-{file}", self.number);
        let begin = self.now();
        let value = self.next_value.fetch_add(1, Ordering::Relaxed);
        let result = if is_write { write_value(root, &name, value).map(|()| value) } else { read_value(root, &name) };
        let (end, has_failed) = (self.now(), result.is_err());
        if is_write || !has_failed {
            let value = result.unwrap_or(value);
            self.histories[file].lock().unwrap().push(FileOperation { node, is_write, has_failed, value, begin, end });
        }
        !has_failed
    }

    fn run_program(&self, index: usize, root: &Path, mut random: Rng) {
        while !self.must_stop.load(Ordering::Relaxed) {
            if self.operate(index / PROGRAMS_PER_NODE, root, random.usize(..FILES), random.bool()) {
                self.succeeded[index].fetch_add(1, Ordering::Relaxed);
            } else {
                // The client is being replaced, or the node is dead.
                thread::sleep(RETRY_WAIT);
            }
        }
    }

    /// Waits until each program has worked after the last fault.
    fn wait_for_programs(&self, cluster: &EtcdCluster) {
        let before: Vec<u64> = self.succeeded.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        for (index, (count, before)) in self.succeeded.iter().zip(before).enumerate() {
            cluster.volumes.nodes[index / PROGRAMS_PER_NODE].wait_for("its programs continue", || {
                count.load(Ordering::Relaxed) >= before + OPERATIONS_AFTER_FAULTS
            });
        }
    }
}

fn run_rounds(rounds: u64) {
    let network = TestNetwork::start(THREE_NODES.len() as u8);
    let mut cluster = EtcdCluster::networked(&network, DETECTION_MS);
    let seed = std::env::var("FARFORK_FAULT_SEED").map_or(72, |seed| seed.parse().expect("a number"));
    let (mut random, mut operations) = (Rng::with_seed(seed), 0);
    let roots = [0, 1, 2].map(|node| cluster.volumes.path(node));
    for number in 0..rounds {
        let (round, faults) = (Round::new(number), choose_faults(&mut random));
        println!("round {number}: {faults:?}");
        thread::scope(|scope| {
            let _stop = SetOnDrop(&round.must_stop);
            for index in 0..round.succeeded.len() {
                let (round, random, root) = (&round, random.fork(), &roots[index / PROGRAMS_PER_NODE]);
                scope.spawn(move || round.run_program(index, root, random));
            }
            inject(&faults, &mut cluster, &network, &mut random);
            round.wait_for_programs(&cluster);
        });
        for file in 0..FILES {
            for (node, root) in roots.iter().enumerate() {
                assert!(
                    round.operate(node, root, file, false),
                    "round {number}: file {file} cannot be read at the end"
                );
            }
            let history = round.histories[file].lock().unwrap();
            operations += history.len();
            check_linearizable(&history).unwrap_or_else(|reason| {
                panic!("round {number}, file {file}, after {faults:?}: {reason}: {history:#?}");
            });
        }
        println!("round {number}: linearizable after {:.1?}", round.origin.elapsed());
        cluster.volumes.published_tree();
    }
    println!("{rounds} rounds, {operations} operations");
}
