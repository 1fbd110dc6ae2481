//! A planned child: checks this node, creates the passed objects, compiles the plans, then starts the child.
//! The container's stub forks the child. In a container with its own user namespace, `privileged_forker` does.
//! `zygote` starts a planned child as a zygote's copy instead.

use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_sys::clock::realtime_ns;
use farfork_sys::fd_passing;
use farfork_sys::user_namespace::IdRange;
use farfork_wire::Descriptor;

use super::address_space::PlanScope;
use super::clocks;
use super::kernel_compatibility;
use super::passed_objects::{PassedObjects, RootPaths, SharedContents, StandardStreams};
use super::plan::{PlanOptions, UserNamespaceTarget};
use super::privileged_forker::{ContainerInit, InitWaitRequest};
use super::process_tree::{self, TreePlan};
use super::processor_compatibility;
use super::report;
use super::required_files;
use super::stub::{self, RestoreReport, RestoreRequest};
use super::stub_map::StubMap;
use super::zygote::{self, ZygoteRegion};
use super::{LocalNode, RestoreError, privileged_forker};
use crate::phase;

/// The inputs for a child.
#[derive(Debug)]
pub struct ChildSpec<'a> {
    /// The seed's state, validated.
    pub descriptor: &'a Descriptor,
    /// This node.
    pub node: &'a LocalNode,
    /// Pid of the stub that forks the child, in this process's pid namespace.
    pub stub_pid: i32,
    /// The daemon's end of the stub's socket.
    pub control: BorrowedFd<'a>,
    /// The child's standard streams.
    pub streams: StandardStreams,
    /// Contents of the shared objects.
    pub shared: SharedContents,
    /// The child gets this socket in place of the parent's socket for the reply to its checkpoint. The reply is already in
    /// this socket.
    pub checkpoint_socket: Option<OwnedFd>,
    /// Path of the payload inside the container. The child also has the payload open as
    /// [`super::file_descriptors::PAYLOAD_FD`].
    pub payload: Option<&'a Path>,
    /// Whether the child waits, complete, before its first instruction.
    pub paused: bool,
    /// The region of the zygote of which the child becomes a copy, if it does.
    pub zygote_region: Option<ZygoteRegion>,
    /// Whether the child cannot write to /proc. The other limits of an untrusted child are in `descriptor`.
    pub untrusted: bool,
    /// For a child with its own user namespace: the container's first process, which waits for the child, and the
    /// child's ids outside of the namespace.
    pub user_namespace: Option<(ContainerInit<'a>, IdRange)>,
}

/// A child that is planned but not yet started.
#[derive(Debug)]
pub struct PlannedChild<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) control: BorrowedFd<'a>,
    pub(super) plans: TreePlan,
    pub(super) objects: PassedObjects,
    stub_pid: i32,
    container_init: Option<ContainerInit<'a>>,
}

/// A restored child.
#[derive(Debug, Clone, Copy)]
pub struct RestoredProcess {
    /// Its pid in this process's pid namespace.
    pub pid: i32,
    /// When all processes of the child were complete, just before the first instruction: CLOCK_REALTIME, in
    /// nanoseconds.
    pub realtime_ns: u64,
}

impl From<RestoreReport> for RestoredProcess {
    fn from(started: RestoreReport) -> Self {
        Self { pid: started.pid, realtime_ns: started.realtime_ns }
    }
}

impl<'a> PlannedChild<'a> {
    /// Checks that this node can hold the child, and compiles its plan.
    ///
    /// # Errors
    /// A mismatch of CPU, kernel or files. Nothing was started.
    pub fn new(spec: ChildSpec<'a>) -> Result<Self, RestoreError> {
        let ChildSpec { descriptor, node, stub_pid, control, streams, shared, checkpoint_socket, payload, .. } = spec;
        let ChildSpec { paused, zygote_region, untrusted, user_namespace, .. } = spec;
        processor_compatibility::check_processor(&descriptor.origin, node)?;
        let bridge = kernel_compatibility::build_bridge_if_needed(&descriptor.origin, node)?;
        phase!("resume.check", required_files::check_paths(descriptor, node))?;
        stub::wait_stub_started(control).map_err(RestoreError::StubIo)?;
        let read = || phase!("resume.stub", StubMap::read(stub_pid));
        let (stub, scope) = match zygote_region {
            None => (read()?, PlanScope::Whole),
            Some(ZygoteRegion(zygote_region)) => {
                (StubMap::from_zygote(&descriptor.mappings, zygote_region), PlanScope::ZygoteCopy { zygote_region })
            }
        };
        let is_origin_machine = node.is_origin_machine(&descriptor.origin);
        let roots = RootPaths {
            node_root: node.root.clone(),
            container_root: format!("/proc/{stub_pid}/root").into(),
            is_origin_machine,
        };
        let mut objects =
            phase!("resume.objects", PassedObjects::create(descriptor, streams, shared, checkpoint_socket, roots))?;
        let add_target = |(init, id_map): (ContainerInit<'_>, IdRange)| {
            let passed_index = objects
                .add_borrowed(init.pidfd)
                .map_err(|e| RestoreError::from_object_error("a descriptor of its user namespace", e))?;
            Ok(UserNamespaceTarget { passed_index, id_map })
        };
        let target = user_namespace.map(add_target).transpose()?;
        let plan_options =
            PlanOptions { payload, paused, untrusted, user_namespace: target, bridge: bridge.as_ref(), scope };
        let plans = phase!("resume.plan", process_tree::compile(descriptor, node, &stub, &objects, &plan_options))?;
        Ok(Self { descriptor, control, plans, objects, stub_pid, container_init: user_namespace.map(|(init, _)| init) })
    }

