//! Queries that only a stopped process itself can make: read-only system calls, in one thread after the other.
//! The calls run in pages that are mapped for them, as for a capture. The differ calls `StoppedProcess::run_queries`.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use farfork_sys::process::{self, ProcStatus};

use super::stop_guard::ProcessSnapshot;
use super::stopped_process::StoppedProcess;
use crate::capture::error::CaptureError;
use crate::capture::injection::injector::{self, InjectedCall, Injector};
use crate::capture::injection::pages::{InjectionLayout, InjectionPages, SLOTS_BYTES_MIN, ThreadScript};
use crate::capture::injection::script::{self, ENTRY_BYTES, EndSignal, TRAILER_ENTRIES};
use crate::capture::injection::script_runner::ScriptRunner;
use crate::capture::injection::sigreturn_frame::{Gadgets, RescueFrame, SigreturnFrame};
use crate::capture::open_memory;
use crate::capture::state::{ThreadExtendedState, seccomp};
use crate::capture::survey::ThreadProfile;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::tracer::executor::run_ready;

/// Time limit for all queries of all threads.
const QUERIES_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of a result buffer, in bytes. It is small, so that many queries fit into one script.
const RESULT_BUFFER_BYTES: u64 = 64;

/// Maximum number of queries of one script: each takes an entry and a result buffer.
const QUERIES_PER_SCRIPT: usize =
    (SLOTS_BYTES_MIN as usize - TRAILER_ENTRIES * ENTRY_BYTES) / (ENTRY_BYTES + RESULT_BUFFER_BYTES as usize);

/// An argument of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryArgument {
    /// A constant.
    Number(u64),
    /// The address of the result buffer, which has 64 bytes.
    ResultBuffer,
}

/// A system call that only reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryCall {
    /// Number of the system call on x86-64.
    pub number: u64,
    /// Arguments of the system call.
    pub arguments: [QueryArgument; 6],
}

/// The result of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryResult {
    /// The return value. Small negative values are usually errors.
    pub result: i64,
    /// The result buffer: the bytes that the kernel wrote, then zeroes.
    pub bytes: Vec<u8>,
}

/// Which threads make the queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryThreads {
    /// Only the main thread: for process-wide state.
    MainThread,
    /// All threads.
    AllThreads,
}

impl StoppedProcess {
    /// Makes threads run these queries. Returns the results of each thread in order, the main thread first.
    ///
    /// # Errors
    /// [`CaptureError`], for example if the process may not have executable memory, or does not finish its calls in time.
    pub fn run_queries(
        &mut self,
        thread_selection: QueryThreads,
        questions: &[QueryCall],
    ) -> Result<Vec<Vec<QueryResult>>, CaptureError> {
        let stopped = &mut self.stopped;
        let snapshot = stopped.snapshot.clone();
        let pid = snapshot.pid;
        let maps = process::read_maps(pid).map_err(CaptureError::reading(pid, "the memory map"))?;
        let vdso = maps.iter().find(|entry| entry.path == b"[vdso]").ok_or(CaptureError::ProcessGone { pid })?;
        let syscall_at = injector::find_vdso_syscall(pid, vdso).map_err(CaptureError::reading(pid, "the vdso"))?;
        let syscall_at = syscall_at.ok_or(CaptureError::ProcessGone { pid })?;
        let mem = open_memory(pid)?;
        let thread_extended_state: Result<Vec<ThreadExtendedState>, _> =
            snapshot.threads.iter().map(|one| ThreadExtendedState::read(one.tid)).collect();
        let thread_extended_state = thread_extended_state?;
        let gadgets = Gadgets::find(pid, &maps);
        let frame = SigreturnFrame::prepare(snapshot.leader(), &thread_extended_state[0], gadgets, &maps, &mem);
        let deadline = Deadline::after(QUERIES_TIMEOUT);
        let mut injector = Injector::new(pid, syscall_at, &deadline);
        let questioning = QuerySession {
            snapshot: &snapshot,
            extended_states: &thread_extended_state,
            rescue: RescueFrame { frame: frame.as_ref(), mem: &mem },
        };
        let answers = questioning.run(thread_selection, questions, &mut injector);
        stopped.add_withheld(&mut injector.withheld_signals);
        answers
    }
}

/// The state for running queries.
struct QuerySession<'a> {
    snapshot: &'a ProcessSnapshot,
    extended_states: &'a [ThreadExtendedState],
    /// Restores the main thread if this process dies.
    rescue: RescueFrame<'a>,
}

