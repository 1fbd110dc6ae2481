//! Processes whose main thread has ended while other threads run. The kernel shows them like zombies, but they have not ended.

use std::thread;
use std::time::Duration;

use farfork_sys::process::{self, ProcStat, ProcStatus};

/// Whether the main thread has ended and another thread will continue to run. `pid` is in state Z.
///
/// A process is in the same state for a short time while it ends, and while another thread calls execve(2). So the threads are
/// checked several times. A zombie with a single thread is checked once.
pub(super) fn has_only_main_thread_ended(pid: i32) -> bool {
    const CHECKS: u32 = 10;
    const CHECK_INTERVAL: Duration = Duration::from_millis(1);
    let has_one_thread = process::thread_count(pid).is_ok_and(|count| count <= 1);
    !has_one_thread
        && (0..CHECKS).all(|check| {
            if check > 0 {
                thread::sleep(CHECK_INTERVAL);
            }
            has_running_thread(pid)
        })
}

/// Whether the main thread is a zombie, and another thread neither exits nor is being killed. The end of a process kills all
/// its threads.
fn has_running_thread(pid: i32) -> bool {
    const SIGKILL_BIT: u64 = 1 << 8;
    let runs = |tid: i32| {
        ProcStat::read_thread(pid, tid).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X') && !stat.is_exiting())
            && ProcStatus::read(tid).is_ok_and(|status| status.signals_pending & SIGKILL_BIT == 0)
    };
    let others = || process::thread_ids(pid).unwrap_or_default().into_iter().filter(|tid| *tid != pid);
    ProcStat::read(pid).is_ok_and(|stat| stat.state == 'Z') && others().any(runs)
}
