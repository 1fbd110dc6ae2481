//! The look at a running process before it is stopped: what would be carried, what is refused, and what the pause
//! then needs at hand. Everything here may change until the pause; what matters is read again from the template.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use farfork_sys::companion;
use farfork_sys::process::{self, MapEntry, SchedulingAttributes, Stat, Status};
use farfork_sys::socket_diagnosis::Diagnosis;
use farfork_wire::descriptor::THREADS_MAX;

use super::calls::inject;
use super::error::{CaptureError, Refusal};
use super::files::{self, OpenFd, ProgramSockets, Streams};
use super::memory;
use super::memory::FileSystems;
use super::state::link::link;
use super::state::namespaces::{self, NamespacePolicy};
use super::state::program::Program;
use super::state::root::{self, Root};
use super::state::{apart, filters, time_namespace, timers, users};
use super::stop::{freezer, inexact, tracers, vfork, waits};

/// What is a thread's own and can be read while it runs.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) name: Vec<u8>,
    pub(super) status: Status,
    pub(super) scheduling: SchedulingAttributes,
    /// Not known of the main thread: that of a process that stands is ([`Answers`](crate::capture::calls::ask::Answers)).
    pub(super) timer_slack_ns: Option<u64>,
}

impl Profile {
    pub(super) fn read(pid: i32, tid: i32) -> std::io::Result<Self> {
        let profile = Self::with(tid, process::name(pid, tid)?, Status::read(tid)?)?;
        Ok(Self { timer_slack_ns: Some(timer_slack_ns(tid)?), ..profile })
    }

    /// That of a thread whose name and status were read already.
    fn with(tid: i32, name: Vec<u8>, status: Status) -> std::io::Result<Self> {
        Ok(Self { name, status, scheduling: process::scheduling(tid)?, timer_slack_ns: None })
    }

    /// Its id in the innermost pid namespace: what the program itself knows.
    pub(super) fn inner_id(&self) -> u32 {
        self.status.namespace_ids.last().copied().unwrap_or(0)
    }
}

/// What the kernel may add to a thread's timers.
pub(super) fn timer_slack_ns(tid: i32) -> std::io::Result<u64> {
    Ok(process::read_line(&format!("/proc/{tid}/timerslack_ns"))?.parse().unwrap_or(0))
}

/// What a running process looks like.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) pid: i32,
    /// All else here is of a process that ran this.
    pub(super) program: Program,
    pub(super) stat: Stat,
    pub(super) profiles: BTreeMap<i32, Profile>,
    pub(super) maps: Vec<MapEntry>,
    pub(super) fds: Vec<OpenFd>,
    /// Where it has Unix sockets.
    pub(super) diagnosis: Option<Diagnosis>,
    /// Areas that are locked, which fork(2) makes no others.
    pub(super) locked: Vec<Range<u64>>,
    /// Private areas in huge pages of hugetlbfs, with the kernel's flags, which a clone loses with them.
    pub(super) huge: Vec<MapEntry>,
    pub(super) file_systems: FileSystems,
    /// Address of a `syscall` instruction.
    pub(super) syscall_at: u64,
    pub(super) refusals: Vec<Refusal>,
    pub(super) notes: Vec<String>,
}

/// How often a process is looked at anew that began another program meanwhile.
const PROGRAMS_MAX: usize = 8;

/// How thoroughly to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Before a capture: what costs the process nothing, and is needed for it.
    Quick,
    /// For a report: with notes, and the kernel also walks over all of its memory.
    Thorough {
        /// A pager of ours serves its missing pages.
        is_served: bool,
    },
}

impl Survey {
    /// Looks at `pid`. What cannot be carried is in `refusals`; an error means that there is nothing to look at. `streams`:
    /// those of the tree, where it is not the first process of one.
    pub(super) fn of(
        pid: i32,
        depth: Depth,
        sockets: &ProgramSockets,
        streams: Option<&Streams>,
    ) -> Result<Self, CaptureError> {
        for _ in 0..PROGRAMS_MAX {
            let stat = Stat::read(pid).map_err(|_| CaptureError::Gone { pid })?;
            let status = Status::read(pid).map_err(|_| CaptureError::Gone { pid })?;
            let out_of_question = refuse_at_sight(pid, &stat, &status, sockets);
            if !out_of_question.is_empty() {
                return Err(CaptureError::refused(pid, out_of_question));
            }
            let program = Program::of(pid)?;
            let survey = Self::of_program(program.clone(), (stat, status), depth, sockets, streams);
            if program.is_that_of(pid)? {
                return survey;
            }
        }
        Err(Program::changed(pid))
    }

