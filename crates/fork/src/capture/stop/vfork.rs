//! Threads in vfork(2). They sleep in the kernel and cannot be stopped until the child that shares their memory calls
//! execve(2) or ends.

use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process::{self, ProcStatus, SharedResource, SystemCall};
use farfork_sys::process_memory;

/// Maximum number of checks that find a thread in the same vfork(2) with an inactive child; usually, this state is brief.
/// The limit is a count, not a time, because on a busy machine the checking thread waits for a CPU, too.
const IDLE_POLLS_MAX: u32 = 250;

/// Time between two checks.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// How long a thread may be in vfork(2) while its child would continue, but waits for a CPU or a disk. A capture may take a
/// few seconds.
const BUSY_LIMIT: Duration = Duration::from_secs(2);

/// Waits while a thread sleeps in the same vfork(2). Returns whether the thread sleeps for too long.
pub(in crate::capture) fn is_stuck_in_vfork(tid: i32) -> bool {
    // A thread sleeps once in each vfork(2).
    let sleeps = || ProcStatus::read(tid).map(|status| status.voluntary_switches).ok();
    let (before, deadline) = (sleeps(), Instant::now() + BUSY_LIMIT);
    let mut idle_looks = 0;
    while is_in_vfork(tid) && sleeps() == before {
        if idle_looks == IDLE_POLLS_MAX || Instant::now() >= deadline {
            return true;
        }
        idle_looks += u32::from(!has_busy_child(tid));
        thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Whether a child that shares a thread's memory runs, or waits for a disk.
fn has_busy_child(tid: i32) -> bool {
    let mut children = process::children_of_thread(tid, tid).into_iter();
    let is_busy = |child| ProcStatus::read(child).is_ok_and(|status| matches!(status.state.as_str(), "R" | "D"));
    children.any(|child| process::share_resource(tid, child, SharedResource::Memory).unwrap_or(false) && is_busy(child))
}

/// Whether a thread sleeps in vfork(2), or in clone(2) with CLONE_VFORK, as posix_spawn(3) does.
pub(in crate::capture) fn is_in_vfork(tid: i32) -> bool {
    const CLONE: u64 = 56;
    const VFORK: u64 = 58;
    const CLONE3: u64 = 435;
    const CLONE_VFORK: u64 = 0x4000;
    let Ok(Some(SystemCall { number, arguments: [first, ..], .. })) = SystemCall::read(tid) else { return false };
    match number {
        VFORK => true,
        CLONE => first & CLONE_VFORK != 0,
        CLONE3 => {
            let mut flags = [0; 8];
            let read = process_memory::read_process(tid, first, &mut flags);
            read.is_ok() && u64::from_ne_bytes(flags) & CLONE_VFORK != 0
        }
        _ => false,
    }
}
