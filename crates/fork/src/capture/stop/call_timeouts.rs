//! Time limits of system calls that a stop may interrupt (signal(7)): where each is stored, and the result on expiry.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use farfork_sys::process::ProcStatus;
use farfork_sys::process_memory::read_process;
use farfork_sys::ptrace::Registers;
use farfork_sys::socket_abi::{SO_DOMAIN, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET};
use farfork_sys::{pidfd, socket};
use rustix::io::Errno;

use super::restart;

/// Nanoseconds per second.
const NS_PER_S: u64 = 1_000_000_000;

/// Bytes of `struct timespec`.
const TIMESPEC_BYTES: u64 = 16;

const AF_UNIX: i32 = 1;

/// Where the time limit of a call is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitLocation {
    /// In a register, in milliseconds.
    Milliseconds(u64),
    /// In memory, as seconds and nanoseconds.
    Timespec(u64),
    /// In memory, as seconds and microseconds.
    Timeval(u64),
    /// In an option of this socket.
    Socket { fd: u64, option: u32 },
}

/// A call that may have a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitedCall {
    number: u64,
    location: LimitLocation,
}

/// Whether a clock of clock_nanosleep(2) counts the CPU time of processes or threads. It may be slower than CLOCK_MONOTONIC,
/// so that the kernel alone knows when the sleep ends.
fn counts_cpu_time(clock: u64) -> bool {
    const CPU_CLOCKS: [i32; 2] = [2, 3];
    (clock as i32) < 0 || CPU_CLOCKS.contains(&(clock as i32))
}

/// A time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeLimit {
    /// How long the call may take.
    pub(crate) limit: Duration,
    /// The value of the result register when the call times out.
    pub(crate) result: i64,
}

impl LimitedCall {
    /// Returns the call with this number and these arguments; `None` if it has no limit that a stop would lose.
    pub(crate) fn from_arguments(number: u64, arguments: &[u64; 6]) -> Option<Self> {
        const TIMER_ABSTIME: u64 = 1;
        const FUTEX_COMMAND: u64 = 127;
        let [first, second, third, fourth, fifth, _] = *arguments;
        let timespec = |address: u64| (address != 0).then_some(LimitLocation::Timespec(address));
        // The kernel has written the time left over the limit, if both have the same address, as in glibc's sleep(3).
        let sleep = |limit: u64, left: u64| if limit.abs_diff(left) < TIMESPEC_BYTES { None } else { timespec(limit) };
        let milliseconds =
            |value: u64| (value as i32 >= 0).then_some(LimitLocation::Milliseconds(value & u64::from(u32::MAX)));
        let location = match number {
            // epoll_wait, epoll_pwait; epoll_pwait2, semtimedop.
            232 | 281 => milliseconds(fourth),
            441 | 220 => timespec(fourth),
            // poll; rt_sigtimedwait, ppoll.
            7 => milliseconds(third),
            128 | 271 => timespec(third),
            // io_getevents, io_pgetevents, pselect6; select.
            208 | 333 | 270 => timespec(fifth),
            23 => (fifth != 0).then_some(LimitLocation::Timeval(fifth)),
            // nanosleep, clock_nanosleep, futex(FUTEX_WAIT).
            35 => sleep(first, second),
            230 if second & TIMER_ABSTIME == 0 && !counts_cpu_time(first) => sleep(third, fourth),
            202 if second & FUTEX_COMMAND == 0 => timespec(fourth),
            // read, readv, accept, recvfrom, recvmsg, splice, accept4, recvmmsg.
            0 | 19 | 43 | 45 | 47 | 275 | 288 | 299 => Some(LimitLocation::Socket { fd: first, option: SO_RCVTIMEO }),
            // write, writev, sendfile, connect, sendto, sendmsg, sendmmsg.
            1 | 20 | 40 | 42 | 44 | 46 | 307 => Some(LimitLocation::Socket { fd: first, option: SO_SNDTIMEO }),
            _ => None,
        };
        location.map(|location| Self { number, location })
    }

    /// Returns the call in the registers of a thread.
    pub(crate) fn from_registers(registers: &Registers) -> Option<Self> {
        let Registers { rdi, rsi, rdx, r10, r8, r9, .. } = *registers;
        Self::from_arguments(restart::call_number(registers), &[rdi, rsi, rdx, r10, r8, r9])
    }

    /// Whether its limit is an option of a socket, which is read after the stop.
    pub(crate) fn is_socket_limit(&self) -> bool {
        matches!(self.location, LimitLocation::Socket { .. })
    }

    /// Reads the limit of the call that thread `tid` is in; `None` if it has none.
    pub(crate) fn read_limit(&self, tid: i32) -> Option<TimeLimit> {
        let limit = match self.location {
            LimitLocation::Milliseconds(value) => Some(Duration::from_millis(value)),
            LimitLocation::Timespec(address) => read_pair(tid, address, 1),
            LimitLocation::Timeval(address) => read_pair(tid, address, 1000),
            LimitLocation::Socket { fd, option } => read_socket_timeout(tid, fd, option),
        };
        limit.map(|limit| TimeLimit { limit, result: self.timeout_result(tid) })
    }

