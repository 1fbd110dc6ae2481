//! Signals to programs whose calls wait for a replica that is stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use farfork_sys::pidfd;
use farfork_sys::process::{ProcStatus, SystemCall};
use farfork_volume::process::ProcessRole;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use super::mounted_volume::LOG_BYTES;
use super::real_programs::ProcessMain;
use super::test_node::process_command;
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_program_that_waits_for_a_replica_can_be_killed", a_program_that_waits_for_a_replica_can_be_killed),
    ("a_signal_with_a_handler_does_not_end_fsync", a_signal_with_a_handler_does_not_end_fsync),
];

pub(crate) const PROCESSES: &[(&str, ProcessMain)] = &[("waiting-call", run_waiting_call)];

const WRITER: usize = 0;
const READER: usize = 1;
/// The node whose offload process is stopped.
const STOPPED: usize = 2;

/// A call that a program makes after it has opened a file.
#[derive(Clone, Copy, Debug)]
struct WaitingCall {
    name: &'static str,
    node: usize,
    /// The number of the system call, <asm/unistd_64.h>.
    number: u64,
}

/// The content of each file.
const DATA: &[u8] = b"replicated";

const CALLS: [WaitingCall; 6] = [
    WaitingCall { name: "fsync", node: WRITER, number: 74 },
    // In `WaitingOperations`: the log is full, and another client has the write permission.
    WaitingCall { name: "write", node: WRITER, number: 1 },
    WaitingCall { name: "ftruncate", node: READER, number: 77 },
    WaitingCall { name: "open", node: READER, number: 257 },
    WaitingCall { name: "opendir", node: READER, number: 257 },
    WaitingCall { name: "lookup", node: READER, number: 332 },
];

/// Opens a file, waits for a line, and makes one call.
fn run_waiting_call(arguments: &[String]) {
    let (path, call) = (Path::new(&arguments[0]), arguments[1].as_str());
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    println!("ready");
    std::io::stdin().lines().next().unwrap().unwrap();
    let result = match call {
        "fsync" => file.sync_all(),
        "write" => (0..=LOG_BYTES >> 20).try_for_each(|_| file.write_all(&vec![1; 1 << 20])),
        "ftruncate" => file.set_len(0),
        "open" => File::open(path).map(drop),
        "opendir" => fs::read_dir(path.parent().unwrap()).map(drop),
        _ => fs::metadata(path.with_file_name("absent")).map(drop),
    };
    println!("{result:?}");
}

/// A program that is in a system call.
struct WaitingProgram(Child);

impl WaitingProgram {
    /// Starts a program that prints a line when it has opened a file.
    fn start(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(process)
    }

