//! The test bed of the scenarios: a pager in a run directory, programs that it pages, and limits on all waits.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork_fork::pager::{MemoryPlan, PagerClient, PagerConfig, PagerStats};
use farfork_sys::{fd_passing, pidfd};
use farfork_wire::{ChildId, NodeName};
use tempfile::TempDir;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The environment variable that makes this executable a pager; its value is the run directory.
pub(crate) const PAGER_RUN_DIR: &str = "FARFORK_TEST_PAGER_RUN_DIR";

/// Limit for events that take milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(60);

/// Limit for the whole run of a program.
const PROGRAM_LIMIT: Duration = Duration::from_secs(180);

/// Runs this process as the pager of a bed.
pub(crate) fn be_pager(run_dir: PathBuf) {
    // Log only what RUST_LOG selects: the scenarios make the pager log many errors.
    let filter: Targets = std::env::var("RUST_LOG").ok().and_then(|filter| filter.parse().ok()).unwrap_or_default();
    let logged = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(logged).with(filter).init();
    farfork_fork::pager::run(&PagerConfig { run_dir, credentials: None }).expect("the pager runs");
}

/// Calls `look` until it returns a value. Fails after [`SOON`].
pub(crate) fn soon<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {SOON:?}");
        sleep(Duration::from_millis(2));
    }
}