    /// Looks at a process that runs `program`. Where it runs another in the end, nothing of this is to be relied upon.
    fn of_program(
        program: Program,
        (stat, status): (Stat, Status),
        depth: Depth,
        sockets: &ProgramSockets,
        streams: Option<&Streams>,
    ) -> Result<Self, CaptureError> {
        let pid = status.process;
        let maps = match depth {
            Depth::Quick => process::maps(pid),
            Depth::Thorough { .. } => process::smaps(pid),
        };
        let mut maps = maps.map_err(CaptureError::read(pid, "the memory map"))?;
        if depth == (Depth::Thorough { is_served: true }) {
            maps.iter_mut().for_each(|entry| entry.clear_flag("um"));
        }
        let fds = files::open_fds(pid, sockets, streams)?;
        let mut file_systems = FileSystems::new(sockets.copies_files);
        file_systems.mark(pid, &mut maps);
        let (locked, huge) = marked_areas(pid, &maps, &status)?;
        let profiles = profiles(pid, stat.name.clone(), status)?;
        let mut survey = Self {
            pid,
            program,
            stat,
            profiles,
            syscall_at: 0,
            refusals: Vec::new(),
            notes: Vec::new(),
            diagnosis: files::diagnosis(pid, &fds)?,
            locked,
            huge,
            file_systems,
            maps,
            fds,
        };
        survey.find_vdso()?;
        survey.refuse_threads()?;
        survey.refuse_mappings(depth)?;
        survey.refusals.extend(survey.file_systems.refusals(pid, &survey.maps));
        let root = Root::of(streams.map_or(pid, Streams::first))?;
        survey.refusals.extend(root.refusal(pid, &link(pid, pid, "root")?));
        survey.refusals.extend(root::current_refusal(pid));
        survey.refusals.extend(files::refusals((pid, root), &survey.fds)?);
        survey.refusals.extend(files::foreign_pidfds(streams.map_or(pid, Streams::first), pid, &survey.fds)?);
        survey.refusals.extend(files::missing_caller(pid, &survey.fds, sockets));
        // Who asks itself waits already, and is refused what it must be in the pause.
        if depth != Depth::Quick || sockets.caller.is_none() {
            survey.refusals.extend(timers::refusals(pid, &timers::list(pid)?, &survey.inner_ids()));
        }
        survey.notes.extend(memory::object::note_of_followed((pid, &survey.fds), &survey.maps));
        if depth == Depth::Quick {
            survey.profiles.keys().for_each(|tid| waits::look(*tid));
        } else {
            survey.note_what_stays_behind();
            survey.notes.extend(inexact::notes(survey.profiles.keys().copied()));
        }
        Ok(survey)
    }

    /// Adds what its children would lack of its namespaces, or have otherwise.
    pub(super) fn compare_namespaces(&mut self, is_first: bool, policy: NamespacePolicy) -> Result<(), CaptureError> {
        let found = namespaces::compare(self.pid, &self.fds, is_first, policy)?;
        self.refusals.extend(found.refusals);
        self.notes.extend(found.notes);
        Ok(())
    }

    /// A note as it stands beside those of a tree's other processes.
    pub(super) fn name_note(&self, first: i32, note: &str) -> String {
        if self.pid == first { note.to_owned() } else { format!("pid {}: {note}", self.pid) }
    }

    /// The ids of its threads there, the process's own first.
    pub(super) fn inner_ids(&self) -> Vec<u32> {
        let others = self.profiles.iter().filter(|(tid, _)| **tid != self.pid).map(|(_, profile)| profile.inner_id());
        std::iter::once(self.inner_id()).chain(others).collect()
    }

    /// The process's id in its innermost pid namespace.
    pub(super) fn inner_id(&self) -> u32 {
        self.profiles.get(&self.pid).map_or(0, Profile::inner_id)
    }

