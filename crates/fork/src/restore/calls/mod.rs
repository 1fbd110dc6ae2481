//! System calls that a child makes for itself, before its threads go on: what makes its timers, pipes with names, sockets
//! and the like. The restorer carries the list out, one call after the other, without judging.
//!
//! ```text
//!  before maps    shared memory that has a name; of a tree, the first process makes it before others attach it
//!  before files   objects      each made as descriptor 0, as nothing is open yet, and put aside above all that the child
//!                              will have; then placed like those that the daemon passes
//!  behind paths   the process's own root: no process of the tree opens anything by a path any more
//!  at last        timers, locks, who is told of what: with the child's own threads, files and credentials
//! ```
//!
//! Nothing in a descriptor chooses a call: the numbers are all in [`number`], and values only come from outside.

mod connection;
mod datagram;
mod delivery;
mod directory;
mod files;
mod inotify;
mod lengths;
mod locks;
mod memory;
mod named_pipe;
mod number;
mod process;
mod queues;
mod shared_port;
mod socket;
mod socket_file;
mod terminal;
mod timer;
mod waiting;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use farfork_wire::Descriptor;

use super::RestoreError;
use super::layout::{CALL_ANY_RESULT, CALL_MAY_FAIL, PASSED_OWN, PlanCall, Span};
use super::objects::Objects;
use super::tree::Place;
use super::writer::PlanWriter;

pub(super) use socket::SocketOwner;
use socket::Surroundings;

pub(super) use locks::O_ASYNC;
pub(super) use memory::is_attached;

/// The calls of a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls {
    pub(super) before_maps: Span,
    pub(super) before_files: Span,
    pub(super) behind_paths: Span,
    pub(super) at_last: Span,
}

/// The parts of an address space that calls change.
pub(super) struct PatchedMemory<'a> {
    /// Where a bridge's vdso stands.
    pub(super) vdso: Option<Range<u64>>,
    /// First addresses of private mappings of files.
    pub(super) overlaid: &'a BTreeSet<u64>,
}

/// Where objects that the child makes stand, in the same count as those that are passed to it.
#[derive(Debug)]
pub(super) struct Made {
    slots: HashMap<u32, u32>,
    /// Slots up to here are taken, also by what must only stay open until the child runs.
    end: u32,
}

impl Made {
    /// Where the objects stand that a process has made, by their open files.
    pub(super) fn slots(&self) -> &HashMap<u32, u32> {
        &self.slots
    }

    /// The first slot that nothing has.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    /// Where the object of an open file stands; `None` for what is not made by calls.
    pub(super) fn of_open_file(&self, index: u32) -> Option<u32> {
        self.slots.get(&index).copied()
    }
}