/// A pager with its keeper, killed when the bed is dropped.
pub(crate) struct Bed {
    pub(crate) dir: TempDir,
    pub(crate) client: PagerClient,
    first_keeper: Child,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let client = PagerClient::new(dir.path());
        let first_keeper = spawn_keeper(dir.path());
        client.list_children().expect("the pager answers");
        Self { dir, client, first_keeper }
    }

    /// Starts a keeper and a pager after the previous ones were killed.
    pub(crate) fn start_pager(&mut self) {
        self.first_keeper = spawn_keeper(self.dir.path());
        self.client.list_children().expect("the pager answers");
    }

    /// Returns the pids of the keeper and the pager.
    pub(crate) fn processes(&self) -> (i32, i32) {
        soon("a keeper with a pager", || {
            let mut ours = processes_of(self.dir.path());
            ours.retain(|pid| !is_zombie(*pid));
            let pager_of = |keeper: &i32| ours.iter().find(|pid| parent(**pid) == Some(*keeper)).copied();
            ours.iter().find_map(|keeper| Some((*keeper, pager_of(keeper)?)))
        })
    }

    pub(crate) fn kill_pager(&self) {
        kill(self.processes().1);
    }

    pub(crate) fn kill_keeper(&mut self) {
        let (keeper, _) = self.processes();
        kill(keeper);
        if keeper == self.first_keeper.id() as i32 {
            self.first_keeper.wait().unwrap();
        }
    }

    /// Returns the pid of the holder.
    pub(crate) fn holder(&self) -> i32 {
        let (keeper, pager) = self.processes();
        soon("a holder", || {
            let mut ours = processes_of(self.dir.path()).into_iter();
            ours.find(|pid| ![keeper, pager].contains(pid) && is_holder(*pid) && !is_zombie(*pid))
        })
    }

    /// Kills keeper and pager together, so that neither can replace the other.
    pub(crate) fn kill_both(&mut self) {
        let (keeper, pager) = self.processes();
        self.kill_together(&[keeper, pager]);
    }

    /// Kills keeper, pager and holder together.
    pub(crate) fn kill_all(&mut self) {
        let ((keeper, pager), holder) = (self.processes(), self.holder());
        self.kill_together(&[keeper, pager, holder]);
    }

    /// Kills some of keeper, pager and holder together, so that none of them notices the end of another.
    pub(crate) fn kill_together(&mut self, pids: &[i32]) {
        let processes: Vec<OwnedFd> = pids.iter().filter_map(|pid| pidfd::open(*pid).ok()).collect();
        for signal in [19, 9] {
            processes.iter().for_each(|process| drop(pidfd::send_signal(process, signal)));
        }
        for process in &processes {
            assert!(pidfd::wait_exit(process, SOON).unwrap(), "it ends");
        }
        if pids.contains(&(self.first_keeper.id() as i32)) {
            self.first_keeper.wait().unwrap();
        }
    }

    /// Returns the number of userfaultfds that the pager holds.
    pub(crate) fn userfaultfds(&self) -> usize {
        self.descriptors().iter().filter(|link| link.contains("userfaultfd")).count()
    }

    /// Returns the targets of the links in /proc/PID/fd for the shared descriptor table.
    pub(crate) fn descriptors(&self) -> Vec<String> {
        let (keeper, _) = self.processes();
        let entries = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
        let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.map(|link| link.display().to_string()).collect()
    }

    /// Starts a program with this plan, after the pager has adopted it.
    pub(crate) fn start(&self, scenario: &str, pages: u64, plan: &MemoryPlan) -> Program {
        Program::begin(scenario, pages, self.adopt(plan))
    }

    /// Makes the pager adopt a child, without starting its program.
    pub(crate) fn adopt(&self, plan: &MemoryPlan) -> AdoptedProgram {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let id = ChildId::new(NodeName::new("n2").unwrap(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = self.dir.path().join(id.to_string());
        fs::create_dir(&dir).unwrap();
        plan.write(&dir).unwrap();
        if plan.is_zygote {
            MemoryPlan { is_zygote: false, ..plan.clone() }.write_for_copies(&dir).unwrap();
        }
        let (pagers_end, programs_end) = fd_passing::seqpacket_pair().unwrap();
        self.client.adopt(&id, &dir, pagers_end).unwrap();
        AdoptedProgram { id, dir, uffd_socket: programs_end }
    }

    pub(crate) fn stats(&self, program: &Program) -> PagerStats {
        self.client.stats(&program.id).unwrap()
    }

    /// Waits until a program has succeeded, and checks that the pager keeps no state of it.
    pub(crate) fn finish(&self, mut program: Program) {
        program.expect_success();
        let id = program.id.clone();
        drop(program);
        self.client.release(&id).unwrap();
        assert!(!self.client.list_children().unwrap().contains(&id));
    }

    /// Stops the pager, and checks that no userfaultfd and no process is left.
    pub(crate) fn end(self) {
        assert_eq!(self.client.list_children().unwrap(), []);
        // If a pager was killed while it closed a userfaultfd, the next pager closes it in a periodic task.
        soon("all userfaultfds are closed", || (self.userfaultfds() == 0).then_some(()));
        self.client.stop(SOON).unwrap();
        self.expect_end();
    }

    /// Waits until the pager and its keeper have ended.
    pub(crate) fn expect_end(mut self) {
        soon("the end of the first keeper", || self.first_keeper.try_wait().unwrap());
        soon("the end of the pager", || processes_of(self.dir.path()).is_empty().then_some(()));
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Processes are left only if a scenario has failed. A killed process may have started another before its end.
        while let Some(pid) = processes_of(self.dir.path()).into_iter().find(|pid| !is_zombie(*pid)) {
            kill(pid);
        }
        let _ = self.first_keeper.wait();
    }
}

/// A program that the pager has adopted, and that is not yet started.
pub(crate) struct AdoptedProgram {
    pub(crate) id: ChildId,
    pub(crate) dir: PathBuf,
    /// The socket on which the program must send its userfaultfd.
    pub(crate) uffd_socket: OwnedFd,
}

/// A program with paged memory, killed on drop.
pub(crate) struct Program {
    pub(crate) id: ChildId,
    pub(crate) dir: PathBuf,
    pub(crate) process: Child,
    channel: UnixStream,
    /// Whether the program was killed, or its exit was checked.
    done: bool,
}

impl Program {
    /// Starts an adopted program.
    pub(crate) fn begin(scenario: &str, pages: u64, adopted: AdoptedProgram) -> Self {
        let AdoptedProgram { id, dir, uffd_socket } = adopted;
        let (channel, programs_channel) = UnixStream::pair().unwrap();
        channel.set_read_timeout(Some(PROGRAM_LIMIT)).unwrap();
        let process = Command::new(program())
            .args([scenario, &pages.to_string()])
            .stdin(Stdio::from(uffd_socket))
            .stdout(Stdio::from(OwnedFd::from(programs_channel)))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { id, dir, process, channel, done: false }
    }

    /// Sends an order to the program (`obey` in `program.c`).
    pub(crate) fn order(&mut self, what: char, page: u64) {
        self.channel.write_all(&(u64::from(u32::from(what)) << 56 | page).to_le_bytes()).unwrap();
    }

    /// Returns a descriptor that is readable when the program has replied to an order.
    pub(crate) fn answers(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Waits for the program's reply to an order.
    pub(crate) fn answer(&mut self) -> u8 {
        let mut byte = [0];
        if self.channel.read_exact(&mut byte).is_err() {
            self.expect_success();
            panic!("the program ended too soon");
        }
        byte[0]
    }

    /// Waits until the program has reached its rendezvous.
    pub(crate) fn meet(&mut self) {
        let mut byte = [0];
        self.channel.read_exact(&mut byte).expect("the program reaches its rendezvous");
        assert_eq!(&byte, b"+");
    }

    /// Lets the program continue from its rendezvous.
    pub(crate) fn let_go(&mut self) {
        self.channel.write_all(b"-").unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Kills a program that would run forever.
    pub(crate) fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.done = true;
    }

    /// Waits for the program's end, and checks that it succeeded.
    pub(crate) fn expect_success(&mut self) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let deadline = Instant::now() + PROGRAM_LIMIT;
        while !self.has_ended() {
            assert!(
                Instant::now() < deadline,
                "the program did not end within {PROGRAM_LIMIT:?}: a thread waits for ever"
            );
            sleep(Duration::from_millis(2));
        }
        let mut errors = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}: {errors}");
    }

    /// Waits until a signal ends the program. Returns the signal.
    pub(crate) fn expect_signal(&mut self) -> i32 {
        let status = soon("the end by a signal", || self.process.try_wait().unwrap());
        self.done = true;
        status.signal().unwrap_or_else(|| panic!("{status}"))
    }

    /// Returns the output of the program.
    pub(crate) fn output(&mut self) -> String {
        let mut text = String::new();
        self.channel.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A control group with little memory, removed on drop.
pub(crate) struct MemoryLimit {
    dir: PathBuf,
}

impl MemoryLimit {
    pub(crate) fn new(bytes: u64) -> Self {
        let name = format!("farfork-test-{}", std::process::id());
        let (root, file) = match Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false => ("/sys/fs/cgroup", "memory.max"),
        };
        let dir = Path::new(root).join(name);
        fs::create_dir(&dir).expect("control groups can be made");
        fs::write(dir.join(file), bytes.to_string()).expect("the memory controller is there");
        Self { dir }
    }

    pub(crate) fn enclose(&self, program: &Program) {
        fs::write(self.dir.join("cgroup.procs"), program.process.id().to_string()).unwrap();
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

fn spawn_keeper(run_dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PAGER_RUN_DIR, run_dir).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Kills a process that this test started, and waits for its end.
pub(crate) fn kill(pid: i32) {
    if let Ok(process) = pidfd::open(pid) {
        let _ = pidfd::send_signal(&process, 9);
        assert!(pidfd::wait_exit(&process, SOON).unwrap(), "process {pid} ends");
    }
}

/// Returns the processes that were started as pagers of this run directory.
fn processes_of(run_dir: &Path) -> Vec<i32> {
    let wanted = format!("{PAGER_RUN_DIR}={}", run_dir.display());
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    })
    .collect()
}

/// Whether the process has the name of a holder in /proc/PID/comm.
fn is_holder(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "farfork-holder")
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("State:\tZ"))
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Compiles `program.c` at the first call. Returns the path of the executable.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pager-program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pager/program.c");
        // -Wno-array-bounds: the area grows, so the program reads beyond the size that the compiler knows.
        let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-array-bounds", "-pthread"];
        let status = Command::new("gcc").args(flags).arg("-o").arg(&path).arg(source).status();
        assert!(status.expect("gcc is installed").success(), "program.c is compiled");
        path
    })
}
