//! A time limit for system calls that have none, such as waitid(2) of a tracee. A signal is sent to one thread; its only
//! effect is to interrupt the call.

use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, zeroed};
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

/// The last real-time signal, which nothing else in this program uses.
fn alarm_signal() -> i32 {
    libc::SIGRTMAX()
}

/// Interval at which the signal is repeated after expiry. Repetition is needed, because a signal that arrives just before
/// the system call does not interrupt it.
const REPEAT_INTERVAL: Duration = Duration::from_millis(5);

/// A time limit for the thread that created it. From expiry until the alarm is disarmed or dropped, system calls of that
/// thread return EINTR.
#[derive(Debug)]
pub struct SyscallAlarm {
    timer: libc::timer_t,
    /// The alarm belongs to the thread that created it.
    _not_send: PhantomData<*const ()>,
}

impl SyscallAlarm {
    /// Creates an alarm for the calling thread, disarmed.
    ///
    /// # Errors
    /// As timer_create(2): EAGAIN if there are too many timers.
    pub fn new() -> io::Result<Self> {
        install_handler()?;
        // SAFETY: all zeroes is a valid sigevent; the fields that SIGEV_THREAD_ID uses are set below.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = alarm_signal();
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer = MaybeUninit::uninit();
        // SAFETY: the kernel reads `event` and writes the timer's id.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, timer.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: timer_create has succeeded and written the id. The alarm owns the timer from here on.
        Ok(Self { timer: unsafe { timer.assume_init() }, _not_send: PhantomData })
    }

    /// Creates an alarm and arms it.
    ///
    /// # Errors
    /// As [`SyscallAlarm::new`].
    pub fn armed(limit: Duration) -> io::Result<Self> {
        let alarm = Self::new()?;
        alarm.arm(limit)?;
        Ok(alarm)
    }

    /// Sets the alarm to expire after `limit`. This replaces an earlier setting.
    ///
    /// # Errors
    /// As timer_settime(2): EINVAL for a time that is too long.
    pub fn arm(&self, limit: Duration) -> io::Result<()> {
        // Zero would disarm the timer.
        self.set_timer(timespec(limit.max(Duration::from_nanos(1))))
    }

    /// Disarms the alarm: it does not expire until it is armed again.
    ///
    /// # Errors
    /// No known error.
    pub fn disarm(&self) -> io::Result<()> {
        self.set_timer(timespec(Duration::ZERO))
    }

    fn set_timer(&self, first: libc::timespec) -> io::Result<()> {
        let times = libc::itimerspec { it_interval: timespec(REPEAT_INTERVAL), it_value: first };
        // SAFETY: the timer is ours; the kernel reads `times`.
        if unsafe { libc::timer_settime(self.timer, 0, &times, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for SyscallAlarm {
    fn drop(&mut self) {
        // SAFETY: the timer is ours and not deleted yet.
        unsafe { libc::timer_delete(self.timer) };
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec { tv_sec: duration.as_secs() as libc::time_t, tv_nsec: i64::from(duration.subsec_nanos()) }
}

extern "C" fn interrupt_only(_: i32) {}

/// Installs a handler without SA_RESTART, once for the process. An ignored signal would not interrupt a call.
fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: all zeroes is a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = interrupt_only as extern "C" fn(i32) as usize;
        // SAFETY: the handler does nothing, which is safe at any point of any thread.
        unsafe { libc::sigaction(alarm_signal(), &action, ptr::null_mut()) == 0 }
    });
    if *installed { Ok(()) } else { Err(io::Error::other("the signal handler could not be installed")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Instant;

    #[test]
    fn a_system_call_without_limit_gets_one() {
        let (mut reader, _writer) = io::pipe().unwrap();
        let began = Instant::now();
        let _alarm = SyscallAlarm::armed(Duration::from_millis(30)).unwrap();
        let interrupted = reader.read(&mut [0]).unwrap_err();
        assert_eq!(interrupted.kind(), io::ErrorKind::Interrupted);
        assert!(began.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn a_disarmed_alarm_interrupts_nothing_and_can_be_armed_again() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let alarm = SyscallAlarm::armed(Duration::from_millis(20)).unwrap();
        alarm.disarm().unwrap();
        let speaker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            writer.write_all(b"x").unwrap();
            writer
        });
        assert_eq!(reader.read(&mut [0]).unwrap(), 1);
        let _writer = speaker.join().unwrap();
        alarm.arm(Duration::from_millis(1)).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
