//! Tests of the call timer on real threads: it ends the sleep of `sleep 60` early, even if another tracer holds the thread.

use std::io::{PipeWriter, Write as _};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_sys::process::{ProcStat, SystemCall};
use farfork_sys::{clock, priority, process, ptrace};

use super::attempts::AttemptThreads;
use super::expiry::{ExpiryOutcome, expire_call};
use super::schedule::ScheduledCall;
use super::{CallDeadline, CallSite, THREAD_NAME, run};

/// Time limit for steps that take milliseconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Time for which another tracer holds a thread: long enough for dozens of attempts.
const TRACED: Duration = Duration::from_millis(400);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts `sleep 60`. When it sleeps, returns the process and its call, with a deadline that has passed.
fn sleeper() -> (Child, CallDeadline) {
    const CLOCK_NANOSLEEP: u64 = 230;
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let tid = child.id().cast_signed();
    let mut site = None;
    until("it sleeps", || {
        let call = SystemCall::read(tid).ok().flatten().filter(|call| call.number == CLOCK_NANOSLEEP);
        site = call.map(|call| CallSite {
            number: call.number,
            mark: None,
            rsp: call.stack_pointer,
            rip: call.instruction_pointer,
        });
        site.is_some()
    });
    let start_ticks = ProcStat::read(tid).unwrap().start_ticks;
    (child, CallDeadline { tid, start_ticks, site: site.unwrap(), deadline_ns: clock::monotonic_ns(), result: 0 })
}

/// Traces a process from another thread, until the sender is dropped.
fn trace(tid: i32) -> (Sender<()>, JoinHandle<()>) {
    let (release, released) = mpsc::channel::<()>();
    let (report, traced) = mpsc::channel();
    let tracer = thread::spawn(move || {
        ptrace::seize(tid, 0).unwrap();
        report.send(()).unwrap();
        let _ = released.recv();
    });
    traced.recv().unwrap();
    (release, tracer)
}

/// Requires that the sleep ends without an error, long before its time limit.
fn require_ended(mut child: Child) {
    let started_at = Instant::now();
    // Do not call waitpid(2): it would also take the child's ptrace stops from the tracing thread of this process.
    until("the process ends", || ProcStat::read(child.id().cast_signed()).is_ok_and(|stat| stat.state == 'Z'));
    assert!(child.wait().unwrap().success());
    assert!(started_at.elapsed() < Duration::from_secs(55), "the call lasted for its whole limit");
}

#[test]
fn one_thread_makes_all_attempts_at_a_call() {
    let (child, call_deadline) = sleeper();
    let (release, tracer) = trace(call_deadline.tid);
    let mut threads = AttemptThreads::new().unwrap();
    threads.start(ScheduledCall::new(call_deadline, false)).unwrap();
    thread::sleep(TRACED);
    assert_eq!(threads.take_unfinished(), None);
    assert!(!threads.is_empty(), "the same thread still tries");
    drop(release);
    tracer.join().unwrap();
    until("the thread ends with the call", || threads.take_unfinished().is_none() && threads.is_empty());
    require_ended(child);
}

#[test]
fn a_tracer_that_detaches_during_an_attempt_does_not_end_the_attempts() {
    const ROUNDS: usize = 150;
    const TRACERS: usize = 3;
    for _ in 0..ROUNDS {
        let (child, call_deadline) = sleeper();
        let (tid, is_over) = (call_deadline.tid, AtomicBool::new(false));
        // The kernel detaches the thread when its tracer ends, and the next tracer attaches.
        let trace_in_turns = || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = thread::spawn(move || ptrace::seize(tid, 0)).join();
            }
        };
        thread::scope(|scope| {
            let tracers: Vec<_> = (0..TRACERS).map(|_| scope.spawn(trace_in_turns)).collect();
            until("an attempt succeeds", || expire_call(&call_deadline, false) == ExpiryOutcome::Done);
            is_over.store(true, Ordering::Relaxed);
            tracers.into_iter().for_each(|tracer| tracer.join().unwrap());
        });
        require_ended(child);
    }
}

