//! Timers of a process, which only it can ask for: interval timers with the first calls of the pause ([`crate::capture::calls::ask`]),
//! POSIX timers with calls of their own, where `/proc` lists any.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use farfork_sys::process;
use farfork_wire::descriptor::{IntervalTimer, NUMBERS_MAX, PosixTimer, TimeLeft};

use crate::capture::calls::inject::{Call, Injector};
use crate::capture::calls::lifeline::{DESKS_BYTES_MIN, Lifeline};
use crate::capture::calls::script::{self, ENTRIES_ADDED, ENTRY_BYTES, word};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::stop::stopped::StoppedThread;

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1000;

/// CLOCK_PROCESS_CPUTIME_ID, and the name that the kernel gives it in `/proc`.
const PROCESSOR_TIME: i64 = 2;
const LISTED_PROCESSOR_TIME: i64 = -6;

/// Clocks of processor time of others than the caller carry whose they are: an id, inverted, then whether it is a thread's, and which
/// of three ways to count, or that it is a device's (`include/linux/posix-timers.h`).
const CLOCK_ID_SHIFT: u32 = 3;
const CLOCK_OF_THREAD: i64 = 4;
const CLOCK_WAY: i64 = 3;
const CLOCK_OF_DEVICE: i64 = 3;

/// Bytes of `struct itimerspec` and `struct itimerval`.
pub(in crate::capture) const TIME_BYTES: usize = 32;

/// Most timers that one script asks for: what a desk has room for.
const TIMERS_PER_SCRIPT: usize = DESKS_BYTES_MIN as usize / (ENTRY_BYTES + TIME_BYTES) - 2 * ENTRIES_ADDED;

/// Where the answers begin.
const ANSWERS_AT: usize = (TIMERS_PER_SCRIPT + ENTRIES_ADDED) * ENTRY_BYTES;

const _: () = assert!(ANSWERS_AT + TIMERS_PER_SCRIPT * TIME_BYTES <= DESKS_BYTES_MIN as usize);

/// A POSIX timer as `/proc` lists it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::capture) struct Listed {
    id: u32,
    clock: i64,
    value: u64,
    /// 0 where nobody is told.
    signal: u32,
    /// The thread that is told, by its id on the host; 0 for the process.
    tid: i32,
}

/// The POSIX timers of a process, ascending by number.
pub(in crate::capture) fn list(pid: i32) -> Result<Vec<Listed>, CaptureError> {
    let text = process::read_text(&format!("/proc/{pid}/timers")).map_err(CaptureError::read(pid, "the timers"))?;
    let unknown = || std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not of the known form");
    parse(&text).ok_or_else(|| CaptureError::read(pid, "the timers")(unknown()))
}

fn parse(text: &str) -> Option<Vec<Listed>> {
    let mut timers: Vec<Listed> = Vec::new();
    for line in text.lines() {
        let (key, value) = line.split_once(": ")?;
        if key == "ID" {
            timers.push(Listed { id: value.trim().parse().ok()?, ..Listed::default() });
            continue;
        }
        let timer = timers.last_mut()?;
        match key {
            "signal" => {
                let (signal, told) = value.split_once('/')?;
                (timer.signal, timer.value) = (signal.parse().ok()?, u64::from_str_radix(told, 16).ok()?);
            }
            "notify" => {
                let (way, whom) = value.split_once('/')?;
                timer.signal = if way == "none" { 0 } else { timer.signal };
                timer.tid = whom.strip_prefix("tid.").map_or(Some(0), |tid| tid.parse().ok())?;
            }
            "ClockID" => {
                let clock = value.trim().parse().ok()?;
                timer.clock = if clock == LISTED_PROCESSOR_TIME { PROCESSOR_TIME } else { clock };
            }
            _ => {}
        }
    }
    timers.sort_unstable_by_key(|timer| timer.id);
    Some(timers)
}

