//! Questions that only a stopped process itself can ask the kernel: system calls that read, made in its threads one after the
//! other, in pages that are mapped for it as for a capture.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use farfork_sys::process::{self, Status};

use super::standstill::Standstill;
use super::stopped::Snapshot;
use crate::capture::calls::inject::{self, Call, Injector};
use crate::capture::calls::lifeline::{DESKS_BYTES_MIN, Lifeline, Room, Task};
use crate::capture::calls::rescue::{self, Gadgets, Rescue};
use crate::capture::calls::script::{self, ENTRIES_ADDED, ENTRY_BYTES, EndSignal};
use crate::capture::error::CaptureError;
use crate::capture::open_memory;
use crate::capture::state::{Standing, filters};
use crate::capture::survey::Profile;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::tracer::post::at_once;

/// For all threads to ask all.
const QUESTIONS_LIMIT: Duration = Duration::from_secs(5);

/// Most bytes of one answer, so that many questions fit into one script.
const ANSWER_BYTES: u64 = 64;

/// Questions of one script: each has an entry and room for an answer.
const QUESTIONS_PER_SCRIPT: usize =
    (DESKS_BYTES_MIN as usize - ENTRIES_ADDED * ENTRY_BYTES) / (ENTRY_BYTES + ANSWER_BYTES as usize);

/// An argument of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionArgument {
    /// This number.
    Number(u64),
    /// Where the kernel is to write the answer, which has 64 bytes at most.
    Answer,
}

/// A system call that reads, and changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Its number on x86-64.
    pub number: u64,
    /// What it is given.
    pub arguments: [QuestionArgument; 6],
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its result; small negative values are mostly errors.
    pub result: i64,
    /// What the kernel wrote, and zeroes.
    pub bytes: Vec<u8>,
}

/// Which threads are to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Respondents {
    /// The main thread alone: what is the process's.
    MainThread,
    /// Each.
    AllThreads,
}

impl Standstill {
    /// Has threads ask these questions; the answers of each, in order, the main thread first.
    ///
    /// # Errors
    /// The process may have no memory that can be executed, or does not make its calls in time.
    pub fn ask(&mut self, who: Respondents, questions: &[Question]) -> Result<Vec<Vec<Answer>>, CaptureError> {
        let stopped = &mut self.stopped;
        let snapshot = stopped.snapshot.clone();
        let pid = snapshot.pid;
        let maps = process::maps(pid).map_err(CaptureError::read(pid, "the memory map"))?;
        let vdso = maps.iter().find(|entry| entry.path == b"[vdso]").ok_or(CaptureError::Gone { pid })?;
        let syscall_at = inject::syscall_of_vdso(pid, vdso).map_err(CaptureError::read(pid, "the vdso"))?;
        let syscall_at = syscall_at.ok_or(CaptureError::Gone { pid })?;
        let mem = open_memory(pid)?;
        let standing: Result<Vec<Standing>, _> = snapshot.threads.iter().map(|one| Standing::read(one.tid)).collect();
        let standing = standing?;
        let gadgets = Gadgets::find(pid, &maps);
        let rescue = Rescue::prepare(snapshot.leader(), &standing[0], gadgets, &maps, &mem);
        let deadline = Deadline::after(QUESTIONS_LIMIT);
        let mut injector = Injector::new(pid, syscall_at, &deadline);
        let questioning = Questioning { snapshot: &snapshot, standing: &standing, rescue: rescue.as_ref(), mem: &mem };
        let answers = questioning.run(who, questions, &mut injector);
        stopped.withhold(&mut injector.withheld);
        answers
    }
}

/// What is needed to have the threads ask.
struct Questioning<'a> {
    snapshot: &'a Snapshot,
    standing: &'a [Standing],
    rescue: Option<&'a Rescue>,
    mem: &'a File,
}

