//! Raises the scheduling priority of a thread for a short time, while other threads wait for it. Lowers the priority of
//! work that may wait.

use std::io;

/// While this exists, the calling thread runs before all ordinary threads.
#[derive(Debug)]
pub struct RealTimeGuard {
    /// The thread was a real-time thread before, and stays one.
    was_real_time: bool,
    /// The guard belongs to the calling thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl RealTimeGuard {
    /// Makes the calling thread a real-time thread of the lowest priority, unless it is a real-time thread already. Threads
    /// and processes that it starts while the guard exists are ordinary.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_NICE, or in a control group without real-time bandwidth.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: queries the calling thread only.
        let policy = unsafe { libc::sched_getscheduler(CALLER) } & !libc::SCHED_RESET_ON_FORK;
        let was_before = matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR);
        if !was_before {
            set_policy(CALLER, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)?;
        }
        Ok(Self { was_real_time: was_before, _not_send: std::marker::PhantomData })
    }
}

impl Drop for RealTimeGuard {
    fn drop(&mut self) {
        if !self.was_real_time {
            // An unprivileged thread may always return to the ordinary policy.
            let _ = set_policy(CALLER, libc::SCHED_OTHER, 0);
        }
    }
}

/// Makes a thread a real-time thread, which runs before all ordinary threads. Threads and processes that it starts are also
/// real-time threads.
///
/// # Errors
/// As [`RealTimeGuard::enter`]; ESRCH if there is no such thread.
pub fn make_real_time(tid: i32) -> io::Result<()> {
    set_policy(tid, libc::SCHED_FIFO, 1)
}

/// Makes a thread an ordinary thread.
///
/// # Errors
/// EPERM for another user's thread without CAP_SYS_NICE; ESRCH if there is no such thread.
pub fn make_ordinary(tid: i32) -> io::Result<()> {
    set_policy(tid, libc::SCHED_OTHER, 0)
}

/// Makes the calling thread an idle thread (SCHED_IDLE): it gets the CPU time that no other thread wants, and a small share
/// otherwise. Threads and processes that it starts are also idle.
///
/// # Errors
/// As sched_setscheduler(2): EPERM for a real-time thread without CAP_SYS_NICE.
pub fn enter_idle() -> io::Result<()> {
    set_policy(CALLER, libc::SCHED_IDLE, 0)
}

/// Makes the calling thread an ordinary thread again.
///
/// # Errors
/// As sched_setscheduler(2): EPERM without CAP_SYS_NICE, if RLIMIT_NICE does not allow it.
pub fn leave_idle() -> io::Result<()> {
    set_policy(CALLER, libc::SCHED_OTHER, 0)
}

/// The thread id by which sched_setscheduler(2) means the calling thread.
const CALLER: i32 = 0;

fn set_policy(tid: i32, policy: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads `parameters`.
    if unsafe { libc::sched_setscheduler(tid, policy, &parameters) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_an_idle_thread_are_idle() {
        // SAFETY: queries the calling thread only.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let check = move || {
            enter_idle().unwrap();
            assert_eq!((policy(), std::thread::spawn(policy).join().unwrap()), (libc::SCHED_IDLE, libc::SCHED_IDLE));
            if leave_idle().is_ok() {
                assert_eq!(policy(), libc::SCHED_OTHER);
            }
        };
        // On a new thread, so that the thread of the test runner is unchanged.
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn a_thread_returns_to_its_previous_priority() {
        // SAFETY: queries the calling thread only.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        if let Ok(real_time) = RealTimeGuard::enter() {
            assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO);
            drop(RealTimeGuard::enter().unwrap());
            assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO, "the outer guard keeps its priority");
            drop(real_time);
        }
        assert_eq!(policy(), before);
        let caller = rustix::thread::gettid().as_raw_nonzero().get();
        if make_real_time(caller).is_ok() {
            assert_eq!(policy(), libc::SCHED_FIFO);
            make_ordinary(caller).unwrap();
        }
        assert_eq!(policy(), before);
    }
}
