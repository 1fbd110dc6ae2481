//! A zygote: planned like a child, but for all that is a child's own; and its copies, which lack only that.
//!
//! ```text
//!  daemon                               zygote                      container's stub         copy
//!    │ request: plan, socket ────────────▶│ builds the memory            │
//!    │◀── stands ─────────────────────────│                              │
//!    │ request: plan without memory, … ──▶│ a midwife forks it ──────────┼──────────────────────▶│
//!    │◀── ready for the next ─────────────│                              │                       │ the rest
//!    │◀── restored ───────────────────────┼──────────────────────────────┼───────────────────────│
//!    │ await it: status file, keep ───────┼─────────────────────────────▶│ wait4                 │ runs on
//! ```
//!
//! The C side is `restorer/zygote.c`. Where a zygote lives, and who is asked for copies of it, is the node's business; whose
//! userfaultfd is whose, the pager's.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_sys::fdpass;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, Extent, Kinship, Mapping};

use super::address_space::Part;
use super::files;
use super::objects::Objects;
use super::plan::Wishes;
use super::prepared::{Prepared, Restored};
use super::stub::{self, Request};
use super::stub_map::StubMap;
use super::tree::{self, Plans};
use super::{LocalNode, RestoreError, clocks, kernels, processor, report};

/// Where a zygote's restorer is: start and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region(pub(super) (u64, u64));

/// A zygote that is planned but not yet begun: the pager must hear of its memory first.
#[derive(Debug)]
pub struct ZygotePlan<'a> {
    descriptor: &'a Descriptor,
    plans: Plans,
}

/// What a copy needs of its container.
#[derive(Debug, Clone, Copy)]
pub struct Cradle<'a> {
    /// Its first process.
    pub init: BorrowedFd<'a>,
    /// The control group to be born in.
    pub birthplace: BorrowedFd<'a>,
}

/// Why no zygote is made of a seed on this node: what it has that a fork would leave in common, or that only a birth from
/// the start can give. `None`: one is.
pub fn unfit_for_zygote(descriptor: &Descriptor, node: &LocalNode) -> Option<&'static str> {
    let is_empty = |extent: &Extent| extent.populated.is_empty() && extent.inherited.is_empty();
    if !descriptor.members.is_empty() || !descriptor.zombies.is_empty() {
        return Some("it is of several processes");
    }
    if descriptor.process.pid == 1 {
        return Some("its process is the first of a pid namespace");
    }
    if descriptor.process.exe_object.is_some() {
        return Some("no path leads to its executable");
    }
    if descriptor.extents.iter().all(is_empty) {
        return Some("it has no memory of its own");
    }
    if descriptor.mappings.iter().any(|mapping| mapping.flags.dont_fork) {
        return Some("it keeps memory from fork(2)");
    }
    let is_writable = |mapping: &Mapping| matches!(mapping.backing, Backing::PrivateWritableFile { .. });
    if descriptor.mappings.iter().any(is_writable) {
        return Some("it may write to a file that it maps privately");
    }
    if !matches!(kernels::check(&descriptor.origin, node), Ok(None)) {
        return Some("its kernel was another");
    }
    None
}

