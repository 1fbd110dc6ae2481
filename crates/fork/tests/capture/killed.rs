//! The capturing process is killed during a capture: the parent resumes unchanged, wherever it was stopped.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_fork::capture::{self, CaptureOptions};
use farfork_sys::process::ProcStat;

use crate::flags::marks;
use crate::harness::{Parent, WAIT_LIMIT, children, offer, options};

/// Environment variable of the victim: the parent.
const PARENT: &str = "FARFORK_TEST_PARENT";

/// Environment variable of the victim: the address of the pages that the parent offers; empty for none.
const PAGES: &str = "FARFORK_TEST_PAGES";

const KILLS: u64 = 40;

/// The victim: captures until it is killed. The test below starts it. It tests nothing by itself.
#[test]
#[ignore = "the victim of another test"]
fn captures_until_killed() {
    let Some(pid) = env::var(PARENT).ok().and_then(|pid| pid.parse().ok()) else { return };
    let pages = env::var(PAGES).ok().and_then(|start| start.parse().ok());
    loop {
        // Fails while processes of an earlier victim still end.
        drop(capture::capture_blocking(pid, CaptureOptions { offered_pages: pages.map(offer), ..options() }));
    }
}

#[test]
fn a_parent_survives_a_killed_capturing_process() {
    let mut parent = Parent::start("threads", &["spinning", "64", "tolerant"]);
    for kill in 0..KILLS {
        let mut victim = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "killed::captures_until_killed"])
            .env(PARENT, parent.pid().to_string())
            .env(PAGES, if kill % 2 == 0 { String::new() } else { parent.reported("pages").to_string() })
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(30_000 + kill * 997));
        victim.kill().unwrap();
        victim.wait().unwrap();
        parent.wait_for("round");
        // A clone with the marks removed may be in progress: the running script sets them again.
        let started_at = Instant::now();
        while marks(parent.pid(), parent.reported("data")) != ["dc"] {
            assert!(started_at.elapsed() < WAIT_LIMIT, "the MADV_DONTFORK marks are missing after kill {kill}");
            thread::sleep(Duration::from_millis(1));
        }
    }
    let captured = parent.capture().unwrap();
    let spinner = captured.descriptor.threads.iter().find(|thread| thread.name == b"spinner").unwrap();
    assert_eq!((spinner.registers[0], spinner.registers[9]), (0x1111_2222_3333_4444, 0x5555_6666_7777_8888));
    let high: Vec<u8> = (0xb0..0xc0).collect();
    assert_eq!(spinner.xstate[576 + 7 * 16..][..16], high);
    let holder = captured.descriptor.threads.iter().find(|thread| thread.name == b"holder").unwrap();
    assert_eq!(holder.signal_mask, 1 << (12 - 1) | 1 << (34 + 3 - 1));
    assert_eq!(holder.alt_stack.base, parent.reported("altstack"));
    // A tracer ends at most half a second after the killed process.
    let started_at = Instant::now();
    while let Some(stat) = template_beside(captured.template.pid(), parent.pid()) {
        assert!(started_at.elapsed() < WAIT_LIMIT, "a template outlived its tracer: {stat:?}");
        thread::sleep(Duration::from_millis(1));
    }
    parent.wait_for("round");
}

/// A live child of the parent other than this template.
fn template_beside(template: i32, parent: i32) -> Option<ProcStat> {
    let others = children(parent).into_iter().filter(|child| *child != template);
    others.filter_map(|child| ProcStat::read(child).ok()).find(|stat| stat.state != 'Z')
}