    /// Makes the program call, and waits until it sleeps in the call.
    fn make_call(&mut self, cluster: &VolumeCluster, number: u64) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        cluster.nodes[WRITER].wait_for("the program waits", || {
            let call = SystemCall::read(self.id()).unwrap();
            call.is_some_and(|call| call.number == number)
        });
    }

    fn signal(&self, signal: Signal) {
        pidfd::send_signal(&pidfd::open(self.id()).unwrap(), signal.as_raw()).unwrap();
    }

    fn wait_for_end(&mut self, cluster: &VolumeCluster) -> ExitStatus {
        let mut status = None;
        cluster.nodes[WRITER].wait_for("the program has ended", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn id(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

/// Continues the stopped replica, also if the test fails: otherwise the programs of the test would not end.
struct StoppedReplica<'a>(&'a VolumeCluster);

impl<'a> StoppedReplica<'a> {
    fn stop(cluster: &'a VolumeCluster) -> Self {
        cluster.nodes[STOPPED].signal(&[ProcessRole::Offload], Signal::STOP);
        Self(cluster)
    }
}

impl Drop for StoppedReplica<'_> {
    fn drop(&mut self) {
        self.0.nodes[STOPPED].signal(&[ProcessRole::Offload], Signal::CONT);
    }
}

/// Creates a file for each call. Each replica has them.
fn create_files(cluster: &VolumeCluster) {
    for call in CALLS {
        fs::write(file_path(cluster, WRITER, call), DATA).unwrap();
    }
    cluster.nodes[WRITER].sync();
}

fn file_path(cluster: &VolumeCluster, node: usize, call: WaitingCall) -> PathBuf {
    cluster.path(node).join(call.name)
}

/// Each program opens its file before the replica stops. All other nodes wait for what the writer logs afterwards.
fn a_program_that_waits_for_a_replica_can_be_killed() {
    let cluster = VolumeCluster::three_replicas();
    create_files(&cluster);
    // SIGTERM has its default action: SIGKILL is pending for the program, too. The kernel does not do that for SIGQUIT.
    let signals = [(CALLS[0], Signal::TERM), (CALLS[0], Signal::QUIT)];
    let programs = signals.into_iter().chain(CALLS.map(|call| (call, Signal::KILL)));
    let mut programs: Vec<_> = programs
        .map(|(call, signal)| {
            let process = process_command("waiting-call");
            // A shell starts programs in the background with an ignored SIGQUIT.
            let mut command = Command::new("env");
            command.arg("--default-signal=QUIT").arg(process.get_program()).args(process.get_args());
            command.arg(file_path(&cluster, call.node, call)).arg(call.name);
            (WaitingProgram::start(command), call, signal)
        })
        .collect();
    let mut changed = OpenOptions::new().append(true).open(file_path(&cluster, WRITER, CALLS[0])).unwrap();
    {
        let _stopped = StoppedReplica::stop(&cluster);
        changed.write_all(b", waiting").unwrap();
        for (program, call, signal) in &mut programs {
            program.make_call(&cluster, call.number);
            let killed_at = Instant::now();
            program.signal(*signal);
            assert_eq!(program.wait_for_end(&cluster).signal(), Some(signal.as_raw()), "{call:?}");
            println!("{}: {signal:?} ends the program in {:.2} s", call.name, killed_at.elapsed().as_secs_f64());
        }
    }
    // The call of a killed program is not executed later.
    cluster.published_tree();
    assert_eq!(fs::read(file_path(&cluster, READER, CALLS[2])).unwrap(), DATA);
}

/// The first program has a handler without SA_RESTART. PostgreSQL, for example, ends all its processes if fsync(2) fails.
fn a_signal_with_a_handler_does_not_end_fsync() {
    // Perl does not repeat a call after EINTR.
    const SYNC: &str = r#"
        use IO::Handle; $| = 1; $SIG{ALRM} = sub { print "handled\n" };
        open(my $file, "+<", $ARGV[0]) or die; print "ready\n"; <STDIN>;
        print $file->sync ? "synced\n" : "$!\n";
    "#;
    let cluster = VolumeCluster::three_replicas();
    create_files(&cluster);
    // The kernel locks a file during fsync(2). A program that waits for this lock cannot be killed.
    let [mut signalled, mut killed] = [CALLS[0], CALLS[1]].map(|file| {
        let mut command = Command::new("perl");
        command.args(["-e", SYNC]).arg(file_path(&cluster, WRITER, file));
        WaitingProgram::start(command)
    });
    let changed = file_path(&cluster, WRITER, CALLS[2]);
    {
        let _stopped = StoppedReplica::stop(&cluster);
        OpenOptions::new().append(true).open(changed).unwrap().write_all(b", waiting").unwrap();
        for program in [&mut signalled, &mut killed] {
            program.make_call(&cluster, CALLS[0].number);
        }
        signalled.signal(Signal::ALARM);
        // The client has handled the interrupt of the first program when the second one ends.
        killed.signal(Signal::KILL);
        assert_eq!(killed.wait_for_end(&cluster).signal(), Some(Signal::KILL.as_raw()));
        let status = ProcStatus::read(signalled.id()).unwrap();
        assert_ne!(status.signals_pending & 1 << (Signal::ALARM.as_raw() - 1), 0, "the call waits with the signal");
    }
    assert!(signalled.wait_for_end(&cluster).success());
    let mut output = String::new();
    signalled.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert_eq!(output, "handled\nsynced\n");
}