#[test]
fn an_attempt_releases_its_thread_when_others_wait() {
    let (mut child, call_deadline) = sleeper();
    let (_release, _tracer) = trace(call_deadline.tid);
    let mut threads = AttemptThreads::new().unwrap();
    threads.set_crowded(true);
    threads.start(ScheduledCall::new(call_deadline, false)).unwrap();
    let mut first = None;
    until("it gives up its place", || {
        first = threads.take_unfinished();
        first.is_some()
    });
    assert!(threads.is_empty());
    threads.start(first.unwrap()).unwrap();
    let mut second = None;
    until("it does so again", || {
        second = threads.take_unfinished();
        second.is_some()
    });
    let pause = |pending: Option<ScheduledCall>| pending.unwrap().backoff.next_pause();
    assert!(pause(second) > pause(first), "its pauses go on where they were");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn retries_end_when_the_thread_is_in_a_later_call() {
    let (mut child, call_deadline) = sleeper();
    let (_release, _tracer) = trace(call_deadline.tid);
    let mut threads = AttemptThreads::new().unwrap();
    threads.start(ScheduledCall::new(call_deadline, false)).unwrap();
    threads.supersede(call_deadline.tid);
    until("they end", || threads.take_unfinished().is_none() && threads.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The policy number of sched_getscheduler(2), as `/proc` shows it.
fn policy(tid: i32) -> Option<u32> {
    const POLICY_AFTER_NAME: usize = 38;
    let stat = process::read_text(&format!("/proc/self/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(POLICY_AFTER_NAME)?.parse().ok()
}

/// Runs a timer in a thread named like its own threads. Returns the thread, its id, and the timer's input.
fn start_timer() -> (JoinHandle<()>, i32, PipeWriter) {
    let (output, input) = std::io::pipe().unwrap();
    let (report, reported) = mpsc::channel();
    let body = move || {
        report.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        run(&output.into());
    };
    let timer = thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(body).unwrap();
    (timer, reported.recv().unwrap(), input)
}

#[test]
fn a_timer_over_its_budget_ends_calls_with_ordinary_priority() {
    const SCHED_OTHER: u32 = 0;
    let (child, call_deadline) = sleeper();
    let (release, tracer) = trace(call_deadline.tid);
    let (timer, tid, mut input) = start_timer();
    input.write_all(&call_deadline.to_bytes()).unwrap();
    // The CPU time of the whole process counts, including this test's.
    let mut spent = 0_u64;
    until("the timer lowers its priority", || {
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            spent = std::hint::black_box(spent + 1);
        }
        policy(tid) == Some(SCHED_OTHER)
    });
    drop(release);
    tracer.join().unwrap();
    require_ended(child);
    drop(input);
    timer.join().unwrap();
}

#[test]
fn threads_of_attempts_run_with_the_priority_of_the_timer() {
    let caller = rustix::thread::gettid().as_raw_nonzero().get();
    if priority::make_real_time(caller).is_err() {
        // There is no real-time priority without CAP_SYS_NICE, or in a control group without time for real-time
        // threads.
        return;
    }
    let (child, call_deadline) = sleeper();
    let (release, tracer) = trace(call_deadline.tid);
    priority::make_real_time(caller).unwrap();
    let mut threads = AttemptThreads::new().unwrap();
    threads.start(ScheduledCall::new(call_deadline, false)).unwrap();
    let real_time = |tid: &i32| policy(*tid) == Some(1);
    let named = |tid: &i32| process::thread_name(*tid, *tid).is_ok_and(|name| name == THREAD_NAME.as_bytes());
    let own = std::process::id().cast_signed();
    until("it runs", || process::thread_ids(own).unwrap().iter().any(|tid| named(tid) && real_time(tid)));
    priority::make_ordinary(caller).unwrap();
    drop(release);
    tracer.join().unwrap();
    until("the thread ends", || threads.take_unfinished().is_none() && threads.is_empty());
    require_ended(child);
}