    /// Returns for each process the address ranges whose pages the pager must serve, in ascending order.
    pub fn userfaultfd_ranges(&self) -> Vec<&[Range<u64>]> {
        self.plans.userfaultfd_ranges.iter().map(|ranges| &ranges[..]).collect()
    }

    /// Requests the child from its stub. The report of the child must arrive within `limit`. The restorer sends the
    /// userfaultfd to `pager_socket`; the stub writes the wait status to `status_file`.
    ///
    /// # Errors
    /// An object could not be created, or the request was not accepted. The container is no longer usable.
    pub fn start<'b>(
        &mut self,
        pager_socket: BorrowedFd<'_>,
        status_file: BorrowedFd<'b>,
        limit: Duration,
    ) -> Result<PendingRestore<'b>, RestoreError>
    where
        'a: 'b,
    {
        let plan =
            stub::create_plan_file(&self.plans.bytes).map_err(|e| RestoreError::from_object_error("the plan", e))?;
        // Not used with a privileged forker: `send_forker_request` creates another queue, which the container's init
        // must hold.
        let queue = fd_passing::self_connected_socket()
            .map_err(|e| RestoreError::from_object_error("its userfaultfd's socket", e))?;
        let request = RestoreRequest {
            plan: &plan,
            pager_or_init: pager_socket,
            status_or_control: status_file,
            objects: &self.objects,
            cgroup_or_queue: self.container_init.is_none().then(|| queue.as_fd()),
            pid: self.descriptor.process.pid,
            intermediate_pid: self.container_init.map_or(0, |_| zygote::find_free_pid(self.descriptor)),
            fd_limit: self.plans.fd_limit,
            time_offsets: &clocks::format_timens_offsets(&self.descriptor.origin, Clocks::now()),
        };
        fd_passing::enable_sender_pid(self.control).map_err(RestoreError::StubIo)?;
        let (requested_ns, deadline) = (realtime_ns(), Instant::now() + limit);
        let init_wait = match self.container_init {
            Some(init) => {
                let (control, descriptor) = (self.control, self.descriptor);
                let queue = privileged_forker::send_forker_request(control, init, request, descriptor, limit)?;
                Some(InitWaitRequest { init, status_file, queue })
            }
            None => stub::send_request(self.control, &request, self.descriptor).map(|()| None)?,
        };
        drop(plan);
        // Close the daemon's copies: if a pipe end stayed open here, the child would not see the end of file.
        self.objects = PassedObjects::empty();
        let Self { descriptor, control, stub_pid, .. } = *self;
        Ok(PendingRestore { descriptor, control, stub_pid, init_wait, requested_ns, deadline })
    }
}

/// A child that was requested from its stub.
#[derive(Debug)]
pub struct PendingRestore<'a> {
    descriptor: &'a Descriptor,
    control: BorrowedFd<'a>,
    stub_pid: i32,
    /// The request to the container's init, for a child that a privileged forker forks.
    init_wait: Option<InitWaitRequest<'a>>,
    requested_ns: u64,
    deadline: Instant,
}

impl PendingRestore<'_> {
    /// Waits until the child is restored.
    ///
    /// # Errors
    /// [`RestoreError`], for example the step of the restorer that failed. The container is no longer usable.
    pub fn wait_restored(self) -> Result<RestoredProcess, RestoreError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let started = match self.init_wait {
            Some(request) => privileged_forker::finish_start(self.control, request, self.descriptor, left)?,
            None => stub::wait_restored_or_stopped(self.stub_pid, self.control, left, self.descriptor)?,
        };
        report::trace_phases(self.requested_ns, &started.marks_ns, started.realtime_ns);
        Ok(started.into())
    }
}