impl Questioning<'_> {
    fn run(
        &self,
        who: Respondents,
        questions: &[Question],
        injector: &mut Injector<'_>,
    ) -> Result<Vec<Vec<Answer>>, CaptureError> {
        let leader = self.snapshot.leader();
        let mut inner_ids = Vec::with_capacity(self.snapshot.threads.len());
        for thread in &self.snapshot.threads {
            let profile = Profile::read(self.snapshot.pid, thread.tid);
            let profile = profile.map_err(CaptureError::read(self.snapshot.pid, "a thread"))?;
            filters::suspend(thread.tid, &profile.status)?;
            inner_ids.push(profile.inner_id());
        }
        let status = Status::read(leader.tid).map_err(CaptureError::read(leader.tid, "status"))?;
        let end = EndSignal::for_process(&status, self.snapshot);
        let rescued = (self.rescue, self.mem);
        let entered = rescue::enter(leader, end, rescued);
        let mapped = entered.and_then(|()| {
            let room = Room::of(self.standing);
            at_once(Lifeline::map(self.snapshot, room, end, rescued, injector))
        });
        let answers = mapped.and_then(|lifeline| {
            let answers = self.ask_threads(who, questions, &inner_ids, (&lifeline, injector));
            let unmapped = at_once(lifeline.unmap((leader.tid, &leader.registers), rescued, injector));
            answers.and_then(|answers| unmapped.map(|()| answers))
        });
        self.snapshot.threads.iter().skip(1).for_each(super::stopped::StoppedThread::restore);
        rescue::leave(leader, rescued);
        answers
    }

    fn ask_threads(
        &self,
        who: Respondents,
        questions: &[Question],
        inner_ids: &[u32],
        (lifeline, injector): (&Lifeline, &mut Injector<'_>),
    ) -> Result<Vec<Vec<Answer>>, CaptureError> {
        // Code, and the frames that lead home.
        let tasks: Vec<Task> = inner_ids.iter().map(|id| Task { calls: Vec::new(), inner_id: *id }).collect();
        lifeline.fill(self.snapshot, self.standing, &tasks, self.mem)?;
        let count = if who == Respondents::MainThread { 1 } else { inner_ids.len() };
        let mut all = vec![Vec::with_capacity(questions.len()); count];
        for (index, answers) in all.iter_mut().enumerate() {
            for some in questions.chunks(QUESTIONS_PER_SCRIPT) {
                answers.extend(self.ask_thread(index, some, inner_ids, (lifeline, injector))?);
            }
        }
        Ok(all)
    }

    /// One script of one thread, on the first desk, which has all of the room.
    fn ask_thread(
        &self,
        index: usize,
        questions: &[Question],
        inner_ids: &[u32],
        (lifeline, injector): (&Lifeline, &mut Injector<'_>),
    ) -> Result<Vec<Answer>, CaptureError> {
        let (thread, desk) = (&self.snapshot.threads[index], lifeline.desk(0));
        let answers_at = ((questions.len() + ENTRIES_ADDED) * ENTRY_BYTES) as u64;
        let calls: Vec<Call> =
            questions.iter().zip(0..).map(|(one, at)| call(one, desk + answers_at + at * ANSWER_BYTES)).collect();
        let mut bytes = script::encode(&calls, (inner_ids[0], inner_ids[index]), lifeline.end());
        bytes.resize(answers_at as usize + questions.len() * ANSWER_BYTES as usize, 0);
        let failed = |operation| CaptureError::trace(operation, thread.tid);
        self.mem.write_all_at(&bytes, desk).map_err(failed("write the calls of"))?;
        let running = lifeline.running_on_first_desk(index, thread.tid, calls.len());
        injector.aim(&running, &thread.registers)?;
        thread.block_signals(lifeline.end())?;
        if let Some(rescue) = self.rescue.filter(|_| index == 0) {
            rescue.disarm(self.mem);
        }
        injector.go(&running)?;
        at_once(injector.finish(&mut vec![running], |_| true))?;
        self.mem.read_exact_at(&mut bytes, desk).map_err(failed("read the answers of"))?;
        let answer = |at: usize| {
            let start = answers_at as usize + at * ANSWER_BYTES as usize;
            let answer = bytes[start..start + ANSWER_BYTES as usize].to_vec();
            Answer { result: script::result(&bytes, at).cast_signed(), bytes: answer }
        };
        Ok((0..questions.len()).map(answer).collect())
    }
}

fn call(question: &Question, answer_at: u64) -> Call {
    let argument = |argument: QuestionArgument| match argument {
        QuestionArgument::Number(number) => number,
        QuestionArgument::Answer => answer_at,
    };
    Call::new("a question", question.number, question.arguments.map(argument)).with_any_result()
}
