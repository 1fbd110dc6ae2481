//! Plans and starts a zygote, which has only the memory of a child, and starts planned children as its copies. A copy's
//! plan adds what the zygote lacks. The C side is `restorer/zygote.c`. The node decides where zygotes live and which
//! one gets a request. The pager assigns userfaultfds to processes.

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

/// Address range of a zygote's restorer: start and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZygoteRegion(pub(super) (u64, u64));

//  daemon                               zygote                      container's stub         copy
//    │ request: plan, socket ────────────▶│ builds the memory            │
//    │◀── restored ───────────────────────│                              │
//    │ request: plan without memory, … ──▶│ an intermediate forks it ────┼──────────────────────▶│
//    │◀── ready for the next ─────────────│                              │                       │ the rest
//    │◀── restored ───────────────────────┼──────────────────────────────┼───────────────────────│
//    │ wait request: status file, queue ──┼─────────────────────────────▶│ wait4                 │ runs on
/// A zygote that is planned but not yet started: the pager must first be informed of its memory.
#[derive(Debug)]
pub struct PlannedZygote<'a> {
    descriptor: &'a Descriptor,
    node: &'a LocalNode,
    /// For each mapped file, whether the path led to the captured file before the plan was compiled.
    matching_files: Vec<bool>,
    plans: TreePlan,
}

/// The container in which a copy is created.
#[derive(Debug, Clone, Copy)]
pub struct CopyDestination<'a> {
    /// The container's first process.
    pub init: BorrowedFd<'a>,
    /// The cgroup into which the copy is forked.
    pub cgroup: BorrowedFd<'a>,
}

/// Returns the reason why this node makes no zygote of a seed: forking a zygote could not reproduce the seed's state,
/// or would save nothing. `None`: a zygote can be made.
pub fn find_zygote_obstacle(descriptor: &Descriptor, node: &LocalNode) -> Option<&'static str> {
    let is_empty = |extent: &Extent| extent.populated.is_empty() && extent.inherited.is_empty();
    if !descriptor.descendants.is_empty() || !descriptor.zombies.is_empty() {
        return Some("it has several processes");
    }
    if descriptor.origin.root.is_some() {
        return Some("its root is not the node's");
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
        return Some("it excludes memory from fork(2)");
    }
    let is_writable = |mapping: &Mapping| matches!(mapping.backing, Backing::PrivateWritableFile { .. });
    if descriptor.mappings.iter().any(is_writable) {
        return Some("it may write to a file that it maps privately");
    }
    if !matches!(kernel_compatibility::build_bridge_if_needed(&descriptor.origin, node), Ok(None)) {
        return Some("its kernel differs from this node's");
    }
    None
}

impl<'a> PlannedZygote<'a> {
    /// Checks that this node can hold the zygote, and compiles its plan. The stub with this pid and socket becomes the
    /// zygote; it is in the daemon's namespaces.
    ///
    /// # Errors
    /// A mismatch of CPU, kernel or files. Nothing was started.
    pub fn new(
        descriptor: &'a Descriptor,
        node: &'a LocalNode,
        stub_pid: i32,
        control: BorrowedFd<'_>,
    ) -> Result<Self, RestoreError> {
        processor_compatibility::check_processor(&descriptor.origin, node)?;
        kernel_compatibility::build_bridge_if_needed(&descriptor.origin, node)?;
        required_files::check_paths(descriptor, node)?;
        stub::wait_stub_started(control).map_err(RestoreError::StubIo)?;
        let stub = StubMap::read(stub_pid)?;
        // Without files and threads: each copy adds its own.
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

    /// Returns the address ranges whose pages the pager must serve, in ascending order.
    pub fn userfaultfd_ranges(&self) -> Vec<&[Range<u64>]> {
        self.plans.userfaultfd_ranges.iter().map(|ranges| &ranges[..]).collect()
    }

    /// Turns the stub at `control` into the zygote, and waits, at most `limit`, until its memory is built. The stub sends
    /// the userfaultfd to `pager_socket`.
    ///
    /// # Errors
    /// The step of the restorer that failed. The stub is no longer usable.
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
            // A placeholder: a zygote has no status file, and its control socket takes this slot.
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

    /// Checks that the zygote maps the captured files. The stub opens them by path, and a file may be replaced after
    /// the plan has compared it. Nothing stops the seed's user from replacing files while the zygote starts.
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
    /// Requests the zygote at `zygote` to fork the child, and waits, at most `limit`, until the child is restored. Also
    /// returns the daemon's end of the child's control socket. Call [`Self::assign_to_init`] next: the container's stub
    /// then waits for the child.
    ///
    /// # Errors
    /// The step that failed. The container, and perhaps the zygote, is no longer usable.
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
        // If the request cannot be sent, the zygote has ended and makes no copy.
        stub::send_request(zygote, &request, self.descriptor).map_err(|error| match error {
            RestoreError::StubIo(cause) => RestoreError::from_object_error("the copy of its zygote", cause),
            reported => reported,
        })?;
        drop((child_control, plan));
        // Close the daemon's copies: if a pipe end stayed open here, the child would not see the end of file.
        self.objects = PassedObjects::empty();
        let left = || deadline.saturating_duration_since(Instant::now());
        // Read the copy's report first: the zygote's report arrives earlier, but waits in its socket. If there is no
        // copy, the zygote's report has the reason.
        let started = stub::wait_restored(control.as_fd(), left(), self.descriptor);
        if matches!(started, Ok(_) | Err(RestoreError::StubExited)) {
            stub::wait_ready(zygote, left(), self.descriptor)?;
        }
        let started = started?;
        report::trace_phases(requested_ns, &started.marks_ns, started.realtime_ns);
        Ok((started.into(), control))
    }

    /// Requests the container's stub to wait for the child's end, as if the stub had forked the child.
    ///
    /// # Errors
    /// The stub's socket failed.
    pub fn assign_to_init(&self, status_file: BorrowedFd<'_>, queue: BorrowedFd<'_>) -> Result<(), RestoreError> {
        stub::send_wait_request(self.control, (status_file, queue), self.descriptor)
    }
}

/// Returns a pid that no process, thread, group or session of the seed has. The stub has pid 1.
pub(super) fn find_free_pid(descriptor: &Descriptor) -> u32 {
    let members = descriptor.descendants.iter();
    let threads = descriptor.threads.iter().chain(members.clone().flat_map(|member| &member.threads));
    let groups = |process_relations: &ProcessRelations| [process_relations.group, process_relations.session];
    let zombies = descriptor.zombies.iter().flat_map(|zombie| [[zombie.pid; 2], groups(&zombie.relations)]);
    let others = members.map(|member| groups(&member.relations)).chain(zombies).flatten();
    let taken: BTreeSet<u32> = threads.map(|thread| thread.tid).chain(others).collect();
    (2..).find(|pid| !taken.contains(pid)).expect("a seed has fewer threads than there are numbers")
}
