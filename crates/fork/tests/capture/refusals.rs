//! State that cannot be carried is refused by name, and the parent does not notice.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender};

use farfork_fork::capture::{
    self, CaptureCallbacks, CaptureError, CaptureOptions, CapturedTree, CheckOptions, ReadyTemplate,
};

use crate::harness::{Parent, WAIT_LIMIT, options};

/// A parent's state, and the object and a word of the reason in its refusal.
const REFUSED: [(&str, &str, &str); 10] = [
    ("socket", "fd 3", "socket"),
    ("pidfd", "fd 3", "pidfd of another"),
    ("userfaultfd", "fd 3", "userfaultfd"),
    ("device", "fd 3", "/dev/fuse"),
    ("deleted_link", "fd 3", "was deleted"),
    ("posix_timer", "POSIX timer 0", "CPU-time clock"),
    ("sealed", "mapping", "sealed"),
    ("pathless_inotify", "fd 3", "path cannot be found"),
    ("unforked", "pid", "at 100 places"),
    ("nothing", "", ""),
];

#[test]
fn each_refused_resource_is_named_and_the_parent_continues() {
    for (what, object, reason) in REFUSED {
        let mut parent = Parent::start("refused", &[what]);
        match parent.capture() {
            Ok(_) => assert_eq!(what, "nothing", "{what} was not refused"),
            Err(CaptureError::Refused { pid, refusals }) => {
                assert_eq!(pid, parent.pid());
                let named = |one: &capture::Refusal| one.object.contains(object) && one.reason.contains(reason);
                assert!(refusals.iter().any(named), "{what}: {refusals:?}");
                assert!(refusals.iter().all(|one| one.object.contains(&format!("pid {pid}"))), "{refusals:?}");
            }
            Err(other) => panic!("{what}: {other}"),
        }
        parent.write(b"still here\n");
        parent.wait_for("still");
    }
}

/// State that is refused only after the parent has stopped, and a seed that the caller rejects.
#[test]
fn a_refused_freeze_keeps_the_memory_map_of_the_parent() {
    for what in ["sealed", "pathless_inotify"] {
        let mut parent = Parent::start("refused", &[what]);
        let before = memory_map(&parent);
        let options = CaptureOptions { freeze: true, ..options() };
        match capture::capture_blocking(parent.pid(), options) {
            Err(CaptureError::Refused { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
        parent.write(b"still here\n");
        parent.wait_for("still");
        assert_eq!(memory_map(&parent), before, "{what}");
    }
    let mut parent = Parent::start("refused", &["nothing"]);
    let before = memory_map(&parent);
    let (sender, receiver) = mpsc::channel();
    let options = CaptureOptions { freeze: true, ..options() };
    capture::start_capture(parent.pid(), options, Box::new(Unwilling(sender))).unwrap();
    assert!(receiver.recv_timeout(WAIT_LIMIT).expect("the capture reports its outcome"), "the capture is not refused");
    parent.write(b"still here\n");
    parent.wait_for("still");
    assert_eq!(memory_map(&parent), before);
}

/// Rejects the seed, and reports whether the capture would have made one.
struct Unwilling(Sender<bool>);

impl CaptureCallbacks for Unwilling {
    fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool {
        self.0.send(ready_template.is_ok()).expect("the test listens");
        false
    }

    fn capture_completed(&mut self, _: Result<CapturedTree, CaptureError>) {
        panic!("the seed was rejected");
    }
}

/// The parent's /proc/PID/maps without heap and stack, which grow.
fn memory_map(parent: &Parent) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", parent.pid())).expect("it lives");
    maps.lines().filter(|line| !line.ends_with("[heap]") && !line.ends_with("[stack]")).map(str::to_owned).collect()
}

#[test]
fn a_check_finds_the_same_refusals_without_stopping_the_process() {
    let parent = Parent::start("refused", &["socket"]);
    let report = capture::check(parent.pid(), CheckOptions::default()).unwrap();
    assert_eq!((report.threads, report.refusals.len()), (1, 1), "{report:?}");
    assert_eq!(report.refusals[0].object, format!("pid {}, fd 3", parent.pid()));
    // A child finds the write end closed, too: only an end in another process gets a note.
    let half = capture::check(Parent::start("refused", &["half_pipe"]).pid(), CheckOptions::default()).unwrap();
    assert!(half.refusals.is_empty() && half.notes.is_empty(), "{half:?}");
    let outside = capture::check(Parent::start("refused", &["outside_pipe"]).pid(), CheckOptions::default()).unwrap();
    assert!(outside.notes.iter().any(|note| note.contains("fd 3: pipe:")), "{outside:?}");
    let clean = capture::check(Parent::start("refused", &["nothing"]).pid(), CheckOptions::default()).unwrap();
    assert!(clean.refusals.is_empty() && clean.memory_bytes > 0);
}

/// A shell that calls execve(2) endlessly.
const EXECS_FOREVER: &str = r#"exec sh -c "$0" "$0""#;

/// The leader of a process group. Dropping it kills the group.
struct Group(Child);

impl Group {
    fn start(arguments: &[&str]) -> Self {
        Self(Command::new("sh").args(["-c"]).args(arguments).process_group(0).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn a_check_of_a_process_that_keeps_calling_execve_gives_a_report() {
    let first = Group::start(&[EXECS_FOREVER, EXECS_FOREVER]);
    let report = capture::check(first.pid(), CheckOptions::default()).unwrap();
    assert!(report.refusals.iter().all(|refusal| refusal.reason.contains("kept changing")), "{report:?}");

    let parent = Group::start(&[r#"sh -c "$0" "$0" & wait"#, EXECS_FOREVER]);
    for _ in 0..3 {
        let report = capture::check(parent.pid(), CheckOptions::default()).unwrap();
        assert!(report.refusals.is_empty(), "{report:?}");
        assert!(report.notes.iter().all(|note| !note.contains("it kept changing") || note.starts_with("pid ")));
    }
}

#[test]
fn kernel_threads_and_farfork_processes_are_refused() {
    let ours = capture::check(std::process::id() as i32, CheckOptions::default()).unwrap();
    assert!(ours.refusals[0].reason.contains("farfork itself"));
    const KTHREADD: i32 = 2;
    if farfork_sys::process::ProcStat::read(KTHREADD).is_ok_and(|stat| stat.is_kernel_thread()) {
        assert!(capture::check(KTHREADD, CheckOptions::default()).unwrap().refusals[0].reason.contains("kernel"));
    }
    let parent = Parent::start("threads", &[]);
    let thread = *farfork_sys::process::thread_ids(parent.pid()).unwrap().last().unwrap();
    let report = capture::check(thread, CheckOptions::default()).unwrap();
    assert!(report.refusals[0].reason.contains(&format!("thread of pid {}", parent.pid())));
    assert!(matches!(capture::check(i32::MAX, CheckOptions::default()), Err(CaptureError::ProcessGone { .. })));
}
