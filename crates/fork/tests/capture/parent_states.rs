//! Parents that cannot be stopped, or end: the error says why, within the limit, and the parent is unharmed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use farfork_fork::capture::{self, CaptureError, CaptureOptions, CapturedTree};
use farfork_sys::process::{ProcStat, ProcStatus};
use rustix::process::Signal;

use crate::harness::{Parent, WAIT_LIMIT, children, options};

#[test]
fn a_parent_in_vfork_is_refused() {
    let parent = Parent::start("stubborn", &["vfork"]);
    parent.wait_state('D');
    let error = parent.capture().unwrap_err();
    assert!(error.to_string().contains("vfork"), "{error}");
    for child in children(parent.pid()) {
        let _ = Command::new("kill").arg("-9").arg(child.to_string()).status();
    }
}

/// A parent in vfork(2) whose child makes progress is not refused, however long that takes on a busy machine.
#[test]
fn a_parent_in_vfork_is_captured_when_its_child_continues() {
    let parent = Parent::start("stubborn", &["vfork_busily"]);
    for _ in 0..3 {
        parent.wait_state('D');
        drop(parent.capture().unwrap());
    }
}

#[test]
fn a_parent_without_its_main_thread_is_refused() {
    let parent = Parent::start("stubborn", &["no_leader"]);
    let error = parent.capture().unwrap_err();
    assert!(error.to_string().contains("main thread has ended"), "{error}");
}

#[test]
fn zombies_and_ended_processes_are_refused() {
    let mut parent = Parent::start("stubborn", &["forever"]);
    let pid = parent.pid();
    Command::new("kill").arg("-9").arg(pid.to_string()).status().unwrap();
    parent.wait_state('Z');
    let error = parent.capture().unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    parent.kill();
    assert!(matches!(capture::capture_blocking(pid, options()), Err(CaptureError::ProcessGone { .. })));
}

#[test]
fn a_stopped_parent_is_captured_and_stays_stopped() {
    let mut parent = Parent::start("stubborn", &["stopped"]);
    parent.wait_state('T');
    drop(parent.capture().unwrap());
    parent.wait_state('T');
    Command::new("kill").arg("-CONT").arg(parent.pid().to_string()).status().unwrap();
    parent.wait_for("ready");
}

#[test]
fn a_parent_that_ignores_traps_continues_to_ignore_them() {
    let parent = Parent::start("stubborn", &["ignores_trap"]);
    for _ in 0..20 {
        drop(parent.capture().unwrap());
    }
    // The parent checks a thousand times a second, and would have ended if it had seen another disposition.
    thread::sleep(Duration::from_millis(50));
    parent.wait_state('S');
}

/// A control group of the v1 freezer, removed when dropped.
struct FreezerGroup(PathBuf);

impl FreezerGroup {
    /// `None` if the machine has no v1 freezer.
    fn with(pid: i32) -> Option<Self> {
        let directory = PathBuf::from(format!("/sys/fs/cgroup/freezer/farfork-test-{pid}"));
        fs::create_dir(&directory).ok()?;
        fs::write(directory.join("cgroup.procs"), pid.to_string()).unwrap();
        Some(Self(directory))
    }

