//! Kills the capturing process before a call that changes the parent, for each such call of a capture: with its tracer, and
//! without. At each moment of the pause, the parent must be able to resume unchanged.

use std::env;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_fork::capture::{self, CaptureOptions};
use farfork_sys::process::{self, ProcStatus};
use farfork_sys::ptrace::{self, TraceeEvent, WaitMode};
use rustix::process::{Pid, Signal};

use crate::harness::{Parent, WAIT_LIMIT, offer, options};

/// Environment variables of the victim: the parent, and the address of the pages that it offers (empty for none).
const PARENT: &str = "FARFORK_TEST_PARENT";
const PAGES: &str = "FARFORK_TEST_PAGES";

/// Number of ranges that the parent excludes from fork(2), so that the script of the second clone is long.
const PLACES: usize = 60;

/// PTRACE_O_TRACECLONE and PTRACE_O_TRACEVFORK: new threads and companions of a tracee are traced too.
const OPTIONS_TRACE_BORN: usize = 1 << 3 | 1 << 2;
const SYSCALL_STOP: i32 = 5 | 0x80;
const SIGCHLD: i32 = 17;

/// The victim: captures once, when it reads a byte. The tests below start it. It tests nothing by itself.
#[test]
#[ignore = "the victim of other tests"]
fn captures_once() {
    let Some(pid) = env::var(PARENT).ok().and_then(|pid| pid.parse().ok()) else { return };
    let pages = env::var(PAGES).ok().and_then(|start| start.parse().ok());
    std::io::stdin().read_exact(&mut [0]).unwrap();
    capture::capture_blocking(pid, CaptureOptions { offered_pages: pages.map(offer), ..options() }).unwrap();
}

/// Which processes are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    /// The capturing process and its tracer.
    All,
    /// The capturing process. Its tracer continues.
    Owner,
}

#[test]
fn a_parent_is_unharmed_wherever_its_capture_ends() {
    end_within_each_call(Killed::All, false);
}

#[test]
fn a_parent_that_offers_pages_is_unharmed_wherever_its_capture_ends() {
    end_within_each_call(Killed::All, true);
}

#[test]
fn a_tracer_detaches_whenever_its_owner_is_killed() {
    end_within_each_call(Killed::Owner, false);
}

fn end_within_each_call(killed: Killed, offers: bool) {
    let mut parent = Parent::start("threads", &["quiet", "4", "tolerant"]);
    let pages = if offers { parent.reported("pages").to_string() } else { String::new() };
    let whole = Wholeness::of(parent.pid());
    assert_eq!(whole.kept_from_fork, PLACES);
    let count = end_before(usize::MAX, killed, &mut parent, &pages);
    assert!(count > 50, "a capture changes more than {count} things");
    // In descending order: changes that an early end leaves on the offered pages must not help a later capture.
    for calls in (0..count).rev() {
        end_before(calls, killed, &mut parent, &pages);
        whole.require(parent.pid(), calls);
        // A report of the parent takes a while.
        if calls % 16 == 0 {
            parent.wait_for("round");
        }
    }
    parent.wait_for("round");
    parent.capture().unwrap();
}

//  this test ── traces ──▶ the victim ──▶ its tracer ── captures ──▶ the parent
//              counts the tracer's calls of ptrace(2) and its writes to memory; SIGKILL before the one it is at
/// Starts a victim that captures the parent, and kills it after `calls` calls, before the next one. Returns how many calls
/// it made.
fn end_before(calls: usize, killed: Killed, parent: &mut Parent, pages: &str) -> usize {
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "killed_within_calls::captures_once"])
        .env(PARENT, parent.pid().to_string())
        .env(PAGES, pages)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = victim.id() as i32;
    seize_all(pid);
    victim.stdin.take().unwrap().write_all(b"!").unwrap();
    let made = follow(pid, parent.pid(), calls, killed).unwrap_or_else(|| {
        let end = parent.say_how_it_ended();
        panic!("the parent ended before call {calls} (killed: {killed:?}): {end}");
    });
    // Reaps the victim. Its end is also reported to this process as its tracer.
    let _ = victim.wait();
    made
}

