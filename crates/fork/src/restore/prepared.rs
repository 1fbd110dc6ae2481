//! A child that is planned, checked and ready to begin.

use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_sys::fdpass;
use farfork_sys::user_namespace::Numbers;
use farfork_wire::Descriptor;

use super::address_space::Part;
use super::bearer::First;
use super::clocks;
use super::files;
use super::kernels;
use super::objects::{Objects, SharedContents, StandardStreams, Views};
use super::plan::{Users, Wishes};
use super::processor;
use super::report;
use super::stub::{self, Request, Started};
use super::stub_map::StubMap;
use super::tree::{self, Plans};
use super::zygote::{self, Region};
use super::{LocalNode, RestoreError, bearer};
use crate::phase;

/// What a child is made from.
#[derive(Debug)]
pub struct ChildPlan<'a> {
    /// The seed's state, validated.
    pub descriptor: &'a Descriptor,
    /// This node.
    pub node: &'a LocalNode,
    /// Pid, as this process sees it, of the stub that forks the child.
    pub stub_pid: i32,
    /// The daemon's end of the stub's socket.
    pub control: BorrowedFd<'a>,
    /// The child's standard streams.
    pub streams: StandardStreams,
    /// Contents of the shared objects.
    pub shared: SharedContents,
    /// Stands for the socket at which the parent waited to be told what it is, with the answer in it.
    pub caller: Option<OwnedFd>,
    /// Path of the payload inside the container, which the child also finds open as [`PAYLOAD_FD`].
    pub payload: Option<&'a Path>,
    /// Whether the child waits, complete, before its first instruction.
    pub paused: bool,
    /// The zygote that it is to be a copy of.
    pub zygote: Option<Region>,
    /// Whether it can write nothing of /proc. What else an untrusted child lacks, its descriptor lacks.
    pub untrusted: bool,
    /// The container's first process, where another forks the child, and what the child's users are outside.
    pub users: Option<(First<'a>, Numbers)>,
}

/// A child that is planned but not yet begun.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) control: BorrowedFd<'a>,
    pub(super) plans: Plans,
    pub(super) objects: Objects,
    stub_pid: i32,
    first: Option<First<'a>>,
}

/// A child that stands.
#[derive(Debug, Clone, Copy)]
pub struct Restored {
    /// Its pid as this process sees it.
    pub pid: i32,
    /// When all of it stood, CLOCK_REALTIME, in nanoseconds: the last thing before its first instruction.
    pub realtime_ns: u64,
}

impl From<Started> for Restored {
    fn from(started: Started) -> Self {
        Self { pid: started.pid, realtime_ns: started.realtime_ns }
    }
}

impl<'a> Prepared<'a> {
    /// Checks that this node can hold the child, and compiles its plan.
    ///
    /// # Errors
    /// A mismatch of CPU, kernel or files; nothing was started.
    pub fn new(wanted: ChildPlan<'a>) -> Result<Self, RestoreError> {
        let ChildPlan { descriptor, node, stub_pid, control, streams, shared, caller, payload, .. } = wanted;
        let ChildPlan { paused, zygote, untrusted, users, .. } = wanted;
        processor::check(&descriptor.origin, node)?;
        let bridge = kernels::check(&descriptor.origin, node)?;
        phase!("resume.check", files::check(descriptor, node))?;
        stub::wait_for_word(control).map_err(RestoreError::Control)?;
        let read = || phase!("resume.stub", StubMap::read(stub_pid));
        let (stub, part) = match zygote {
            None => (read()?, Part::Whole),
            Some(Region(zygote)) => (StubMap::of_zygote(&descriptor.mappings, zygote), Part::Copy { zygote }),
        };
        let are_its_machine = node.is_its_machine(&descriptor.origin);
        let views =
            Views { node: node.root.clone(), container: format!("/proc/{stub_pid}/root").into(), are_its_machine };
        let mut objects = phase!("resume.objects", Objects::create(descriptor, streams, shared, caller, views))?;
        let enter = |(first, numbers): (First<'_>, Numbers)| {
            let passed =
                objects.pass(first.init).map_err(|e| RestoreError::object("a way to its user namespace", e))?;
            Ok(Users { passed, numbers })
        };
        let numbered = users.map(enter).transpose()?;
        let wishes = Wishes { payload, paused, untrusted, users: numbered, bridge: bridge.as_ref(), part };
        let plans = phase!("resume.plan", tree::compile(descriptor, node, &stub, &objects, &wishes))?;
        Ok(Self { descriptor, control, plans, objects, stub_pid, first: users.map(|(first, _)| first) })
    }