/// What of them cannot be carried. `threads`: those of the process, by the ids that it knows, the first one first.
pub(in crate::capture) fn refusals(pid: i32, timers: &[Listed], threads: &[u32]) -> Vec<Refusal> {
    let refuse = |timer: &Listed| {
        let reason = if timer.id > NUMBERS_MAX { Some("its number is too high") } else { timer.refused_clock(threads) };
        reason.map(|reason| Refusal::new(format!("pid {pid}, POSIX timer {}", timer.id), reason))
    };
    timers.iter().filter_map(refuse).collect()
}

impl Listed {
    /// Why a child could not have its clock.
    fn refused_clock(&self, threads: &[u32]) -> Option<&'static str> {
        /// Wall clock, monotonic, processor time of the process, boot time, the alarms of both, and atomic time.
        const CARRIED_CLOCKS: [i64; 7] = [0, 1, 2, 7, 8, 9, 11];
        if CARRIED_CLOCKS.contains(&self.clock) {
            return None;
        }
        if self.clock >= 0 || self.clock & CLOCK_WAY == CLOCK_OF_DEVICE {
            return Some("it runs by the clock of a device, which is not carried");
        }
        let owner = u32::try_from(!(self.clock >> CLOCK_ID_SHIFT)).ok();
        match owner.filter(|_| self.clock & CLOCK_OF_THREAD != 0) {
            // Who made it is told by nobody; with one thread, it was that.
            Some(0) if threads.len() > 1 => Some(
                "it runs by the processor time of the thread that made it (CLOCK_THREAD_CPUTIME_ID), and the kernel does not tell \
                 which did; made by pthread_getcpuclockid(3) it is carried",
            ),
            Some(thread) if thread != 0 && !threads.contains(&thread) => {
                Some("it runs by the processor time of a thread that has ended, which is not carried")
            }
            None if owner.is_none_or(|process| process != 0 && threads.first() != Some(&process)) => {
                Some("it runs by the processor time of another process, which is not carried")
            }
            _ => None,
        }
    }

    /// Whether its clock goes on while the process stands still.
    fn goes_on(&self) -> bool {
        self.clock >= 0 && self.clock != PROCESSOR_TIME
    }
}

/// Asks for the time left of each; the process stands still since `since`, the leader has done its other calls. `inner_id` tells
/// a thread's id in the process's own namespace.
pub(in crate::capture) async fn ask(
    (leader, leader_id): (&StoppedThread, u32),
    listed: &[Listed],
    inner_id: impl Fn(i32) -> Option<u32>,
    (lifeline, mem, since): (&Lifeline, &File, Instant),
    injector: &mut Injector<'_>,
) -> Result<Vec<PosixTimer>, CaptureError> {
    let mut timers = Vec::with_capacity(listed.len());
    for some in listed.chunks(TIMERS_PER_SCRIPT) {
        let (desk, passed_ns) = run((leader, leader_id), some, (lifeline, mem, since), injector).await?;
        for (index, timer) in some.iter().enumerate() {
            let changed = || CaptureError::Unstable { pid: leader.tid, what: format!("POSIX timer {}", timer.id) };
            if script::result(&desk, index) != 0 {
                return Err(changed());
            }
            let tid = if timer.tid == 0 { 0 } else { inner_id(timer.tid).ok_or_else(changed)? };
            let mut time = time_at(&desk, ANSWERS_AT + index * TIME_BYTES, 1);
            // The clocks of the child go on from when it was stopped; its processor time stood still with it.
            let goes_on = time.left_ns != 0 && timer.goes_on();
            time.left_ns = if goes_on { time.left_ns.saturating_add(passed_ns) } else { time.left_ns };
            let (clock, signal, value) = (timer.clock as u32, timer.signal, timer.value);
            timers.push(PosixTimer { id: timer.id, clock, value, signal, tid, time });
        }
    }
    Ok(timers)
}

