//! The worker process: joins its control groups, then runs the tests that the supervisor requests, one after the other.
//!
//! It reports each panic at once, so that the supervisor knows the reason even if the test hangs afterwards.

use std::any::Any;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use farfork_sys::{cgroup, namespace};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::outcome::{Failure, FailureKind};
use super::protocol::{Channel, Report, Request};
use crate::harness::print_error;
use crate::harness::wait::TimedOut;
use crate::test::{SharedCluster, Test};

/// The first argument of a worker.
pub(crate) const WORKER_ARGUMENT: &str = "--worker";

/// The socket to the supervisor. The panic hook uses it too.
static CHANNEL: OnceLock<Mutex<Channel>> = OnceLock::new();

/// The panics of the current test's threads.
static PANICS: Mutex<Vec<Failure>> = Mutex::new(Vec::new());

/// Runs the tests that the supervisor at `socket` requests. `find` returns a test by its name.
pub(crate) fn run_worker(socket: &Path, find: impl Fn(&str) -> Option<&'static Test>) -> ExitCode {
    let channel = UnixStream::connect(socket).and_then(Channel::new).expect("the supervisor listens");
    CHANNEL.set(Mutex::new(channel)).expect("the channel is set once");
    install_panic_hook();
    // Sets the name in process lists, which would otherwise be `exe`.
    let _ = rustix::thread::set_name(c"test-worker");
    let shared = Arc::new(SharedCluster::default());
    loop {
        let request = channel_lock().receive();
        match request {
            Ok(Request::Enter { supervisor, groups }) => enter(supervisor, &groups),
            Ok(Request::Run { test }) => {
                let test = find(&test).expect("both processes have the same tests");
                let failure = run_test(test, &shared);
                report(&Report::Ended { failure });
            }
            // A late answer to the report of a timeout. The thread that sent the report no longer waits.
            Ok(Request::Resume) => {}
            Ok(Request::Stop) => {
                report(&Report::Stopped { remains: shared.stop() });
                return ExitCode::SUCCESS;
            }
            // receive fails if the supervisor has ended.
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

fn enter(supervisor: u32, groups: &[PathBuf]) {
    set_parent_process_death_signal(Some(Signal::KILL)).expect("SIGKILL is a signal");
    // The supervisor may have ended before PR_SET_PDEATHSIG was set.
    if getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()) != Some(supervisor) {
        std::process::exit(1);
    }
    let own = std::process::id().cast_signed();
    for group in groups {
        cgroup::move_process(group, own)
            .unwrap_or_else(|error| panic!("{} cannot be joined: {error}", group.display()));
    }
    // System V objects end with their namespace. Otherwise, those of killed tests would stay.
    namespace::unshare_ipc().unwrap_or_else(|error| panic!("no IPC namespace can be made: {error}"));
    report(&Report::Entered);
}

fn run_test(test: &'static Test, shared: &Arc<SharedCluster>) -> Option<Failure> {
    panics_lock().clear();
    let used = Arc::clone(shared);
    // Tests let their thread enter namespaces, so each test has a new thread.
    let body = thread::spawn(move || panic::catch_unwind(AssertUnwindSafe(|| test.run(&used))));
    let outcome = body.join().unwrap_or_else(Err);
    let mut panics = std::mem::take(&mut *panics_lock());
    match outcome {
        Ok(()) if panics.is_empty() => return None,
        // Only another thread of the test has failed.
        Ok(()) => {}
        // A panic that `resume_unwind` continues does not call the hook.
        Err(payload) if panics.is_empty() => panics.push(failure_of(&*payload)),
        Err(_) => {}
    }
    shared.print_logs();
    Failure::from_panics(&panics).map(|failure| Failure { has_no_cluster: shared.has_failed_to_start(), ..failure })
}

/// Installs a hook that prints, records and reports a panic. After a timeout, the hook waits until the supervisor has
/// recorded the state of all processes, because unwinding ends them.
fn install_panic_hook() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        let mut failure = failure_of(info.payload());
        if info.payload().is::<TimedOut>() {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            print_error(format_args!("a wait timed out at {place}:\n{}", failure.reason));
        } else {
            print(info);
        }
        if let Some(place) = info.location() {
            let reason = failure.reason.trim_start();
            let (first, rest) = reason.split_once('\n').unwrap_or((reason, ""));
            failure.reason = format!("{first} ({}:{})\n{rest}", place.file(), place.line()).trim_end().to_owned();
        }
        panics_lock().push(failure.clone());
        let is_time_out = failure.kind == FailureKind::TimedOut;
        let mut channel = channel_lock();
        if channel.send(&Report::Panicked(failure)).is_ok() && is_time_out {
            let _ = channel.receive::<Request>();
        }
    }));
}

fn failure_of(payload: &(dyn Any + Send)) -> Failure {
    if let Some(TimedOut(message)) = payload.downcast_ref() {
        return Failure::timed_out(message);
    }
    let text = payload.downcast_ref::<String>().map(String::as_str);
    Failure::wrong(text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message"))
}

fn report(report: &Report) {
    // Sending fails if the supervisor has ended. Then the next receive fails too, and the worker exits.
    let _ = channel_lock().send(report);
}

fn channel_lock() -> MutexGuard<'static, Channel> {
    CHANNEL.get().expect("the channel is set at the start").lock().unwrap_or_else(PoisonError::into_inner)
}

fn panics_lock() -> MutexGuard<'static, Vec<Failure>> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}
