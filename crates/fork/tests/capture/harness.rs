//! Parents for the tests: compiles and starts them, reads what they report, and inspects them from outside.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_fork::capture::{self, CaptureError, CaptureOptions, CapturedTree, OfferedPages};
use farfork_wire::NodeName;
use farfork_wire::descriptor::{Descriptor, Mapping};

/// Limit for an action of a parent.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A running parent; killed when dropped.
pub(crate) struct Parent {
    child: Child,
    lines: Receiver<String>,
    reported: HashMap<String, u64>,
}

/// Compiles a program of this folder, once.
fn compile(name: &str) -> PathBuf {
    static COMPILED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capture-{name}"));
    if !compiled.iter().any(|done| done == name) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/capture/programs/{name}.c"));
        let gcc = Command::new("gcc")
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-o"])
            .args([&program, &source])
            .status();
        assert!(gcc.expect("gcc is needed to compile the parents").success());
        compiled.push(name.to_owned());
    }
    program
}

impl Parent {
    /// Starts a program of this folder and waits until it is ready.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Self {
        Self::start_program(&compile(name), arguments)
    }

    /// Copies a program of this folder into a directory, starts the copy at once and waits until it is ready.
    pub(crate) fn start_new_copy(name: &str, arguments: &[&str], directory: &Path) -> Self {
        let copy = directory.join(name);
        // Another process makes the copy, because processes of other tests would inherit a descriptor that this
        // process opens for writing.
        let status = Command::new("cp").arg("--remove-destination").arg(compile(name)).arg(&copy).status();
        assert!(status.expect("cp(1) starts").success());
        Self::start_program(&copy, arguments)
    }

    fn start_program(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the parent starts");
        let lines = read_lines(child.stdout.take().expect("its output is a pipe"));
        let mut parent = Self { child, lines, reported: HashMap::new() };
        parent.wait_for("ready");
        parent
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The value that the parent reported under a name.
    pub(crate) fn reported(&self, name: &str) -> u64 {
        *self.reported.get(name).unwrap_or_else(|| panic!("the parent did not report {name}"))
    }

    /// Waits for a line that begins with `word`. Returns the number after it.
    pub(crate) fn wait_for(&mut self, word: &str) -> u64 {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line {word} in time"));
            let (name, value) = line.split_once(' ').unwrap_or((&line, "0"));
            assert_ne!(name, "failed", "the parent was disturbed: {line}");
            let value = u64::from_str_radix(value, 16).unwrap_or(0);
            self.reported.insert(name.to_owned(), value);
            if name == word {
                return value;
            }
        }
    }

    /// Waits until the parent ends by itself. Returns its status and its last line.
    pub(crate) fn say_how_it_ended(&mut self) -> String {
        let status = self.child.wait().expect("it is our child");
        format!("{status}; {:?}", self.lines.iter().last())
    }

    /// Writes to the parent's standard input.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin: &mut ChildStdin = self.child.stdin.as_mut().expect("its input is a pipe");
        stdin.write_all(bytes).expect("the parent reads");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is our child");
    }

    pub(crate) fn capture(&self) -> Result<CapturedTree, CaptureError> {
        capture::capture_blocking(self.pid(), options())
    }

    /// The parent's state letter in /proc/PID/stat.
    pub(crate) fn state(&self) -> char {
        farfork_sys::process::ProcStat::read(self.pid()).expect("it lives").state
    }

    /// Waits until the parent is in a state.
    pub(crate) fn wait_state(&self, wanted: char) {
        let deadline = Instant::now() + WAIT_LIMIT;
        while self.state() != wanted {
            assert!(Instant::now() < deadline, "the parent is {}, not {wanted}", self.state());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

pub(crate) fn options() -> CaptureOptions {
    CaptureOptions::new(NodeName::new("here").expect("a name"))
}

/// Returns the offer of pages that a program has mapped at `start` (`offer` of `parent.h`).
pub(crate) fn offer(start: u64) -> OfferedPages {
    const PAGES_BYTES: u64 = 256 << 10;
    let mark = [0x6b72_616d_u64.to_ne_bytes(), start.to_ne_bytes()].concat();
    OfferedPages { pages: start..start + PAGES_BYTES, mark, pinned_thread: None }
}

/// Computes the word of known data for a page, as `known` of `parent.h` does.
pub(crate) fn known(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1)
}

/// Reads a word of a process's memory.
pub(crate) fn word(pid: i32, address: u64) -> u64 {
    let mut bytes = [0; 8];
    let read = farfork_sys::process_memory::read_process(pid, address, &mut bytes);
    assert_eq!(read.expect("it can be read"), 8);
    u64::from_ne_bytes(bytes)
}

/// The mapping that holds an address.
pub(crate) fn mapping_at(descriptor: &Descriptor, address: u64) -> &Mapping {
    let holds = |mapping: &&Mapping| mapping.start <= address && address < mapping.end;
    descriptor.mappings.iter().find(holds).unwrap_or_else(|| panic!("{address:#x} is not mapped"))
}

/// Children of a process, including zombies and children without an exit signal.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    use farfork_sys::process;
    let threads = process::thread_ids(pid).expect("it lives");
    threads.into_iter().flat_map(|tid| process::children_of_thread(pid, tid)).collect()
}

/// Whether a process exists, zombies included.
pub(crate) fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