/// Seizes all threads of the victim, when it reads its standard input. Threads that it creates later are traced from the
/// start.
fn seize_all(pid: i32) {
    let started_at = Instant::now();
    let reads = |tid: &i32| {
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        call.starts_with("0 0x0 ")
    };
    while !process::thread_ids(pid).unwrap().iter().any(reads) {
        assert!(started_at.elapsed() < WAIT_LIMIT, "the victim never waits");
        thread::sleep(Duration::from_millis(1));
    }
    for tid in process::thread_ids(pid).unwrap() {
        ptrace::seize(tid, ptrace::OPTION_TRACE_SYSCALL_GOOD | OPTIONS_TRACE_BORN).unwrap();
    }
}

/// Counts the calls of the victim and its tracer; `None` if the parent has ended.
fn follow(victim: i32, parent: i32, calls: usize, killed: Killed) -> Option<usize> {
    let (mut made, mut tracer) = (0, None);
    let mut is_owner_there = true;
    loop {
        let Some((tid, report)) = ptrace::wait_any(WaitMode::Block).unwrap() else { continue };
        match report {
            TraceeEvent::Ended if tid == parent => return None,
            TraceeEvent::Ended if tid == victim => {
                is_owner_there = false;
                let _ = ptrace::reap(tid);
            }
            TraceeEvent::Ended => {
                let _ = ptrace::reap(tid);
                tracer = tracer.filter(|tracer| *tracer != tid);
            }
            TraceeEvent::Stopped { signal: SYSCALL_STOP, .. } => {
                let changes = is_change(tid);
                if changes {
                    tracer = Some(tid);
                }
                if changes && made == calls {
                    kill(victim);
                    if killed == Killed::All {
                        kill(tid);
                        continue;
                    }
                }
                made += usize::from(changes);
                drop(ptrace::resume_to_syscall(tid));
            }
            // The start of a thread or process, or SIGCHLD, which reports the parent's stops to the tracer.
            TraceeEvent::Stopped { event, signal } if event != 0 || signal == SIGCHLD => {
                drop(ptrace::resume_to_syscall(tid));
            }
            TraceeEvent::Stopped { signal, .. } => drop(ptrace::resume(tid, signal)),
        }
        if !is_owner_there && tracer.is_none() {
            return Some(made);
        }
    }
}

fn kill(pid: i32) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Whether a thread at a system-call stop is about to change a tracee.
fn is_change(tid: i32) -> bool {
    const PTRACE: u64 = 101;
    const PWRITE: u64 = 18;
    /// CONT, DETACH, SYSCALL; SETOPTIONS, SETREGSET, SEIZE, INTERRUPT, SETSIGMASK.
    const REQUESTS: [u64; 8] = [7, 17, 24, 0x4200, 0x4205, 0x4206, 0x4207, 0x420b];
    const NOT_MADE_YET: u64 = (rustix::io::Errno::NOSYS.raw_os_error() as u64).wrapping_neg();
    let Ok(Some(registers)) = ptrace::read_registers(tid) else { return false };
    let is_entry = registers.rax == NOT_MADE_YET;
    is_entry && (registers.orig_rax == PWRITE || registers.orig_rax == PTRACE && REQUESTS.contains(&registers.rdi))
}

/// State of the parent in /proc that no capture may change permanently.
struct Wholeness {
    /// Blocked signals of each thread, by thread id.
    masks: Vec<(i32, u64)>,
    kept_from_fork: usize,
}

impl Wholeness {
    fn of(pid: i32) -> Self {
        let mask = |tid: i32| (tid, ProcStatus::read(tid).map_or(0, |status| status.signals_blocked));
        let masks = process::thread_ids(pid).expect("the parent lives").into_iter().map(mask).collect();
        let areas = process::read_smaps(pid).expect("the parent lives");
        Self { masks, kept_from_fork: areas.iter().filter(|area| area.has_flag("dc")).count() }
    }

    /// Waits until the parent has its original state again. A script that has started ends by itself.
    fn require(&self, pid: i32, calls: usize) {
        let started_at = Instant::now();
        loop {
            let now = Self::of(pid);
            if (&now.masks, now.kept_from_fork) == (&self.masks, self.kept_from_fork) {
                return;
            }
            assert!(
                started_at.elapsed() < WAIT_LIMIT,
                "before call {calls}: {:?}, {} places kept",
                now.masks,
                now.kept_from_fork
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}
