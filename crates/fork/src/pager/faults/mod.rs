//! Handles userfaultfd messages: events update the page map; faults get zeroes, poison or a fetched page. `server`
//! calls this module with the messages and completions of a round. Work that cannot be done yet waits in `retry_queue`.
//! The submodules ask the kernel for facts that messages lack: a fork's map changes (`fork_resolution`), memory that
//! mremap(2) grows (`mremap_growth`) or fork(2) wipes (`wipe_on_fork`), and the waiting threads (`faulting_threads`).

mod faulting_threads;
mod fork_resolution;
mod mremap_growth;
pub(super) mod retry_queue;
mod wipe_on_fork;

use farfork_fabric::{Completion, FabricError, Refusal};
use farfork_sys::fd_passing;
use farfork_sys::userfaultfd::{UffdEvent, Userfaultfd};
use rustix::io::Errno;

use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::address_space::FaultAction;
use super::address_space::install::InstallOutcome;
use super::cache::CACHED_SLOTS_PER_ROUND_MAX;
use super::child::Child;
use super::journal::AddressSpaceId;
use super::owner_connections::{
    AddressSpaceSource, BULK_READS_MAX, BULK_SLOTS, Lane, OwnerKey, PageRead, PrefetchRequest,
};
use super::readahead::PrefetchRanges;
use super::server::event_poller::EventSource;
use super::server::{DemandRequest, FD_TABLE_FULL_BACKOFF, PagerServer, ServedChild};
use retry_queue::{CompletedRead, PAUSED_TRIES_MAX, PageFault, RetryTask};

/// Maximum number of slots of a prefetched reply that are installed in one step, which takes about 20 µs.
const BULK_INSTALL_SLOTS_MAX: u64 = 16;

/// Pause when a connection has its maximum of requests in flight.
const CONNECTION_FULL_BACKOFF: Duration = Duration::from_millis(1);

