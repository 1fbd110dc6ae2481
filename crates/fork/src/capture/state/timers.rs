//! Timers of a process, which only the process itself can query. Interval timers are among the first calls of the pause
//! (`injection::thread_queries`). POSIX timers take calls of their own, if `/proc` lists any.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use farfork_wire::descriptor::{IntervalTimer, PosixTimer, RESTORED_NUMBER_MAX, TimerSpec};

use crate::capture::error::{CaptureError, Refusal};
use crate::capture::injection::injector::InjectedCall;
use crate::capture::injection::pages::SLOTS_BYTES_MIN;
use crate::capture::injection::script::{self, ENTRY_BYTES, TRAILER_ENTRIES, read_word};
use crate::capture::injection::script_runner::{InjectionTarget, ScriptRunner};

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1000;

/// CLOCK_PROCESS_CPUTIME_ID, and its number in `/proc`.
const PROCESS_CPU_CLOCK: i64 = 2;
const LISTED_PROCESS_CPU_CLOCK: i64 = -6;

/// The number of any other CPU-time clock contains the inverted id of its owner, whether the owner is a thread, and one of
/// three ways to count. A fourth value marks the clock of a device (`include/linux/posix-timers.h`).
const CLOCK_ID_SHIFT: u32 = 3;
const CLOCK_PER_THREAD: i64 = 4;
const CLOCK_TYPE_MASK: i64 = 3;
const CLOCK_FD: i64 = 3;

/// Bytes of `struct itimerspec` and `struct itimerval`.
pub(in crate::capture) const TIME_BYTES: usize = 32;

/// Maximum number of timers in one script: as many as fit into a slot.
const TIMERS_PER_SCRIPT: usize = SLOTS_BYTES_MIN as usize / (ENTRY_BYTES + TIME_BYTES) - 2 * TRAILER_ENTRIES;

/// Offset of the answers.
const TIMER_ANSWERS_OFFSET: usize = (TIMERS_PER_SCRIPT + TRAILER_ENTRIES) * ENTRY_BYTES;

const _: () = assert!(TIMER_ANSWERS_OFFSET + TIMERS_PER_SCRIPT * TIME_BYTES <= SLOTS_BYTES_MIN as usize);

/// A POSIX timer as `/proc` lists it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::capture) struct ListedTimer {
    id: u32,
    clock: i64,
    value: u64,
    /// 0 if no signal is sent.
    signal: u32,
    /// The thread that gets the signal, by its id in farfork's pid namespace; 0 for the process.
    tid: i32,
}

/// Lists the POSIX timers of a process, by ascending number.
pub(in crate::capture) fn list_timers(pid: i32) -> Result<Vec<ListedTimer>, CaptureError> {
    // The kernel returns at most some 60 timers for each read(2).
    let text = fs::read_to_string(format!("/proc/{pid}/timers")).map_err(CaptureError::reading(pid, "the timers"))?;
    let unknown = || std::io::Error::new(std::io::ErrorKind::InvalidData, "its format is not known");
    parse_timers(&text).ok_or_else(|| CaptureError::reading(pid, "the timers")(unknown()))
}

fn parse_timers(text: &str) -> Option<Vec<ListedTimer>> {
    let mut timers: Vec<ListedTimer> = Vec::new();
    for line in text.lines() {
        let (key, value) = line.split_once(": ")?;
        if key == "ID" {
            timers.push(ListedTimer { id: value.trim().parse().ok()?, ..ListedTimer::default() });
            continue;
        }
        let timer = timers.last_mut()?;
        match key {
            "signal" => {
                let (signal, sigval) = value.split_once('/')?;
                (timer.signal, timer.value) = (signal.parse().ok()?, u64::from_str_radix(sigval, 16).ok()?);
            }
            "notify" => {
                let (method, target) = value.split_once('/')?;
                timer.signal = if method == "none" { 0 } else { timer.signal };
                timer.tid = target.strip_prefix("tid.").map_or(Some(0), |tid| tid.parse().ok())?;
            }
            "ClockID" => {
                let clock = value.trim().parse().ok()?;
                timer.clock = if clock == LISTED_PROCESS_CPU_CLOCK { PROCESS_CPU_CLOCK } else { clock };
            }
            _ => {}
        }
    }
    timers.sort_unstable_by_key(|timer| timer.id);
    Some(timers)
}

