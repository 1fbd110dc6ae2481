//! Plans and starts a zygote, which has a child's memory and nothing else, and starts planned children as its copies.
//! A copy's plan has only what the zygote lacks. The C side is `restorer/zygote.c`.
//! The node decides where zygotes live and which one gets a request. The pager assigns userfaultfds to processes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_sys::clock::realtime_ns;
use farfork_sys::fd_passing;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, Extent, Mapping, ProcessRelations};

use super::address_space::{PlanScope, find_matching_files};
use super::passed_objects::PassedObjects;
use super::plan::PlanOptions;
use super::planned_child::{PlannedChild, RestoredProcess};
use super::process_tree::{self, TreePlan};
use super::required_files;
use super::stub::{self, RestoreRequest};
use super::stub_map::StubMap;
use super::{LocalNode, RestoreError, clocks, kernel_compatibility, processor_compatibility, report};

/// Where a zygote's restorer is: start and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZygoteRegion(pub(super) (u64, u64));

//  daemon                               zygote                      container's stub         copy
//    │ request: plan, socket ────────────▶│ builds the memory            │
//    │◀── restored ───────────────────────│                              │
//    │ request: plan without memory, … ──▶│ an intermediate forks it ────┼──────────────────────▶│
//    │◀── ready for the next ─────────────│                              │                       │ the rest
//    │◀── restored ───────────────────────┼──────────────────────────────┼───────────────────────│
//    │ wait request: status file, queue ──┼─────────────────────────────▶│ wait4                 │ runs on
/// A zygote that is planned but not yet begun: the pager must hear of its memory first.
#[derive(Debug)]
pub struct PlannedZygote<'a> {
    descriptor: &'a Descriptor,
    node: &'a LocalNode,
    /// For each mapped file, whether it was the captured file before the plan was compiled.
    matching_files: Vec<bool>,
    plans: TreePlan,
}

/// What a copy needs of its container.
#[derive(Debug, Clone, Copy)]
pub struct CopyDestination<'a> {
    /// Its first process.
    pub init: BorrowedFd<'a>,
    /// The cgroup to be forked into.
    pub cgroup: BorrowedFd<'a>,
}

/// Why no zygote is made of a seed on this node: what it has that a fork would leave in common, or that only a restore from
/// the start can give. `None`: one is.
pub fn find_zygote_obstacle(descriptor: &Descriptor, node: &LocalNode) -> Option<&'static str> {
    let is_empty = |extent: &Extent| extent.populated.is_empty() && extent.inherited.is_empty();
    if !descriptor.descendants.is_empty() || !descriptor.zombies.is_empty() {
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
    if !matches!(kernel_compatibility::build_bridge_if_needed(&descriptor.origin, node), Ok(None)) {
        return Some("its kernel was another");
    }
    None
}