    fn set(&self, state: &str) {
        fs::write(self.0.join("freezer.state"), state).unwrap();
        let deadline = Instant::now() + WAIT_LIMIT;
        while fs::read_to_string(self.0.join("freezer.state")).unwrap().trim() != state {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for FreezerGroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let procs = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            let _ = fs::write("/sys/fs/cgroup/freezer/cgroup.procs", pid);
        }
        // A task that is ending keeps the group busy for a short time.
        let deadline = Instant::now() + WAIT_LIMIT;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_frozen_parent_is_refused_and_thaws_unharmed() {
    let mut parent = Parent::start("refused", &["nothing"]);
    let group = FreezerGroup::with(parent.pid()).expect("this machine has a v1 freezer");
    group.set("FROZEN");
    // The error names the freezer, not a timeout.
    let error = parent.capture().unwrap_err();
    assert!(error.to_string().contains("frozen by the control group"), "{error}");
    group.set("THAWED");
    drop(parent.capture().unwrap());
    parent.write(b"still here\n");
    parent.wait_for("still");
}

#[test]
fn a_template_ends_while_its_parent_is_frozen() {
    let parent = Parent::start("threads", &[]);
    let captured = parent.capture().unwrap();
    let group = FreezerGroup::with(parent.pid()).expect("this machine has a v1 freezer");
    group.set("FROZEN");
    let started_at = Instant::now();
    drop(captured);
    assert!(started_at.elapsed() < WAIT_LIMIT, "{:?}", started_at.elapsed());
    group.set("THAWED");
}

/// Waits until a process has reaped its template.
fn wait_reaped(pid: i32, template: i32) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while children(pid).contains(&template) {
        assert!(Instant::now() < deadline, "template {template} is not reaped");
        thread::sleep(Duration::from_millis(5));
    }
}

/// On a busy machine, a killed template may run, and end, only after many seconds. Here the freezer delays it.
#[test]
fn a_template_that_ends_late_is_reaped() {
    /// Longer than the wait of a capture for such a template.
    const DELAY: Duration = Duration::from_secs(7);
    let mut parent = Parent::start("threads", &[]);
    let captured = parent.capture().unwrap();
    let template = captured.template.pid();
    let group = FreezerGroup::with(template).expect("this machine has a v1 freezer");
    group.set("FROZEN");
    let dropping = thread::spawn(move || drop(captured));
    thread::sleep(DELAY);
    assert_eq!(children(parent.pid()), [template], "a frozen process does not end");
    group.set("THAWED");
    dropping.join().unwrap();
    wait_reaped(parent.pid(), template);
    parent.wait_for("round");
}

/// The templates of the program `tree` and of its child.
fn tree_templates(captured: &CapturedTree) -> [i32; 2] {
    captured.template.pids().try_into().expect("one template per process")
}

/// One template of a tree was killed by another process, and the other one ends late.
#[test]
fn a_tracer_sleeps_until_a_killed_template_has_ended() {
    let parent = Parent::start("tree", &[]);
    let child = parent.reported("child") as i32;
    let captured = parent.capture().unwrap();
    let [late, killed] = tree_templates(&captured);
    let tracer = ProcStatus::read(late).unwrap().tracer;
    let group = FreezerGroup::with(late).expect("this machine has a v1 freezer");
    group.set("FROZEN");
    assert!(Command::new("kill").args(["-9", &killed.to_string()]).status().unwrap().success());
    let dropping = thread::spawn(move || drop(captured));
    let deadline = Instant::now() + WAIT_LIMIT;
    let state = |pid: i32| ProcStat::read(pid).unwrap().state;
    while !is_being_killed(late) || state(tracer) != 'S' {
        assert!(Instant::now() < deadline, "the tracer is in state {}", state(tracer));
        thread::sleep(Duration::from_millis(5));
    }
    group.set("THAWED");
    dropping.join().unwrap();
    wait_reaped(parent.pid(), late);
    wait_reaped(child, killed);
}

/// The templates of a tree die together, for example if their control group is killed.
#[test]
fn templates_that_are_killed_together_are_reaped() {
    const ROUNDS: usize = 20;
    let parent = Parent::start("tree", &[]);
    let child = parent.reported("child") as i32;
    for _ in 0..ROUNDS {
        let captured = parent.capture().unwrap();
        let [first, second] = tree_templates(&captured);
        let ids = [second, first].map(|pid| pid.to_string());
        assert!(Command::new("kill").arg("-9").args(ids).status().unwrap().success());
        drop(captured);
        wait_reaped(parent.pid(), first);
        wait_reaped(child, second);
        parent.wait_state('S');
    }
}

/// Whether SIGKILL is pending for a process.
fn is_being_killed(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:\t")).unwrap();
    u64::from_str_radix(pending, 16).unwrap() & 1 << (Signal::KILL.as_raw() - 1) != 0
}

#[test]
fn a_parent_killed_at_any_time_gives_an_error_or_a_seed() {
    const KILLS: u64 = 40;
    for kill in 0..KILLS {
        let mut parent = Parent::start("memory", &["4", "3"]);
        let pid = parent.pid();
        let capturing = thread::spawn(move || {
            let options = CaptureOptions { timeout: WAIT_LIMIT, ..options() };
            let started_at = Instant::now();
            let captured = capture::capture_blocking(pid, options);
            (captured, started_at.elapsed())
        });
        thread::sleep(Duration::from_micros(kill * 100));
        parent.kill();
        let (captured, took) = capturing.join().unwrap();
        assert!(took < WAIT_LIMIT, "{took:?}");
        if let Err(error) = captured {
            assert!(!matches!(error, CaptureError::TimedOut { .. } | CaptureError::TracerLost { .. }), "{error}");
        }
    }
}