/// Refuses timers that cannot be carried. `threads`: inner ids of the process's threads, the main thread's first.
pub(in crate::capture) fn refusals(pid: i32, timers: &[ListedTimer], threads: &[u32]) -> Vec<Refusal> {
    let refuse = |timer: &ListedTimer| {
        let reason =
            if timer.id > RESTORED_NUMBER_MAX { Some("its number is too high") } else { timer.refused_clock(threads) };
        reason.map(|reason| Refusal::new(format!("pid {pid}, POSIX timer {}", timer.id), reason))
    };
    timers.iter().filter_map(refuse).collect()
}

impl ListedTimer {
    /// Returns why a child cannot have the timer's clock.
    fn refused_clock(&self, threads: &[u32]) -> Option<&'static str> {
        /// Wall clock, monotonic, CPU time of the process, boot time, the alarm clocks of both, and TAI.
        const CARRIED_CLOCKS: [i64; 7] = [0, 1, 2, 7, 8, 9, 11];
        if CARRIED_CLOCKS.contains(&self.clock) {
            return None;
        }
        if self.clock >= 0 || self.clock & CLOCK_TYPE_MASK == CLOCK_FD {
            return Some("it uses the clock of a device, which is not carried");
        }
        let owner = u32::try_from(!(self.clock >> CLOCK_ID_SHIFT)).ok();
        match owner.filter(|_| self.clock & CLOCK_PER_THREAD != 0) {
            // The kernel does not show which thread made the timer. If there is only one thread, it did.
            Some(0) if threads.len() > 1 => Some(
                "it uses the CPU-time clock of the thread that made it (CLOCK_THREAD_CPUTIME_ID), and the kernel does not show \
                 which thread did; use pthread_getcpuclockid(3) instead",
            ),
            Some(thread) if thread != 0 && !threads.contains(&thread) => {
                Some("it uses the CPU-time clock of a thread that has ended, which is not carried")
            }
            None if owner.is_none_or(|process| process != 0 && threads.first() != Some(&process)) => {
                Some("it uses the CPU-time clock of another process, which is not carried")
            }
            _ => None,
        }
    }
}

