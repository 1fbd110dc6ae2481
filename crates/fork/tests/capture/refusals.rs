//! What cannot be carried is refused by name, and the parent has not noticed.

use farfork_fork::capture::{self, CaptureError};

use crate::harness::Parent;

/// What a parent has, and the object and a word of the reason that its refusal names.
const REFUSED: [(&str, &str, &str); 18] = [
    ("socket", "fd 3", "socket"),
    ("socketpair", "fd 4", "socket"),
    ("timerfd", "fd 3", "timerfd"),
    ("signalfd", "fd 3", "signalfd"),
    ("inotify", "fd 3", "inotify"),
    ("pidfd", "fd 3", "pidfd"),
    ("userfaultfd", "fd 3", "userfaultfd"),
    ("device", "fd 3", "/dev/fuse"),
    ("two_way_pipe", "fd 5", "reading and writing at once"),
    ("named_pipe", "fd 3", "named pipe"),
    ("deleted", "fd 3", "was deleted"),
    ("system_v", "mapping", "System V"),
    ("interval_timer", "ITIMER_REAL", "armed"),
    ("profiler", "ITIMER_PROF", "armed"),
    ("posix_timer", "POSIX timer 0", "timer"),
    ("seccomp", "thread", "seccomp"),
    ("sealed", "mapping", "sealed"),
    ("nothing", "", ""),
];

#[test]
fn each_is_named_and_the_parent_goes_on() {
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

#[test]
fn a_check_tells_the_same_without_touching_the_process() {
    let parent = Parent::start("refused", &["socket"]);
    let report = capture::check(parent.pid()).unwrap();
    assert_eq!((report.threads, report.refusals.len()), (1, 1), "{report:?}");
    assert_eq!(report.refusals[0].object, format!("pid {}, fd 3", parent.pid()));
    let half = capture::check(Parent::start("refused", &["half_pipe"]).pid()).unwrap();
    assert!(half.refusals.is_empty() && half.notes.iter().any(|note| note.contains("fd 3: pipe:")), "{half:?}");
    let clean = capture::check(Parent::start("refused", &["nothing"]).pid()).unwrap();
    assert!(clean.refusals.is_empty() && clean.memory_bytes > 0);
}

#[test]
fn what_is_no_ordinary_process_is_refused() {
    let ours = capture::check(std::process::id() as i32).unwrap();
    assert!(ours.refusals[0].reason.contains("farfork itself"));
    const KTHREADD: i32 = 2;
    if farfork_sys::process::Stat::read(KTHREADD).is_ok_and(|stat| stat.is_kernel_thread()) {
        assert!(capture::check(KTHREADD).unwrap().refusals[0].reason.contains("kernel"));
    }
    let parent = Parent::start("threads", &[]);
    let thread = *farfork_sys::process::threads(parent.pid()).unwrap().last().unwrap();
    let report = capture::check(thread).unwrap();
    assert!(report.refusals[0].reason.contains(&format!("thread of pid {}", parent.pid())));
    assert!(matches!(capture::check(i32::MAX), Err(CaptureError::Gone { .. })));
}
