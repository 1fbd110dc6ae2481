//! A capture does not disturb the parent: its threads resume whatever they were doing.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use farfork_fork::capture::{self, CaptureCallbacks, CaptureError, CaptureOptions, CapturedTree, ReadyTemplate};
use farfork_wire::descriptor::{Descriptor, Thread};

use crate::harness::{Parent, children, exists, known, options, word};

const CAPTURES: usize = 40;

fn thread_named<'a>(descriptor: &'a Descriptor, name: &str) -> &'a Thread {
    let found = descriptor.threads.iter().find(|thread| thread.name == name.as_bytes());
    found.unwrap_or_else(|| panic!("no thread is called {name}"))
}

fn has_eager_page(descriptor: &Descriptor, address: u64) -> bool {
    let holds = |first: u64, bytes: usize| first <= address && address < first + bytes as u64;
    descriptor.eager_bytes.iter().any(|eager| holds(eager.address, eager.bytes.len()))
}

#[test]
fn threads_are_captured_in_every_state_and_continue() {
    let mut parent = Parent::start("threads", &["spinning"]);
    for _ in 0..CAPTURES / 4 {
        let captured = parent.capture().unwrap();
        let descriptor = &captured.descriptor;
        assert_eq!(descriptor.threads.len(), 6);

        let spinner = thread_named(descriptor, "spinner");
        // user_regs_struct: r15 is word 0, r8 word 9.
        assert_eq!((spinner.registers[0], spinner.registers[9]), (0x1111_2222_3333_4444, 0x5555_6666_7777_8888));
        let low: Vec<u8> = (0xa0..0xb0).collect();
        let high: Vec<u8> = (0xb0..0xc0).collect();
        // XSAVE: xmm7 in the legacy area, the upper half of ymm7 at 576.
        assert_eq!(spinner.xstate[160 + 7 * 16..][..16], low);
        assert_eq!(spinner.xstate[576 + 7 * 16..][..16], high);

        let restarter = thread_named(descriptor, "restarter");
        assert_eq!(
            restarter.registers[16],
            parent.reported("sequence_abort"),
            "a sequence is aborted, not resumed inside"
        );
        assert!(restarter.rseq.is_some_and(|rseq| has_eager_page(descriptor, rseq.address)));

        let holder = thread_named(descriptor, "holder");
        assert_eq!((holder.alt_stack.base, holder.alt_stack.bytes), (parent.reported("altstack"), 65536));
        assert_eq!(holder.signal_mask, 1 << (12 - 1) | 1 << (34 + 3 - 1));
        assert!(has_eager_page(descriptor, parent.reported("robust")), "the page of a held robust mutex is eager");
        assert!(has_eager_page(descriptor, holder.clear_child_tid) && holder.clear_child_tid != 0);
    }
    parent.wait_for("round");
    parent.wait_for("round");
}

#[test]
fn a_parent_does_not_notice_its_stops() {
    let mut parent = Parent::start("threads", &[]);
    let data = parent.reported("data");
    for _ in 0..CAPTURES {
        let captured = parent.capture().unwrap();
        let template = captured.template.pid();
        assert_eq!(children(parent.pid()), [template]);
        for page in [0, 1, 1000, 2047] {
            assert_eq!(word(template, data + page * 4096), known(page));
        }
        // The parent continues to write; its template does not change.
        let before: Vec<u64> = (0..2048).map(|page| word(template, data + page * 4096 + 8)).collect();
        parent.wait_for("round");
        let after: Vec<u64> = (0..2048).map(|page| word(template, data + page * 4096 + 8)).collect();
        assert_eq!(before, after);
        drop(captured);
        assert!(!exists(template), "a dropped template is gone, reaped too");
    }
    parent.wait_for("round");
}

/// The kernel continues an interrupted sleep by restart_syscall(2), which only the parent's own threads can make.
#[test]
fn a_child_of_a_later_seed_repeats_the_interrupted_call() {
    const RAX: usize = 10;
    const RESTART_SYSCALL: u64 = 219;
    let parent = Parent::start("threads", &[]);
    for _ in 0..50 {
        let captured = parent.capture().unwrap();
        for thread in &captured.descriptor.threads {
            let name = String::from_utf8_lossy(&thread.name);
            assert_ne!(thread.registers[RAX], RESTART_SYSCALL, "thread {name}");
        }
    }
}

#[test]
fn a_template_outlives_its_parent() {
    let mut parent = Parent::start("threads", &[]);
    let captured = parent.capture().unwrap();
    let data = parent.reported("data");
    parent.kill();
    thread::sleep(Duration::from_millis(50));
    let template = captured.template.pid();
    assert_eq!(word(template, data + 77 * 4096), known(77));
    let stat = farfork_sys::process::ProcStat::read(template).unwrap();
    assert_eq!((stat.state, stat.session), ('t', template));
}

#[test]
fn a_template_is_reported_to_the_caller_with_its_oom_score() {
    let parent = Parent::start("threads", &[]);
    let (send, receive) = channel();
    let on_template: capture::TemplateCallback = Box::new(move |pid| send.send(pid).unwrap());
    let captured =
        capture::capture_blocking(parent.pid(), CaptureOptions { on_template: Some(on_template), ..options() })
            .unwrap();
    let template = captured.template.pid();
    assert_eq!(receive.recv().unwrap(), template);
    let score = std::fs::read_to_string(format!("/proc/{template}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "450", "half-way between parents and children");
    assert_eq!(std::fs::read_dir(format!("/proc/{template}/fd")).unwrap().count(), 0, "it holds no file open");
}

/// The test runs as soon as the parent resumes, before any other thread has the template.
#[test]
fn a_pipe_that_the_parent_closes_is_closed() {
    struct Closing(Parent, Sender<Result<u64, CaptureError>>);

    impl CaptureCallbacks for Closing {
        fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool {
            let closed = ready_template.map(|_| {
                self.0.write(b"x");
                self.0.wait_for("ended")
            });
            self.1.send(closed).unwrap();
            true
        }

        fn capture_completed(&mut self, captured: Result<CapturedTree, CaptureError>) {
            captured.unwrap();
        }
    }

    let parent = Parent::start("closes", &[]);
    let (pid, (sender, receiver)) = (parent.pid(), channel());
    capture::start_capture(pid, options(), Box::new(Closing(parent, sender))).unwrap();
    assert_eq!(receiver.recv().unwrap().unwrap(), 1, "the other end does not see end of file");
    // The capture's thread has ended.
    assert!(receiver.recv().is_err());
}

#[test]
fn a_frozen_parent_is_its_own_template_and_runs_on_when_dropped() {
    let mut parent = Parent::start("threads", &["spinning"]);
    let captured = capture::capture_blocking(parent.pid(), CaptureOptions { freeze: true, ..options() }).unwrap();
    assert_eq!(captured.template.pid(), parent.pid());
    assert_eq!(captured.descriptor.threads.len(), 6);
    assert_eq!(parent.state(), 't');
    assert_eq!(word(parent.pid(), parent.reported("data") + 5 * 4096), known(5));
    let again = parent.capture().unwrap_err();
    assert!(again.to_string().contains("traces it already"), "{again}");
    drop(captured);
    parent.wait_for("round");
    parent.wait_for("round");
    parent.capture().unwrap();
}