    /// A thread, by its own id, is kept to a CPU only until it has its answer: it has not chosen that for its life.
    pub(super) fn let_run_anywhere(&mut self, thread: u32) {
        let kept = self.profiles.values_mut().filter(|profile| profile.inner_id() == thread);
        kept.for_each(|profile| profile.status.cpus.fill(u32::MAX));
    }

    /// The vdso is code that each process has; its `syscall` instruction is the one that capture uses.
    fn find_vdso(&mut self) -> Result<(), CaptureError> {
        let pid = self.pid;
        let Some(vdso) = self.maps.iter().find(|entry| entry.path == b"[vdso]") else {
            let reason = "it has no vdso (booted with vdso=0, or it unmapped its own)";
            self.refusals.push(Refusal::new(format!("pid {pid}"), reason));
            return Ok(());
        };
        match inject::syscall_of_vdso(pid, vdso).map_err(CaptureError::read(pid, "the vdso"))? {
            Some(address) => self.syscall_at = address,
            None => self.refusals.push(Refusal::new(format!("pid {pid}"), "its vdso has no system call instruction")),
        }
        Ok(())
    }

    /// Only the kernel's flags tell of an area that children lack, and only `smaps` tells those: where an area would be refused, it is asked.
    fn refuse_mappings(&mut self, depth: Depth) -> Result<(), CaptureError> {
        let pid = self.pid;
        let judge = |maps: &[MapEntry]| [memory::refusals(pid, maps), memory::refusals_by_file(pid, maps)].concat();
        let mut refusals = judge(&self.maps);
        if depth == Depth::Quick && !refusals.is_empty() {
            let mut maps = process::smaps(pid).map_err(CaptureError::read(pid, "the memory map"))?;
            // Of who serves an area a quick look does not judge.
            maps.iter_mut().for_each(|entry| ["um", "uw", "ui"].iter().for_each(|flag| entry.clear_flag(flag)));
            self.file_systems.mark(pid, &mut maps);
            refusals = judge(&maps);
        }
        self.refusals.extend(refusals);
        Ok(())
    }

    fn refuse_threads(&mut self) -> Result<(), CaptureError> {
        let pid = self.pid;
        if !self.profiles.contains_key(&pid) {
            return Err(CaptureError::Gone { pid });
        }
        if self.profiles.len() > THREADS_MAX {
            let reason = format!("it has {} threads, more than {THREADS_MAX}", self.profiles.len());
            self.refusals.push(Refusal::new(format!("pid {pid}"), reason));
        }
        self.refusals.extend(apart::refusals(pid, self.profiles.keys().copied()));
        for (tid, profile) in &self.profiles {
            self.refusals.extend(filters::refusal(pid, *tid, &profile.status));
            if profile.status.has_shadow_stack {
                let reason = "it has a shadow stack, which is not carried yet";
                self.refusals.push(Refusal::new(format!("pid {pid}, thread {tid}"), reason));
            }
            if *tid == pid && profile.scheduling.deadline.is_some() && !profile.scheduling.resets_on_fork {
                let reason =
                    "it is scheduled by deadlines (SCHED_DEADLINE) and may not fork: give it SCHED_FLAG_RESET_ON_FORK";
                self.refusals.push(Refusal::new(format!("pid {pid}, thread {tid}"), reason));
            }
            // Who waits in vfork(2) waits as for a disk.
            if profile.status.state == "D" && vfork::keeps(*tid) {
                let reason =
                    "it waits in vfork(2) for a child that has not yet called exec or exit; try again when that has";
                self.refusals.push(Refusal::new(format!("pid {pid}, thread {tid}"), reason));
            }
        }
        Ok(())
    }

    fn note_what_stays_behind(&mut self) {
        let absent: u64 = self.maps.iter().filter(|entry| memory::is_left_out(entry)).map(MapEntry::bytes).sum();
        if absent > 0 {
            self.notes.push(format!(
                "{} KiB of its memory are marked MADV_DONTFORK, and are shared, of a file, or marked MADV_DONTDUMP as well: its children lack them, as after fork(2), and fail where they touch them",
                absent >> 10
            ));
        }
        let huge: u64 = self.maps.iter().filter(|entry| entry.has_flag("ht")).map(MapEntry::bytes).sum();
        if huge > 0 {
            self.notes.push(format!(
                "{} KiB of its memory are in huge pages of hugetlbfs: its children have them in ordinary ones",
                huge >> 10
            ));
        }
        if link(self.pid, self.pid, "exe").is_ok_and(|exe| exe.as_bytes().ends_with(files::DELETED_SUFFIX)) {
            self.notes.push(
                "its executable was deleted or replaced: its children have a copy, and are restored one by one"
                    .to_owned(),
            );
        }
        self.notes.extend(files::versions::unproved((self.pid, &self.fds), &self.maps));
        if self.stat.state == 'T' {
            self.notes.push("it is stopped by a signal; its children will run".to_owned());
        }
    }
}