impl PagerServer<'_> {
    /// Receives the userfaultfds of a child's own processes that have arrived.
    pub(super) fn receive_userfaultfds(&mut self, key: u64) {
        loop {
            let Some(served) = self.children.get_mut(&key) else { return };
            let child = &mut served.child;
            let Some(socket) = &child.uffd_socket else { return };
            // Only peek: if this pager is killed before the journal has the userfaultfd, the next pager receives it
            // from the socket.
            let mut word = [0; 16];
            let mut sender = None;
            let arrived = fd_passing::peek_with_sender(socket.as_fd(), &mut word, 2);
            let uffd = match arrived {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok((_, mut fds, pid)) if !fds.is_empty() => {
                    sender = pid;
                    child.set_stub_queue((fds.len() == 2).then(|| fds.pop()).flatten());
                    fds.pop().ok_or(Errno::NODATA.into()).and_then(Userfaultfd::from_fd)
                }
                // A process without memory to serve sends a message without a userfaultfd.
                Ok((1.., ..)) if child.process_count() > 1 => {
                    let _ = fd_passing::receive(socket.as_fd(), &mut word, 2);
                    if child.count_arrived_process() {
                        return self.finish_adoption(key);
                    }
                    continue;
                }
                // An earlier pager may have received the userfaultfds.
                Ok((0, ..)) if !child.spaces.is_empty() => return self.finish_adoption(key),
                Ok(_) => Err(io::Error::other("the socket was closed before a userfaultfd arrived")),
                Err(error) => Err(error),
            };
            match uffd {
                Ok(uffd) if child.process_count() == 1 => {
                    child.add_userfaultfd(0, uffd, sender);
                    self.finish_adoption(key);
                    return self.watch_space(key, 0);
                }
                Ok(uffd) => {
                    let number = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                    let is_new = child.add_userfaultfd(number, uffd, sender);
                    // The journal has the userfaultfd, so remove the message from the socket.
                    let _ = child.uffd_socket.as_ref().map(|socket| fd_passing::receive(socket.as_fd(), &mut word, 2));
                    let are_all = is_new && child.count_arrived_process();
                    if is_new {
                        self.watch_space(key, number);
                    }
                    if are_all {
                        return self.finish_adoption(key);
                    }
                }
                Err(error) => {
                    tracing::warn!("child {} is not served: its userfaultfd was not received: {error}", child.id);
                    return self.remove_child(key);
                }
            }
        }
    }

    /// Called when the child has sent all its userfaultfds: closes the socket, and starts to install and fetch the
    /// working set.
    fn finish_adoption(&mut self, key: u64) {
        let Some(served) = self.children.get_mut(&key) else { return };
        if let Some(socket) = &served.child.uffd_socket {
            self.poller.remove(EventSource::UffdSocket(key), &**socket);
        }
        served.child.finish_adoption();
        self.install_early_reads(key);
        self.queue_working_set(key);
    }

    /// Reads the messages of an address space, and handles them.
    pub(super) fn handle_messages(&mut self, key: u64, space: AddressSpaceId) {
        let mut messages = std::mem::take(&mut self.messages);
        messages.clear();
        let Some(served) = self.children.get_mut(&key) else { return };
        if let Some(address_space) = served.child.spaces.get_mut(&space) {
            address_space.clear_if_quiet();
        }
        if let Err(error) = served.child.read_messages(space, &mut messages) {
            self.handle_message_read_error(key, space, &error);
        }
        // Apply all events before the faults: a fault is classified by the newest map.
        for message in &messages {
            self.apply_event(key, space, message);
        }
        for message in &messages {
            if let UffdEvent::Fault { address, write, thread } = *message {
                if let Some(ServedChild { child, .. }) = self.children.get_mut(&key) {
                    child.counters.faults += 1;
                    child.counters.faults_write += u64::from(write);
                }
                self.handle_fault(PageFault::new(key, space, address, thread, self.now), 0);
            }
        }
        self.messages = messages;
        if let Some(served) = self.children.get_mut(&key) {
            served.child.save_counters();
        }
    }

    fn apply_event(&mut self, key: u64, space: AddressSpaceId, message: &UffdEvent) {
        let Some(served) = self.children.get_mut(&key) else { return };
        if let UffdEvent::Fork { number } = *message {
            match served.child.add_forked_space(space, number) {
                Ok(forked) => {
                    self.watch_space(key, forked);
                    // Resolve the fork after all messages of this batch were applied.
                    self.retries.push(
                        RetryTask::ResolveFork { child: key, space: forked },
                        self.now,
                        Duration::ZERO,
                        0,
                    );
                }
                Err(error) => tracing::error!("child {}: a process it forked is not served: {error}", served.child.id),
            }
        } else {
            served.child.apply_map_event(space, message);
        }
    }

    /// If the descriptor table is full, retries the read later: the kernel holds the forking thread until there is room
    /// for the new userfaultfd. Any other error marks the child as lost.
    fn handle_message_read_error(&mut self, key: u64, space: AddressSpaceId, error: &io::Error) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let Some(address_space) = served.child.spaces.get(&space) else { return };
        self.poller.remove(EventSource::Space(key, space), address_space);
        if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
            tracing::warn!("child {}: a fork waits for a free descriptor of the pager", served.child.id);
            self.retries.push(RetryTask::WatchSpace { child: key, space }, self.now, FD_TABLE_FULL_BACKOFF, 0);
        } else {
            served.child.mark_lost(&format!("its faults cannot be read: {error}"));
        }
    }

    /// Handles a fault: maps zeroes, requests the page, or queues a retry.
    pub(super) fn handle_fault(&mut self, mut fault: PageFault, paused_tries: u32) {
        let PageFault { child: key, space: space_number, address, is_first, .. } = fault;
        let Some(served) = self.children.get_mut(&key) else { return };
        let child = &mut served.child;
        let Some(address_space) = child.spaces.get_mut(&space_number) else { return };
        if !address_space.check_map_certain() {
            // Retry at once: the event that makes the map certain may wait for this fault.
            if !self.unregister_growing_memory(&mut fault) {
                self.retries.push(RetryTask::Fault(fault), self.now, Duration::ZERO, paused_tries);
            }
            return;
        }
        if !child.discard_wiped_memory(&fault, self.now) {
            return self.retries.push(RetryTask::Fault(fault), self.now, Duration::ZERO, paused_tries);
        }
        let Some(address_space) = child.spaces.get_mut(&space_number) else { return };
        let outcome = match address_space.classify_fault(address, is_first, &child.populated) {
            // Also poison a page in flight: if its read fails too, `mark_source_lost` wakes no thread a second time.
            FaultAction::Fetch { slot, .. } | FaultAction::InFlight { slot, .. }
                if child.sources[child.populated.source_of(slot)].is_lost =>
            {
                address_space.poison_page(address)
            }
            FaultAction::InFlight { slot, ahead } => {
                child.counters.faults_late += 1;
                child.trace.record_touch(slot);
                self.add_fault_to_zygote(key, slot);
                self.prioritize_completed_read(key, space_number, slot);
                return self.queue_prefetch(key, space_number, ahead);
            }
            FaultAction::Zeroes { pages } => {
                let outcome = address_space.map_zeroes(address, pages, &mut child.counters.zero_pages);
                // Count the fault also if the process ended before the last page was mapped.
                child.counters.faults_zero +=
                    u64::from(matches!(outcome, InstallOutcome::Complete | InstallOutcome::ProcessGone));
                self.add_zeroes_to_zygote(key, address, pages);
                outcome
            }
            FaultAction::Fetch { slot, mut ahead } => {
                let is_expected = child.trace.is_recorded(slot);
                child.trace.record_touch(slot);
                let cached = child.install_cached(&mut self.cache, space_number, slot..slot + 1, self.now);
                child.counters.faults_cached += u64::from(cached.is_some() && is_first);
                self.add_fault_to_zygote(key, slot);
                if cached.is_none() {
                    ahead = self.request_with_fault_around(fault, slot, ahead, is_expected);
                }
                self.queue_prefetch(key, space_number, ahead);
                let Some((_, outcome)) = cached else { return };
                fault.is_first = false;
                outcome
            }
        };
        match outcome {
            InstallOutcome::Complete => {}
            InstallOutcome::ProcessGone => self.close_space(key, space_number),
            InstallOutcome::Retry { pause, .. } if pause.is_zero() && self.unregister_growing_memory(&mut fault) => {}
            InstallOutcome::Retry { pause, .. } if paused_tries < PAUSED_TRIES_MAX => {
                self.retries.push(RetryTask::Fault(fault), self.now, pause, paused_tries);
            }
            InstallOutcome::Retry { .. } => {
                self.mark_child_lost(key, "there is no memory for its pages (see its control group's limit)")
            }
            InstallOutcome::Failed(error) => {
                self.mark_child_lost(key, &format!("a page could not be installed: {error}"))
            }
        }
    }

    /// Requests a slot that a thread waits for, along with its neighbours. If the slot is in the working set, requests
    /// it along with the slots that earlier children touched next, and prefetches only pages of the set around it.
    /// Returns the slots to prefetch afterwards.
    fn request_with_fault_around(
        &mut self,
        fault: PageFault,
        slot: u64,
        ahead: PrefetchRanges,
        is_expected: bool,
    ) -> PrefetchRanges {
        let Some(served) = self.children.get(&fault.child) else { return ahead };
        let pid = served.child.pid.filter(|_| fault.space == 0);
        let source = served.child.populated.source_of(slot);
        let owner = served.owners[source];
        let set_slots = if is_expected { self.take_set_slots_from(fault, slot, source, owner) } else { Vec::new() };
        let (slots, ahead, is_alone) = if set_slots.is_empty() {
            let is_alone = ahead.fault_around.end - ahead.fault_around.start <= 1;
            (self.fault_around_slots(fault, slot, source, ahead.fault_around.clone()), ahead, is_alone)
        } else {
            self.queue_set_range(fault, source, owner, ahead.window);
            (set_slots, PrefetchRanges { stream: ahead.stream, ..PrefetchRanges::NONE }, false)
        };
        self.single_fault_at = is_alone.then_some(self.now).or(self.single_fault_at);
        self.submit_demand_read(fault, slots, source, owner);
        self.demand_request = Some(DemandRequest { child: fault.child, pid, owner, is_single: is_alone });
        ahead
    }

    /// Returns the slots to request when a thread waits for `slot`: this slot, and the missing slots around it.
    fn fault_around_slots(
        &mut self,
        fault: PageFault,
        slot: u64,
        source: usize,
        fault_around: Range<u64>,
    ) -> Vec<Range<u64>> {
        let PageFault { child, space, .. } = fault;
        let alone = iter::once(slot..slot + 1).collect();
        let Some(served) = self.children.get_mut(&child).filter(|_| fault_around.end - fault_around.start > 1) else {
            return alone;
        };
        let Child { spaces, populated, trace, .. } = &mut served.child;
        let Some(address_space) = spaces.get(&space) else { return alone };
        let (wanted, _) = address_space.missing_slots_from(source, populated, fault_around, BULK_SLOTS);
        trace.record_fetched(&wanted);
        self.install_cached_slots(AddressSpaceSource { child, space, source }, wanted)
    }

    /// Requests slots on the demand lane. If too many requests are in flight, queues a retry of the fault.
    fn submit_demand_read(&mut self, fault: PageFault, slots: Vec<Range<u64>>, source: usize, owner: OwnerKey) {
        let PageFault { child, space, .. } = fault;
        let target = AddressSpaceSource { child, space, source };
        if !self.submit_read(PageRead { target, slots, owner, lane: Lane::Demand, submitted_at: self.now }) {
            let again = RetryTask::Fault(PageFault { is_first: false, ..fault });
            self.retries.push(again, self.now, CONNECTION_FULL_BACKOFF, 0);
        }
    }

    /// Moves the completed read that holds `slot`, if there is one, to the front, because a thread waits for this page.
    fn prioritize_completed_read(&mut self, child: u64, space: AddressSpaceId, slot: u64) {
        let holds = |completed_read: &CompletedRead| {
            let read = &completed_read.read;
            (read.target.child, read.target.space) == (child, space)
                && read.slots.iter().any(|slots| slots.contains(&slot))
        };
        let found = self.completed_reads.iter().position(holds);
        if let Some(completed_read) = found.and_then(|at| self.completed_reads.remove(at)) {
            self.completed_reads.push_front(completed_read);
        }
    }

    /// Queues slots of an address space for prefetching, at each owner that has some of these pages.
    fn queue_prefetch(&mut self, child: u64, space: AddressSpaceId, ahead: PrefetchRanges) {
        let Some(served) = self.children.get(&child) else { return };
        for slots in [ahead.window, ahead.stream] {
            if slots.end - slots.start > 1 {
                for source in served.child.populated.sources_of(slots.clone()) {
                    let target = AddressSpaceSource { child, space, source };
                    let prefetch_request =
                        PrefetchRequest { target, slots: [slots.clone()].into(), is_from_set: false };
                    self.owners.queue_prefetch(served.owners[source], prefetch_request);
                }
            }
        }
    }

    /// Requests slots of an address space. Returns whether they are in flight.
    pub(super) fn submit_read(&mut self, read: PageRead) -> bool {
        let AddressSpaceSource { child: key, space, source } = read.target;
        let Some(served) = self.children.get_mut(&key) else { return false };
        let child = &mut served.child;
        let Some(address_space) = child.spaces.get_mut(&space) else { return false };
        let deadline = self.now + child.strategy.unreachable_timeout;
        let (slots, lane) = (read.slots.clone(), (read.owner, read.lane));
        let for_a_fault = u64::from(read.lane == Lane::Demand);
        let key = child.sources[source].key.clone();
        if self.owners.submit_read(read, &key, &child.populated, deadline).is_err() {
            return false;
        }
        address_space.note_requested(&slots);
        child.counters.faults_missing += for_a_fault;
        self.lanes_to_poll.insert(lane);
        true
    }

    /// Requests queued prefetches and settling pages, as far as there is room. Requests nothing while many completed
    /// reads wait to be installed: such reads use memory, and installing them delays faults.
    pub(super) fn submit_prefetch_reads(&mut self) {
        self.cache_install_budget = CACHED_SLOTS_PER_ROUND_MAX;
        if self.completed_reads.len() >= BULK_READS_MAX {
            return;
        }
        // One settling read before the prefetches: otherwise an endless stream of prefetches would prevent settling.
        self.run_settle_steps(1);
        for owner in self.owners.keys() {
            while self.cache_install_budget > 0
                && let Some(prefetch_request) = self.owners.next_prefetch(owner)
            {
                self.submit_prefetch(owner, prefetch_request);
            }
        }
        self.run_settle_steps(BULK_READS_MAX);
    }

    fn submit_prefetch(&mut self, owner: OwnerKey, prefetch_request: PrefetchRequest) {
        let PrefetchRequest { target, mut slots, is_from_set } = prefetch_request;
        let AddressSpaceSource { child, space, source } = target;
        let Some(served) = self.children.get_mut(&child).filter(|served| !served.child.sources[source].is_lost) else {
            return;
        };
        let Child { spaces, populated, trace, .. } = &mut served.child;
        let Some(address_space) = spaces.get(&space) else { return };
        let wanted = address_space.take_missing_slots(source, populated, &mut slots, BULK_SLOTS);
        if !is_from_set {
            trace.record_fetched(&wanted);
        }
        if !slots.is_empty() {
            self.owners.queue_prefetch(owner, PrefetchRequest { target, slots, is_from_set });
        }
        let slots = self.install_cached_slots(target, wanted);
        if !slots.is_empty() {
            self.submit_read(PageRead { target, slots, owner, lane: Lane::Bulk, submitted_at: self.now });
        }
    }

    /// Handles the completion of a read.
    pub(super) fn handle_completion(&mut self, owner: OwnerKey, lane: Lane, completion: Completion) {
        if let Some(auxiliary_request) = self.owners.take_auxiliary(completion.tag) {
            return self.handle_auxiliary_reply(auxiliary_request, completion);
        }
        let read = self.owners.take_read(completion.tag);
        match (read, completion.result) {
            (Some(read), Ok(reply)) => {
                self.store_pages(&read, &reply.data);
                if let Some(served) = self.children.get_mut(&read.target.child) {
                    served.child.count_reply(&read, reply.data.len() as u64);
                }
                let completed_read = CompletedRead { read, data: reply.data, offset: 0 };
                match lane {
                    Lane::Demand => {
                        let alone =
                            Some(completed_read.read.target.child).filter(|_| !completed_read.read.is_speculative());
                        self.demand_completed_for = alone.or(self.demand_completed_for);
                        self.install_completed_read(completed_read, 0);
                    }
                    Lane::Bulk => self.queue_completed_read(completed_read),
                }
            }
            (Some(read), Err(error)) => self.handle_read_failure(&read, &error),
            (None, Ok(reply)) => self.owners.recycle(owner, lane, reply.data),
            (None, Err(_)) => {}
        }
    }

    /// Installs pages that have arrived.
    pub(super) fn install_completed_read(&mut self, mut completed_read: CompletedRead, paused_tries: u32) {
        let AddressSpaceSource { child: key, space, .. } = completed_read.read.target;
        let outcome = match self.children.get_mut(&key) {
            Some(served) => {
                let (began, fetched) = (Instant::now(), served.child.counters.pages_fetched);
                let slots_max = if completed_read.read.lane == Lane::Bulk { BULK_INSTALL_SLOTS_MAX } else { u64::MAX };
                let outcome = served.child.install_pages(&mut completed_read, slots_max);
                served.child.count_installed_pages(&completed_read.read, &outcome, began, fetched);
                outcome
            }
            None => InstallOutcome::ProcessGone,
        };
        match outcome {
            InstallOutcome::Complete if completed_read.read.slots.is_empty() => {}
            InstallOutcome::Complete => return self.completed_reads.push_front(completed_read),
            InstallOutcome::ProcessGone => self.close_space(key, space),
            InstallOutcome::Retry { pause, .. } if paused_tries < PAUSED_TRIES_MAX => {
                return self.retries.push(RetryTask::CompletedRead(completed_read), self.now, pause, paused_tries);
            }
            InstallOutcome::Retry { .. } => {
                self.mark_child_lost(key, "there is no memory for its pages (see its control group's limit)")
            }
            InstallOutcome::Failed(error) => {
                self.mark_child_lost(key, &format!("a page could not be installed: {error}"))
            }
        }
        self.owners.recycle(completed_read.read.owner, completed_read.read.lane, completed_read.data);
    }

    /// Handles a read that failed.
    fn handle_read_failure(&mut self, read: &PageRead, error: &FabricError) {
        self.remove_unknown_seed(read, error);
        let settles = read.lane == Lane::Bulk && self.handle_settle_read_failure(read, error);
        let AddressSpaceSource { child: key, space, source } = read.target;
        let Some(served) = self.children.get_mut(&key) else { return };
        let spaces = &mut served.child.spaces;
        if let Some(address_space) = spaces.get_mut(&space) {
            read.slots.iter().for_each(|slots| address_space.note_dropped(slots.clone()));
            if settles || read.is_speculative() && is_range_refusal(error) {
                // The pages were only prefetched, or belong to a settling. A thread that waits for one of them now
                // requests it alone.
                address_space.disable_fault_around();
                return address_space.wake_all();
            }
        } else if served.child.early_fetch.remove_failed_read(read) && is_range_refusal(error) {
            return;
        }
        if let Some(served) = self.children.get_mut(&key) {
            served.child.mark_source_lost(source, &error.to_string());
        }
    }

    pub(super) fn mark_child_lost(&mut self, key: u64, reason: &str) {
        if let Some(served) = self.children.get_mut(&key) {
            served.child.mark_lost(reason);
        }
    }
}

/// Whether the owner refused only these ranges, and may serve others of the seed.
fn is_range_refusal(error: &FabricError) -> bool {
    matches!(error, FabricError::Refused { refusal: Refusal::OutOfBounds | Refusal::Unreadable { .. }, .. })
}