    /// The addresses whose pages the pager must serve, ascending, of each process.
    pub fn registered(&self) -> Vec<&[Range<u64>]> {
        self.plans.registered.iter().map(|ranges| &ranges[..]).collect()
    }

    /// Begins the child, of which is heard within `limit`. `pager_socket` is where its userfaultfd goes, `status_file` where the stub leaves
    /// its wait status.
    ///
    /// # Errors
    /// What could not be made or asked for; the container is of no use any more.
    pub fn begin<'b>(
        &mut self,
        pager_socket: BorrowedFd<'_>,
        status_file: BorrowedFd<'b>,
        limit: Duration,
    ) -> Result<Begun<'b>, RestoreError>
    where
        'a: 'b,
    {
        let plan = stub::plan_file(&self.plans.bytes).map_err(|e| RestoreError::object("the plan", e))?;
        // A bearer is given another, with its first process's.
        let queue = fdpass::self_connected().map_err(|e| RestoreError::object("its userfaultfd's socket", e))?;
        let request = Request {
            plan: &plan,
            pager_or_container: pager_socket,
            status_or_control: status_file,
            objects: &self.objects,
            last: self.first.is_none().then(|| queue.as_fd()),
            pid: self.descriptor.process.pid,
            midwife: self.first.map_or(0, |_| zygote::spare_pid(self.descriptor)),
            descriptors: self.plans.descriptors,
            time_offsets: &clocks::offsets(&self.descriptor.origin, Clocks::now()),
        };
        fdpass::tell_sender(self.control).map_err(RestoreError::Control)?;
        let (asked_ns, until) = (report::realtime_ns(), Instant::now() + limit);
        let keep = match self.first {
            Some(first) => Some((first, bearer::ask(self.control, first, (request, self.descriptor), limit)?)),
            None => stub::ask(self.control, &request, self.descriptor).map(|()| None)?,
        };
        drop(plan);
        // The child's alone: an end of a pipe that is held here would show.
        self.objects = Objects::none();
        let Self { descriptor, control, stub_pid, .. } = *self;
        Ok(Begun { descriptor, control, stub_pid, keep, status_file, asked_ns, until })
    }
}

/// A child that its stub was asked for.
#[derive(Debug)]
pub struct Begun<'a> {
    descriptor: &'a Descriptor,
    control: BorrowedFd<'a>,
    stub_pid: i32,
    keep: Option<(First<'a>, OwnedFd)>,
    status_file: BorrowedFd<'a>,
    asked_ns: u64,
    until: Instant,
}

impl Begun<'_> {
    /// Waits until the child stands.
    ///
    /// # Errors
    /// What the restorer could not do; the container is of no use any more.
    pub fn await_child(self) -> Result<Restored, RestoreError> {
        let left = self.until.saturating_duration_since(Instant::now());
        let started = match self.keep {
            Some((first, keep)) => {
                bearer::follow(self.control, (first, self.status_file, keep), self.descriptor, left)?
            }
            None => stub::wait_restored_by(self.stub_pid, self.control, left, self.descriptor)?,
        };
        report::tell_phases(self.asked_ns, &started.marks_ns, started.realtime_ns);
        Ok(started.into())
    }
}