impl<'a> PlannedZygote<'a> {
    /// Checks that this node can hold the zygote, and compiles its plan for the stub of this pid and at this socket, which is in
    /// the daemon's namespaces.
    ///
    /// # Errors
    /// A mismatch of CPU, kernel or files; nothing was started.
    pub fn new(
        descriptor: &'a Descriptor,
        node: &'a LocalNode,
        (stub_pid, control): (i32, BorrowedFd<'_>),
    ) -> Result<Self, RestoreError> {
        processor_compatibility::check_processor(&descriptor.origin, node)?;
        kernel_compatibility::build_bridge_if_needed(&descriptor.origin, node)?;
        required_files::check_paths(descriptor, node)?;
        stub::wait_stub_started(control).map_err(RestoreError::StubIo)?;
        let stub = StubMap::read(stub_pid)?;
        // Files and threads are each child's own.
        let mut bare = descriptor.clone();
        bare.file_descriptors.clear();
        bare.threads.truncate(1);
        let plan_options = PlanOptions {
            payload: None,
            paused: false,
            untrusted: false,
            user_namespace: None,
            bridge: None,
            scope: PlanScope::Zygote,
        };
        let matching_files = find_matching_files(descriptor, node);
        let plans = process_tree::compile(&bare, node, &stub, &PassedObjects::empty(), &plan_options)?;
        Ok(Self { descriptor, node, matching_files, plans })
    }

    /// The addresses whose pages the pager must serve, ascending.
    pub fn userfaultfd_ranges(&self) -> Vec<&[Range<u64>]> {
        self.plans.userfaultfd_ranges.iter().map(|ranges| &ranges[..]).collect()
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
    ) -> Result<ZygoteRegion, RestoreError> {
        let plan =
            stub::create_plan_file(&self.plans.bytes).map_err(|e| RestoreError::from_object_error("the plan", e))?;
        let request = RestoreRequest {
            plan: &plan,
            pager_or_init: pager_socket,
            // Its place is taken by the control socket.
            status_or_control: plan.as_fd(),
            objects: &PassedObjects::empty(),
            cgroup_or_queue: None,
            pid: 0,
            intermediate_pid: 0,
            fd_limit: self.plans.fd_limit,
            time_offsets: "",
        };
        fd_passing::enable_sender_pid(control).map_err(RestoreError::StubIo)?;
        stub::send_request(control, &request, self.descriptor)?;
        stub::wait_restored(control, limit, self.descriptor)?;
        self.check_mapped_files()?;
        Ok(ZygoteRegion(self.plans.region))
    }

    /// Checks that the zygote maps the files of the capture. The stub opens them by path, and a file may be replaced
    /// after the plan compared it. A zygote is made when its seed's user may already replace files.
    fn check_mapped_files(&self) -> Result<(), RestoreError> {
        let found = find_matching_files(self.descriptor, self.node);
        let replaced = self.matching_files.iter().zip(found).position(|(before, after)| *before != after);
        match replaced {
            Some(index) => Err(RestoreError::ReplacedFile { path: self.descriptor.mapped_files[index].path.clone() }),
            None => Ok(()),
        }
    }
}

impl PlannedChild<'_> {
    /// Has the zygote at `zygote` fork the child, and waits until it stands, at most `limit`. Gives the child's own control
    /// socket too. The stub of its container waits for its end once [`Self::assign_to_init`] told it to.
    ///
    /// # Errors
    /// What could not be done; the container is of no use any more, and the zygote may be of none.
    pub fn start_from_zygote(
        &mut self,
        zygote: BorrowedFd<'_>,
        copy_destination: CopyDestination<'_>,
        limit: Duration,
    ) -> Result<(RestoredProcess, OwnedFd), RestoreError> {
        let deadline = Instant::now() + limit;
        let plan =
            stub::create_plan_file(&self.plans.bytes).map_err(|e| RestoreError::from_object_error("the plan", e))?;
        let (control, child_control) =
            fd_passing::seqpacket_pair().map_err(|e| RestoreError::from_object_error("its control socket", e))?;
        fd_passing::enable_sender_pid(control.as_fd()).map_err(RestoreError::StubIo)?;
        let request = RestoreRequest {
            plan: &plan,
            pager_or_init: copy_destination.init,
            status_or_control: child_control.as_fd(),
            objects: &self.objects,
            cgroup_or_queue: Some(copy_destination.cgroup),
            pid: self.descriptor.process.pid,
            intermediate_pid: find_free_pid(self.descriptor),
            fd_limit: self.plans.fd_limit,
            time_offsets: &clocks::format_timens_offsets(&self.descriptor.origin, Clocks::now()),
        };
        let requested_ns = realtime_ns();
        // It has ended: nobody was asked.
        stub::send_request(zygote, &request, self.descriptor).map_err(|error| match error {
            RestoreError::StubIo(cause) => RestoreError::from_object_error("the copy of its zygote", cause),
            reported => reported,
        })?;
        drop((child_control, plan));
        // The child's alone: an end of a pipe that is held here would show.
        self.objects = PassedObjects::empty();
        let left = || deadline.saturating_duration_since(Instant::now());
        // The zygote is ready long before its copy stands: nobody wakes for that, but where there is no copy and it has said why.
        let started = stub::wait_restored(control.as_fd(), left(), self.descriptor);
        if matches!(started, Ok(_) | Err(RestoreError::StubExited)) {
            stub::wait_ready(zygote, left(), self.descriptor)?;
        }
        let started = started?;
        report::trace_phases(requested_ns, &started.marks_ns, started.realtime_ns);
        Ok((started.into(), control))
    }

    /// Has the container's stub wait for the child's end, as if it had forked it.
    ///
    /// # Errors
    /// The stub cannot be talked to.
    pub fn assign_to_init(&self, status_file: BorrowedFd<'_>, queue: BorrowedFd<'_>) -> Result<(), RestoreError> {
        stub::send_wait_request(self.control, (status_file, queue), self.descriptor)
    }
}

/// A number that no process, thread or group of the seed has: 1 is the stub's.
pub(super) fn find_free_pid(descriptor: &Descriptor) -> u32 {
    let members = descriptor.descendants.iter();
    let threads = descriptor.threads.iter().chain(members.clone().flat_map(|member| &member.threads));
    let groups = |process_relations: &ProcessRelations| [process_relations.group, process_relations.session];
    let zombies = descriptor.zombies.iter().flat_map(|zombie| [[zombie.pid; 2], groups(&zombie.relations)]);
    let others = members.map(|member| groups(&member.relations)).chain(zombies).flatten();
    let taken: BTreeSet<u32> = threads.map(|thread| thread.tid).chain(others).collect();
    (2..).find(|pid| !taken.contains(pid)).expect("a seed has fewer threads than there are numbers")
}
