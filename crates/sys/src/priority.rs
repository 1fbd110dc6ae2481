//! Scheduling of threads, for a moment in which others wait for them.

use std::io;

/// The calling thread runs before all ordinary ones until this is dropped.
#[derive(Debug)]
pub struct RealTime {
    /// It was scheduled like this before, and stays so.
    was_before: bool,
    /// It is the calling thread's alone.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl RealTime {
    /// Makes the calling thread a real-time thread of the lowest priority, if it is not one of any. What it starts
    /// meanwhile is not.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_NICE, or in a control group that has no time for real-time threads.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: asks about the calling thread only.
        let policy = unsafe { libc::sched_getscheduler(CALLER) } & !libc::SCHED_RESET_ON_FORK;
        let was_before = matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR);
        if !was_before {
            set(CALLER, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)?;
        }
        Ok(Self { was_before, _not_send: std::marker::PhantomData })
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        if !self.was_before {
            // An unprivileged thread may always go back.
            let _ = set(CALLER, libc::SCHED_OTHER, 0);
        }
    }
}

/// Lets a thread run before all ordinary ones, and what it starts as well.
///
/// # Errors
/// As [`RealTime::enter`]; ESRCH when there is no such thread.
pub fn raise(tid: i32) -> io::Result<()> {
    set(tid, libc::SCHED_FIFO, 1)
}

/// Makes a thread an ordinary one.
///
/// # Errors
/// EPERM for another user's thread without CAP_SYS_NICE; ESRCH when there is no such thread.
pub fn lower(tid: i32) -> io::Result<()> {
    set(tid, libc::SCHED_OTHER, 0)
}

/// sched_setscheduler(2)'s name for the calling thread.
const CALLER: i32 = 0;

fn set(tid: i32, policy: i32, priority: i32) -> io::Result<()> {
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
    fn a_thread_comes_back_from_real_time() {
        // SAFETY: asks about the calling thread only.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        if let Ok(real_time) = RealTime::enter() {
            assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO);
            drop(RealTime::enter().unwrap());
            assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO, "the outer one's");
            drop(real_time);
        }
        assert_eq!(policy(), before);
        let caller = rustix::thread::gettid().as_raw_nonzero().get();
        if raise(caller).is_ok() {
            assert_eq!(policy(), libc::SCHED_FIFO);
            lower(caller).unwrap();
        }
        assert_eq!(policy(), before);
    }
}