/// Whether a process has a thread.
fn is_thread(pid: i32, tid: i32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// Queries the time that each timer has left. The leader has made its other calls. `inner_id` translates a thread's id to
/// the process's own namespace.
pub(in crate::capture) async fn read_remaining(
    leader: &InjectionTarget<'_>,
    listed: &[ListedTimer],
    inner_id: impl Fn(i32) -> Option<u32>,
    runner: &mut ScriptRunner<'_, '_>,
) -> Result<Vec<PosixTimer>, CaptureError> {
    let mut timers = Vec::with_capacity(listed.len());
    for some in listed.chunks(TIMERS_PER_SCRIPT) {
        let slot = run_query_script(leader, some, runner).await?;
        for (index, timer) in some.iter().enumerate() {
            let changed = || CaptureError::Unstable { pid: leader.pid, what: format!("POSIX timer {}", timer.id) };
            if script::result_of(&slot, index) != 0 {
                return Err(changed());
            }
            let (signal, tid) = match inner_id(timer.tid).filter(|_| timer.tid != 0) {
                Some(tid) => (timer.signal, tid),
                None if timer.tid == 0 => (timer.signal, 0),
                None if is_thread(leader.pid, timer.tid) => return Err(changed()),
                // Its signals reach no thread, not even a later one with the same id.
                None => (0, 0),
            };
            let time = parse_time(&slot, TIMER_ANSWERS_OFFSET + index * TIME_BYTES, 1);
            let (clock, value) = (timer.clock as u32, timer.value);
            timers.push(PosixTimer { id: timer.id, clock, value, signal, tid, time });
        }
    }
    Ok(timers)
}

/// Runs one script in the leader's slot. Returns the contents of the slot.
async fn run_query_script(
    leader: &InjectionTarget<'_>,
    timers: &[ListedTimer],
    runner: &mut ScriptRunner<'_, '_>,
) -> Result<Vec<u8>, CaptureError> {
    const TIMER_GETTIME: u64 = 224;
    let (pages, mem) = (runner.pages, leader.mem);
    let answer = |index: usize| pages.slot_address(0) + (TIMER_ANSWERS_OFFSET + index * TIME_BYTES) as u64;
    let call = |(index, timer): (usize, &ListedTimer)| {
        InjectedCall::new("timer_gettime", TIMER_GETTIME, [u64::from(timer.id), answer(index)])
    };
    let calls: Vec<InjectedCall> = timers.iter().enumerate().map(call).collect();
    let failed = |operation| CaptureError::tracing(operation, leader.pid);
    let before = pages.save_slots(mem).map_err(failed("read the calls of"))?;
    let running = leader.write_script(&calls, pages)?;
    runner.injector.start_script(&running, leader.registers)?;
    runner.injector.wait_scripts(&mut vec![running], |_| true).await?;
    let mut slot = vec![0; SLOTS_BYTES_MIN as usize];
    mem.read_exact_at(&mut slot, pages.slot_address(0)).map_err(failed("read the answers of"))?;
    pages.restore_slots(&before, mem).map_err(failed("write the calls of"))?;
    Ok(slot)
}

/// Parses an interval timer (`struct itimerval`). Returns `None` if it is not armed. A timer that has expired counts as
/// armed if it is rearmed when its signal is delivered.
pub(in crate::capture) fn parse_interval_timer(which: usize, bytes: &[u8], at: usize) -> Option<IntervalTimer> {
    let mut time = parse_time(bytes, at, NS_PER_US);
    if time.remaining_ns > 0 {
        // The kernel has rounded the time left down.
        time.remaining_ns = time.remaining_ns.saturating_add(NS_PER_US);
    }
    (time != TimerSpec::default()).then_some(IntervalTimer { which: which as u32, time })
}

/// Parses two times, each of seconds and units: the interval, then the remaining time.
fn parse_time(bytes: &[u8], at: usize, unit_ns: u64) -> TimerSpec {
    let ns = |at: usize| {
        read_word(bytes, at).saturating_mul(NS_PER_SECOND).saturating_add(read_word(bytes, at + 8) * unit_ns)
    };
    TimerSpec { remaining_ns: ns(at + 16), interval_ns: ns(at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_timers_is_parsed() {
        let text = "ID: 3\nsignal: 34/0000000000000007\nnotify: signal/tid.42\nClockID: 0\n\
                    ID: 0\nsignal: 0/00007fff86e452a8\nnotify: none/pid.2634\nClockID: -2\n";
        let timers = parse_timers(text).unwrap();
        let [first, second] = timers[..] else { panic!("{timers:?}") };
        assert_eq!((first.id, first.clock, first.signal, first.tid), (0, -2, 0, 0));
        assert_eq!((second.id, second.clock, second.value, second.signal, second.tid), (3, 0, 7, 34, 42));
        let processor_time = parse_timers("ID: 0\nClockID: -6\n").unwrap();
        assert_eq!((processor_time[0].clock, refusals(1, &processor_time, &[7]).len()), (PROCESS_CPU_CLOCK, 0));
        assert_eq!(parse_timers("").unwrap(), []);
    }

    #[test]
    fn cpu_time_timers_are_restored_if_their_thread_is_known() {
        const THREADS: [u32; 2] = [41, 42];
        let refused = |clock: i64, threads: &[u32]| {
            let timer = ListedTimer { clock, ..ListedTimer::default() };
            refusals(41, &[timer], threads).first().map_or_else(String::new, Refusal::to_string)
        };
        let of = |id: i64, kind: i64| !id << CLOCK_ID_SHIFT | kind;
        for carried in [0, 1, 2, of(41, 6), of(42, 6), of(42, 4), of(41, 2), of(0, 1)] {
            assert_eq!(refused(carried, &THREADS), "", "clock {carried}");
        }
        assert_eq!(refused(of(0, 6), &THREADS[..1]), "", "its only thread has made it");
        let of_somebody =
            |clock, word| assert!(refused(clock, &THREADS).contains(word), "{}", refused(clock, &THREADS));
        of_somebody(of(0, 6), "does not show");
        of_somebody(of(43, 6), "a thread that has ended");
        of_somebody(of(42, 2), "another process");
        of_somebody(of(5, CLOCK_FD), "a device");
        of_somebody(12, "a device");
    }
}