/// Runs one script on the leader's desk; what is there then, and how long the process had stood still.
async fn run(
    (leader, leader_id): (&StoppedThread, u32),
    timers: &[Listed],
    (lifeline, mem, since): (&Lifeline, &File, Instant),
    injector: &mut Injector<'_>,
) -> Result<(Vec<u8>, u64), CaptureError> {
    const TIMER_GETTIME: u64 = 224;
    let answer = |index: usize| lifeline.desk(0) + (ANSWERS_AT + index * TIME_BYTES) as u64;
    let call = |(index, timer): (usize, &Listed)| {
        Call::new("timer_gettime", TIMER_GETTIME, [u64::from(timer.id), answer(index)])
    };
    let calls: Vec<Call> = timers.iter().enumerate().map(call).collect();
    let failed = |operation| CaptureError::trace(operation, leader.tid);
    let script = script::encode(&calls, (leader_id, leader_id), lifeline.end());
    let before = lifeline.borrow(mem).map_err(failed("read the calls of"))?;
    mem.write_all_at(&script, lifeline.desk(0)).map_err(failed("write the calls of"))?;
    let running = lifeline.running(0, leader.tid, calls.len());
    let passed_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    injector.start(&running, &leader.registers)?;
    injector.finish(&mut vec![running], |_| true).await?;
    let mut desk = vec![0; DESKS_BYTES_MIN as usize];
    mem.read_exact_at(&mut desk, lifeline.desk(0)).map_err(failed("read the answers of"))?;
    lifeline.give_back(&before, mem).map_err(failed("write the calls of"))?;
    Ok((desk, passed_ns))
}

/// An interval timer that runs, or has gone off and will again when its signal is taken. `bytes` hold `struct itimerval` at
/// an offset.
pub(in crate::capture) fn interval_timer(which: usize, bytes: &[u8], at: usize) -> Option<IntervalTimer> {
    let time = time_at(bytes, at, NS_PER_US);
    (time != TimeLeft::default()).then_some(IntervalTimer { which: which as u32, time })
}

/// Two times of seconds and units: the interval, then what is left.
fn time_at(bytes: &[u8], at: usize, unit_ns: u64) -> TimeLeft {
    let ns = |at: usize| word(bytes, at).saturating_mul(NS_PER_SECOND).saturating_add(word(bytes, at + 8) * unit_ns);
    TimeLeft { left_ns: ns(at + 16), interval_ns: ns(at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let text = "ID: 3\nsignal: 34/0000000000000007\nnotify: signal/tid.42\nClockID: 0\n\
                    ID: 0\nsignal: 0/00007fff86e452a8\nnotify: none/pid.2634\nClockID: -2\n";
        let timers = parse(text).unwrap();
        let [first, second] = timers[..] else { panic!("{timers:?}") };
        assert_eq!((first.id, first.clock, first.signal, first.tid), (0, -2, 0, 0));
        assert_eq!((second.id, second.clock, second.value, second.signal, second.tid), (3, 0, 7, 34, 42));
        let processor_time = parse("ID: 0\nClockID: -6\n").unwrap();
        assert_eq!((processor_time[0].clock, refusals(1, &processor_time, &[7]).len()), (PROCESSOR_TIME, 0));
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn clocks_of_processor_time_are_carried_where_it_is_told_whose() {
        const THREADS: [u32; 2] = [41, 42];
        let refused = |clock: i64, threads: &[u32]| {
            let timer = Listed { clock, ..Listed::default() };
            refusals(41, &[timer], threads).first().map_or_else(String::new, Refusal::to_string)
        };
        let of = |id: i64, kind: i64| !id << CLOCK_ID_SHIFT | kind;
        for carried in [0, 1, 2, of(41, 6), of(42, 6), of(42, 4), of(41, 2), of(0, 1)] {
            assert_eq!(refused(carried, &THREADS), "", "clock {carried}");
        }
        assert_eq!(refused(of(0, 6), &THREADS[..1]), "", "its only thread has made it");
        let of_somebody =
            |clock, word| assert!(refused(clock, &THREADS).contains(word), "{}", refused(clock, &THREADS));
        of_somebody(of(0, 6), "does not tell");
        of_somebody(of(43, 6), "a thread that has ended");
        of_somebody(of(42, 2), "another process");
        of_somebody(of(5, CLOCK_OF_DEVICE), "a device");
        of_somebody(12, "a device");
    }
}