impl Calls {
    /// The calls for a child that is passed `objects` from descriptor `fd_base` on, and runs as `owner` where that is not
    /// whom the stub runs as. What is everybody's in a tree of processes is made by the first, as `is_first` says. `vdso` is where
    /// a bridge stands, `overlaid` what has pages of its own over those of a file; `is_copy`: it is forked from a zygote; `untrusted`: it can write nothing of /proc; `has_users`: of its
    /// own, in a user namespace that it enters behind the calls before files.
    pub(super) fn plan(
        descriptor: &Descriptor,
        (objects, fd_base): (&Objects, u32),
        owner: Option<SocketOwner<'_>>,
        (is_first, memory, is_copy, (untrusted, has_users)): (bool, PatchedMemory<'_>, bool, (bool, bool)),
        place: &Place<'_>,
        writer: &mut PlanWriter,
    ) -> Result<(Self, Made), RestoreError> {
        let passed = PASSED_OWN + objects.count() as u32;
        let mut script = Script::new(writer);
        process::forbid_huge_pages(descriptor, &mut script);
        if is_first {
            memory::make(descriptor, (objects, fd_base), place, &mut script)?;
        } else if place.number > 0 {
            memory::attach(descriptor, place, &mut script);
        }
        let before_maps = script.finish()?;
        let PatchedMemory { vdso, overlaid } = memory;
        let mut script = Script::new(writer);
        if let Some(place) = vdso {
            memory::protect_code(&place, &mut script);
        }
        memory::lay_written((objects, fd_base), place, overlaid, &mut script);
        if is_first {
            memory::seal(descriptor, (objects, fd_base), &mut script);
            memory::set_times(descriptor, (objects, fd_base), &mut script)?;
        }
        // Whoever has its descriptors from another lets that one open files.
        if place.table() == place.number {
            process::oom_scores(descriptor, place, is_copy, &mut script)?;
        }
        directory::enter(descriptor, &mut script)?;
        let made = match is_first {
            true => {
                queues::make(descriptor, &mut script)?;
                files::make(descriptor, fd_base, passed, Surroundings { objects, owner }, &mut script)?
            }
            false => Made { slots: HashMap::new(), end: passed },
        };
        if is_first && untrusted {
            process::forbid_settings(&mut script)?;
        }
        if has_users {
            process::allow_scheduling(descriptor, &mut script)?;
        }
        let before_files = script.finish()?;
        let mut script = Script::new(writer);
        process::enter_root(descriptor, &mut script)?;
        let behind_paths = script.finish()?;
        let mut script = Script::new(writer);
        lengths::cut(descriptor, objects, place, &mut script);
        locks::take(descriptor, &mut script)?;
        locks::tell_owners(descriptor, &mut script)?;
        process::register_barriers(descriptor, &mut script);
        process::choose_cpus(descriptor, &mut script)?;
        timer::make(descriptor, &mut script)?;
        terminal::choose_foreground(place.tree(), (objects, fd_base), descriptor.process.pid, &mut script)?;
        Ok((Self { before_maps, before_files, behind_paths, at_last: script.finish()? }, made))
    }
}

/// An argument of a call.
#[derive(Debug, Clone, Copy)]
enum Argument {
    Value(u64),
    /// What stands at this offset of the plan.
    Place(u32),
}

/// The calls of one moment, in the making.
#[derive(Debug)]
struct Script<'a> {
    writer: &'a mut PlanWriter,
    rows: Vec<PlanCall>,
    /// For messages: what they are about.
    about: (u32, u32),
}

impl<'a> Script<'a> {
    fn new(writer: &'a mut PlanWriter) -> Self {
        Self { writer, rows: Vec::new(), about: (0, 0) }
    }

    /// What the calls from here on are about: a step, and the number of its object.
    fn about(&mut self, step: u32, object: u32) {
        self.about = (step, object);
    }

    /// A call that must give `expected`.
    fn gives(&mut self, expected: u64, number: u32, arguments: &[Argument]) {
        let (step, object) = self.about;
        let mut row = PlanCall { arguments: [0; 6], expected, number, pointers: 0, step, object };
        for (index, argument) in arguments.iter().enumerate() {
            row.arguments[index] = match *argument {
                Argument::Value(value) => value,
                Argument::Place(offset) => {
                    row.pointers |= 1 << index;
                    u64::from(offset)
                }
            };
        }
        self.rows.push(row);
    }

    /// A call that must succeed.
    fn call(&mut self, number: u32, arguments: &[Argument]) {
        self.gives(CALL_ANY_RESULT, number, arguments);
    }

    /// A call whose failure changes nothing.
    fn may_fail(&mut self, number: u32, arguments: &[Argument]) {
        self.gives(CALL_MAY_FAIL, number, arguments);
    }

    /// A text for a call to point to.
    fn text(&mut self, text: &str) -> Result<Argument, RestoreError> {
        Ok(Argument::Place(self.writer.text(text)?))
    }

    /// Bytes for a call to point to.
    fn bytes(&mut self, bytes: &[u8]) -> Result<Argument, RestoreError> {
        Ok(Argument::Place(self.writer.append(bytes)?))
    }

    /// Words for a call to point to.
    fn words(&mut self, words: &[u64]) -> Result<Argument, RestoreError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.bytes(&bytes)
    }

    fn finish(self) -> Result<Span, RestoreError> {
        self.writer.table(&self.rows)
    }
}

/// For short lists of arguments.
fn value(value: impl Into<u64>) -> Argument {
    Argument::Value(value.into())
}