impl QuerySession<'_> {
    fn run(
        &self,
        thread_selection: QueryThreads,
        questions: &[QueryCall],
        injector: &mut Injector<'_>,
    ) -> Result<Vec<Vec<QueryResult>>, CaptureError> {
        let leader = self.snapshot.leader();
        let mut inner_ids = Vec::with_capacity(self.snapshot.threads.len());
        for thread in &self.snapshot.threads {
            let profile = ThreadProfile::read(self.snapshot.pid, thread.tid);
            let profile = profile.map_err(CaptureError::reading(self.snapshot.pid, "a thread"))?;
            seccomp::suspend(thread.tid, &profile.status)?;
            inner_ids.push(profile.inner_id());
        }
        let status = ProcStatus::read(leader.tid).map_err(CaptureError::reading(leader.tid, "status"))?;
        let end = EndSignal::choose(&status, self.snapshot);
        let entered = self.rescue.arm_leader(leader, end);
        let mapped = entered.and_then(|()| {
            let layout = InjectionLayout::for_threads(self.extended_states);
            run_ready(InjectionPages::map(self.snapshot, layout, end, self.rescue, injector))
        });
        let answers = mapped.and_then(|injection_pages| {
            let mut runner = ScriptRunner { pages: &injection_pages, injector };
            let answers = self.query_threads(thread_selection, questions, &inner_ids, &mut runner);
            let unmapped = injection_pages.unmap(leader.tid, &leader.registers, self.rescue, runner.injector);
            let unmapped = run_ready(unmapped);
            answers.and_then(|answers| unmapped.map(|()| answers))
        });
        self.snapshot.threads.iter().skip(1).for_each(super::stop_guard::StoppedThread::restore);
        self.rescue.disarm_leader(leader);
        answers
    }

    fn query_threads(
        &self,
        thread_selection: QueryThreads,
        questions: &[QueryCall],
        inner_ids: &[u32],
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<Vec<Vec<QueryResult>>, CaptureError> {
        // Write the code, and the frames that restore the threads.
        let scripts: Vec<ThreadScript> =
            inner_ids.iter().map(|id| ThreadScript { calls: Vec::new(), inner_id: *id }).collect();
        runner.pages.write(self.snapshot, self.extended_states, &scripts, self.rescue.mem)?;
        let count = if thread_selection == QueryThreads::MainThread { 1 } else { inner_ids.len() };
        let mut all = vec![Vec::with_capacity(questions.len()); count];
        for (index, answers) in all.iter_mut().enumerate() {
            for some in questions.chunks(QUERIES_PER_SCRIPT) {
                answers.extend(self.query_thread(index, some, inner_ids, runner)?);
            }
        }
        Ok(all)
    }

    /// Runs one script of one thread, in the first slot. The script may use the space of all slots.
    fn query_thread(
        &self,
        index: usize,
        questions: &[QueryCall],
        inner_ids: &[u32],
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<Vec<QueryResult>, CaptureError> {
        let (thread, injection_pages) = (&self.snapshot.threads[index], runner.pages);
        let (mem, slot_address) = (self.rescue.mem, injection_pages.slot_address(0));
        let answers_at = ((questions.len() + TRAILER_ENTRIES) * ENTRY_BYTES) as u64;
        let calls: Vec<InjectedCall> = questions
            .iter()
            .zip(0..)
            .map(|(one, at)| injected_call(one, slot_address + answers_at + at * RESULT_BUFFER_BYTES))
            .collect();
        let mut bytes = script::encode(&calls, (inner_ids[0], inner_ids[index]), injection_pages.end_signal());
        bytes.resize(answers_at as usize + questions.len() * RESULT_BUFFER_BYTES as usize, 0);
        let failed = |operation| CaptureError::tracing(operation, thread.tid);
        mem.write_all_at(&bytes, slot_address).map_err(failed("write the calls of"))?;
        let running = injection_pages.script_in_first_slot(index, thread.tid, calls.len());
        runner.injector.point_to_script(&running, &thread.registers)?;
        thread.block_signals(injection_pages.end_signal())?;
        if index == 0 {
            self.rescue.disarm();
        }
        runner.injector.resume(&running)?;
        run_ready(runner.injector.wait_scripts(&mut vec![running], |_| true))?;
        mem.read_exact_at(&mut bytes, slot_address).map_err(failed("read the answers of"))?;
        let answer = |at: usize| {
            let start = answers_at as usize + at * RESULT_BUFFER_BYTES as usize;
            let answer = bytes[start..start + RESULT_BUFFER_BYTES as usize].to_vec();
            QueryResult { result: script::result_of(&bytes, at).cast_signed(), bytes: answer }
        };
        Ok((0..questions.len()).map(answer).collect())
    }
}

fn injected_call(question: &QueryCall, answer_at: u64) -> InjectedCall {
    let argument = |argument: QueryArgument| match argument {
        QueryArgument::Number(number) => number,
        QueryArgument::ResultBuffer => answer_at,
    };
    InjectedCall::new("a question", question.number, question.arguments.map(argument)).never_failing()
}