    fn timeout_result(&self, tid: i32) -> i64 {
        let errno = |errno: Errno| -i64::from(errno.raw_os_error());
        match (self.number, self.location) {
            (42, LimitLocation::Socket { fd, .. }) if socket_domain(tid, fd) != Some(AF_UNIX) => {
                errno(Errno::INPROGRESS)
            }
            (_, LimitLocation::Socket { .. }) | (128 | 220, _) => errno(Errno::AGAIN),
            (202, _) => errno(Errno::TIMEDOUT),
            _ => 0,
        }
    }
}

/// Reads two words of a thread's memory: seconds, and a fraction in units of `unit_ns` nanoseconds.
fn read_pair(tid: i32, address: u64, unit_ns: u64) -> Option<Duration> {
    let mut bytes = [0; 16];
    (read_process(tid, address, &mut bytes).ok()? == bytes.len()).then_some(())?;
    parse_pair(&bytes, unit_ns)
}

fn parse_pair(bytes: &[u8], unit_ns: u64) -> Option<Duration> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (seconds, fraction) = (word(0)?, word(8)?.checked_mul(unit_ns)?);
    (fraction < NS_PER_S && i64::try_from(seconds).is_ok()).then(|| Duration::new(seconds, fraction as u32))
}

/// Duplicates a thread's file descriptor into this process.
pub(super) fn duplicate_fd(tid: i32, fd: u64) -> Option<OwnedFd> {
    let process = ProcStatus::read(tid).ok()?.process;
    pidfd::get_fd(&pidfd::open(process).ok()?, fd as u32).ok()
}

/// Reads the timeout of a socket. Zero means none.
pub(super) fn read_socket_timeout(tid: i32, fd: u64, option: u32) -> Option<Duration> {
    let value = socket::read_option(duplicate_fd(tid, fd)?.as_fd(), SOL_SOCKET, option).ok()?;
    parse_pair(&value, 1000).filter(|limit| !limit.is_zero())
}

fn socket_domain(tid: i32, fd: u64) -> Option<i32> {
    socket::read_number_option(duplicate_fd(tid, fd)?.as_fd(), SOL_SOCKET, SO_DOMAIN).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_without_a_limit_have_none() {
        let forever = u64::from(u32::MAX);
        assert_eq!(LimitedCall::from_arguments(232, &[3, 0, 1, forever, 0, 0]), None, "epoll_wait for ever");
        assert_eq!(LimitedCall::from_arguments(230, &[1, 1, 0x1000, 0, 0, 0]), None, "a sleep until a time");
        assert_eq!(LimitedCall::from_arguments(202, &[0x1000, 128 | 9, 0, 0x2000, 0, 0]), None, "a futex until a time");
        assert_eq!(LimitedCall::from_arguments(128, &[0x1000, 0, 0, 8, 0, 0]), None, "sigwaitinfo");
        assert_eq!(LimitedCall::from_arguments(35, &[0x1000, 0x1000, 0, 0, 0, 0]), None, "sleep(3)");
        assert_eq!(LimitedCall::from_arguments(230, &[1, 0, 0x1000, 0x1000, 0, 0]), None, "the time left is the limit");
        for clock in [2, (-6_i64).cast_unsigned()] {
            assert_eq!(LimitedCall::from_arguments(230, &[clock, 0, 0x1000, 0, 0, 0]), None, "a sleep of CPU time");
        }
        assert!(LimitedCall::from_arguments(230, &[1, 0, 0x1000, 0x2000, 0, 0]).is_some());
    }

    #[test]
    fn a_limit_in_a_register_is_read() {
        let call = LimitedCall::from_arguments(232, &[3, 0, 1, 200, 0, 0]).unwrap();
        assert_eq!(call.read_limit(0), Some(TimeLimit { limit: Duration::from_millis(200), result: 0 }));
    }

    #[test]
    fn a_limit_in_memory_is_read() {
        let limit = [1_u64, 500];
        let call =
            LimitedCall::from_arguments(202, &[0, 128, 0, limit.as_ptr().expose_provenance() as u64, 0, 0]).unwrap();
        let read = call.read_limit(std::process::id().cast_signed()).unwrap();
        assert_eq!((read.limit, read.result), (Duration::new(1, 500), -110));
    }

    #[test]
    fn a_limit_of_a_socket_is_read() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&ours).cast_unsigned().into();
        let call = LimitedCall::from_arguments(45, &[fd, 0, 0, 0, 0, 0]).unwrap();
        let tid = std::process::id().cast_signed();
        assert_eq!(call.read_limit(tid), None);
        // The kernel counts in ticks: 200 ms is a whole number of ticks at each of its clock rates.
        ours.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert_eq!(call.read_limit(tid), Some(TimeLimit { limit: Duration::from_millis(200), result: -11 }));
    }
}
