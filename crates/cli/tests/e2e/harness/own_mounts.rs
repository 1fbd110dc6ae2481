//! Runs a part of a test in another mount namespace: a new one, or the one of a node's daemon. Processes that the part
//! starts are in it too.

use std::panic;
use std::path::Path;
use std::thread;

use farfork_sys::mount::{self, table};
use farfork_sys::{namespace, pidfd};

/// Runs in a copy of the calling thread's mounts. A mount that is made there is not visible elsewhere, and ends with
/// the last process in it.
pub(crate) fn run_in_own_mounts<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    run_in_thread(|| {
        namespace::unshare_container(false)
            .and_then(|()| mount::make_private(Path::new("/")))
            .expect("root may unshare");
        detach_volumes();
        body()
    })
}

/// Volumes of other tests could not be dropped while this copy of their mounts exists.
fn detach_volumes() {
    let mounts = table::read_thread_mounts().expect("the kernel lists the mounts");
    for volume in mounts.iter().filter(|mount| mount.is_volume()) {
        mount::detach(&volume.point).expect("root may detach");
    }
}

/// Runs with the mounts of a process.
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