/// The areas that are locked, and private ones in huge pages. Only `smaps` tells their flags, and only of the process itself.
fn marked_areas(
    pid: i32,
    maps: &[MapEntry],
    status: &Status,
) -> Result<(Vec<Range<u64>>, Vec<MapEntry>), CaptureError> {
    if status.locked_bytes == 0 && !maps.iter().any(memory::is_private_huge) {
        return Ok((Vec::new(), Vec::new()));
    }
    let areas = process::smaps(pid).map_err(CaptureError::read(pid, "the memory map"))?;
    let locked = areas.iter().filter(|entry| entry.has_flag("lo")).map(|entry| entry.start..entry.end).collect();
    Ok((locked, areas.into_iter().filter(memory::is_private_huge).collect()))
}

/// What makes a process out of the question, without a closer look.
fn refuse_at_sight(pid: i32, stat: &Stat, status: &Status, sockets: &ProgramSockets) -> Vec<Refusal> {
    let refuse = |reason: String| vec![Refusal::new(format!("pid {pid}"), reason)];
    if pid == companion::owner_pid() {
        return refuse("it is farfork itself".to_owned());
    }
    if status.process != pid {
        return refuse(format!("it is a thread of pid {}; prepare that", status.process));
    }
    if stat.is_kernel_thread() {
        return refuse("it is a thread of the kernel".to_owned());
    }
    if matches!(stat.state, 'Z' | 'X') {
        let alone = process::threads(pid).is_ok_and(|tids| tids.len() <= 1);
        let reason = if alone { "it has ended (a zombie)" } else { "its main thread has ended while others go on" };
        return refuse(reason.to_owned());
    }
    // Who descends from what is being captured may have been stopped before it was looked at.
    if let Some(refusal) = tracers::refusal_of_staying(pid, status) {
        return vec![refusal];
    }
    // Who has just asked for it itself is not frozen; should it be the next moment, it does not stop, and is told then.
    let asked_itself = sockets.caller.is_some();
    if !asked_itself && let Some(group) = freezer::frozen_by(pid) {
        return refuse(format!("it is frozen by the control group {}; thaw that first", group.display()));
    }
    // Our libraries have 64 bits; what else speaks like them is found out at the stop.
    if !asked_itself && is_32_bit(pid) {
        return refuse("it is a 32-bit program".to_owned());
    }
    users::refusal(pid).into_iter().chain(time_namespace::refusal(pid)).collect()
}

/// From the class in its executable's ELF header; what cannot be read is taken for 64-bit and found out at the stop.
fn is_32_bit(pid: i32) -> bool {
    use std::io::Read;
    const ELF_CLASS_32: u8 = 1;
    let mut head = [0; 5];
    let read = fs::File::open(format!("/proc/{pid}/exe")).and_then(|mut exe| exe.read_exact(&mut head));
    read.is_ok() && &head[..4] == b"\x7fELF" && head[4] == ELF_CLASS_32
}

/// A thread may end while it is looked at: it is left out. `name` and `status` are the leader's.
fn profiles(pid: i32, name: Vec<u8>, status: Status) -> Result<BTreeMap<i32, Profile>, CaptureError> {
    let mut profiles = BTreeMap::new();
    profiles.extend(Profile::with(pid, name, status).ok().map(|profile| (pid, profile)));
    if process::thread_count(pid).is_ok_and(|count| count == 1) {
        return Ok(profiles);
    }
    let tids = process::threads(pid).map_err(|_| CaptureError::Gone { pid })?;
    let others = tids.into_iter().filter(|tid| *tid != pid);
    profiles.extend(others.filter_map(|tid| Some((tid, Profile::read(pid, tid).ok()?))));
    Ok(profiles)
}
