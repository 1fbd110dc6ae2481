//! Runs a part of a test in another mount namespace: a new one, or the one of a node's daemon. Processes that this part
//! starts are in the same namespace.

use std::panic;
use std::path::Path;
use std::thread;

use farfork_sys::mount::{self, table};
use farfork_sys::{namespace, pidfd};

/// Runs `body` in a new mount namespace with a copy of the thread's mounts. A mount that `body` makes is not visible
/// elsewhere, and ends with the last process in the namespace.
pub(crate) fn run_in_own_mounts<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    run_in_thread(|| {
        namespace::unshare_container(false)
            .and_then(|()| mount::make_private(Path::new("/")))
            .expect("root may unshare");
        detach_volumes();
        body()
    })
}

/// Detaches volumes of other tests. A volume cannot be dropped while a copy of its mount exists.
fn detach_volumes() {
    let mounts = table::read_thread_mounts().expect("the kernel lists the mounts");
    for volume in mounts.iter().filter(|mount| mount.is_volume()) {
        mount::detach(&volume.point).expect("root may detach");
    }
}

/// Runs `body` in the mount namespace of a process.
pub(crate) fn run_in_mounts_of<T: Send>(pid: i32, body: impl FnOnce() -> T + Send) -> T {
    let process = pidfd::open(pid).expect("the process runs");
    run_in_thread(|| {
        namespace::enter_mounts(std::os::fd::AsFd::as_fd(&process)).expect("root may enter");
        body()
    })
}

fn run_in_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(body).join()).unwrap_or_else(|panic| panic::resume_unwind(panic))
}