impl<'a> ZygotePlan<'a> {
    /// Checks that this node can hold the zygote, and compiles its plan for the stub of this pid and at this socket, which is in
    /// the daemon's namespaces.
    ///
    /// # Errors
    /// A mismatch of CPU, kernel or files; nothing was started.
    pub fn new(
        descriptor: &'a Descriptor,
        node: &LocalNode,
        (stub_pid, control): (i32, BorrowedFd<'_>),
    ) -> Result<Self, RestoreError> {
        processor::check(&descriptor.origin, node)?;
        kernels::check(&descriptor.origin, node)?;
        files::check(descriptor, node)?;
        stub::wait_for_word(control).map_err(RestoreError::Control)?;
        let stub = StubMap::read(stub_pid)?;
        // Files and threads are each child's own.
        let mut bare = descriptor.clone();
        bare.file_descriptors.clear();
        bare.threads.truncate(1);
        let part = Part::Zygote;
        let wishes = Wishes { payload: None, paused: false, untrusted: false, users: None, bridge: None, part };
        let plans = tree::compile(&bare, node, &stub, &Objects::none(), &wishes)?;
        Ok(Self { descriptor, plans })
    }

    /// The addresses whose pages the pager must serve, ascending.
    pub fn registered(&self) -> Vec<&[Range<u64>]> {
        self.plans.registered.iter().map(|ranges| &ranges[..]).collect()
    }

    /// Has the stub at `control` become the zygote, and waits until it stands, at most `limit`. Its userfaultfd goes to
    /// `pager_socket`.
    ///
    /// # Errors
    /// What the restorer could not do; the stub is of no use any more.
    pub fn start(
        self,
        control: BorrowedFd<'_>,
        pager_socket: BorrowedFd<'_>,
        limit: Duration,
    ) -> Result<Region, RestoreError> {
        let plan = stub::plan_file(&self.plans.bytes).map_err(|e| RestoreError::object("the plan", e))?;
        let request = Request {
            plan: &plan,
            pager_or_container: pager_socket,
            // Its place is taken by the control socket.
            status_or_control: plan.as_fd(),
            objects: &Objects::none(),
            last: None,
            pid: 0,
            midwife: 0,
            descriptors: self.plans.descriptors,
            time_offsets: "",
        };
        fdpass::tell_sender(control).map_err(RestoreError::Control)?;
        stub::ask(control, &request, self.descriptor)?;
        stub::wait_restored(control, limit, self.descriptor)?;
        Ok(Region(self.plans.region))
    }
}

impl Prepared<'_> {
    /// Has the zygote at `zygote` fork the child, and waits until it stands, at most `limit`. Gives the child's own control
    /// socket too. The stub of its container waits for its end once [`Self::have_awaited`] told it to.
    ///
    /// # Errors
    /// What could not be done; the container is of no use any more, and the zygote may be of none.
    pub fn start_copy(
        &mut self,
        zygote: BorrowedFd<'_>,
        cradle: Cradle<'_>,
        limit: Duration,
    ) -> Result<(Restored, OwnedFd), RestoreError> {
        let until = Instant::now() + limit;
        let plan = stub::plan_file(&self.plans.bytes).map_err(|e| RestoreError::object("the plan", e))?;
        let (control, childs) = fdpass::seqpacket_pair().map_err(|e| RestoreError::object("its control socket", e))?;
        fdpass::tell_sender(control.as_fd()).map_err(RestoreError::Control)?;
        let request = Request {
            plan: &plan,
            pager_or_container: cradle.init,
            status_or_control: childs.as_fd(),
            objects: &self.objects,
            last: Some(cradle.birthplace),
            pid: self.descriptor.process.pid,
            midwife: spare_pid(self.descriptor),
            descriptors: self.plans.descriptors,
            time_offsets: &clocks::offsets(&self.descriptor.origin, Clocks::now()),
        };
        let asked_ns = report::realtime_ns();
        // It has ended: nobody was asked.
        stub::ask(zygote, &request, self.descriptor).map_err(|error| match error {
            RestoreError::Control(cause) => RestoreError::object("the copy of its zygote", cause),
            said => said,
        })?;
        drop((childs, plan));
        // The child's alone: an end of a pipe that is held here would show.
        self.objects = Objects::none();
        let left = || until.saturating_duration_since(Instant::now());
        // The zygote is ready long before its copy stands: nobody wakes for that, but where there is no copy and it has said why.
        let started = stub::wait_restored(control.as_fd(), left(), self.descriptor);
        if matches!(started, Ok(_) | Err(RestoreError::StubGone)) {
            stub::wait_ready(zygote, left(), self.descriptor)?;
        }
        let started = started?;
        report::tell_phases(asked_ns, &started.marks_ns, started.realtime_ns);
        Ok((started.into(), control))
    }

    /// Has the container's stub wait for the child's end, as if it had forked it.
    ///
    /// # Errors
    /// The stub cannot be talked to.
    pub fn have_awaited(&self, status_file: BorrowedFd<'_>, keep: BorrowedFd<'_>) -> Result<(), RestoreError> {
        stub::have_awaited(self.control, (status_file, keep), self.descriptor)
    }
}

/// A number that no process, thread or group of the seed has: 1 is the stub's.
pub(super) fn spare_pid(descriptor: &Descriptor) -> u32 {
    let members = descriptor.members.iter();
    let threads = descriptor.threads.iter().chain(members.clone().flat_map(|member| &member.threads));
    let groups = |kinship: &Kinship| [kinship.group, kinship.session];
    let zombies = descriptor.zombies.iter().flat_map(|zombie| [[zombie.pid; 2], groups(&zombie.kinship)]);
    let others = members.map(|member| groups(&member.kinship)).chain(zombies).flatten();
    let taken: BTreeSet<u32> = threads.map(|thread| thread.tid).chain(others).collect();
    (2..).find(|pid| !taken.contains(pid)).expect("a seed has fewer threads than there are numbers")
}
