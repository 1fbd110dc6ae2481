//! From a message of the kernel to its answer: events change the map, faults get zeroes, poison, or a page that is
//! asked for.
//!
//! Not all can be answered at once: what is to be done again is in `retries`. Where the kernel's messages do not say all, it is asked:
//! what a fork has (`doubts`), which memory is locked (`lengthened`) or wiped on fork (`wiped`), who waits (`waiting`).

mod doubts;
mod lengthened;
pub(super) mod retries;
mod waiting;
mod wiped;

use farfork_fabric::{Completion, FabricError, Refusal};
use farfork_sys::fdpass;
use farfork_sys::userfaultfd::{Message, Userfaultfd};
use rustix::io::Errno;

use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::cache::CACHED_SLOTS_MAX;
use super::child::Child;
use super::journal::SpaceNumber;
use super::owners::{BULK_READS_MAX, BULK_SLOTS, Lane, OwnerKey, Read, Wish};
use super::prefetch::Ahead;
use super::server::watch::Source;
use super::server::{AskedForOne, Served, Server, TABLE_FULL_PAUSE};
use super::space::Need;
use super::space::install::Installed;
use retries::{Delivery, Fault, PAUSED_TRIES_MAX, Task};

/// Slots of a reply fetched ahead that are installed in one step, some 20 µs.
const INSTALLED_SLOTS_MAX: u64 = 16;

/// Pause when as much is on its way as a connection takes.
const CONNECTION_FULL_PAUSE: Duration = Duration::from_millis(1);

impl Server<'_> {
    /// Receives the userfaultfds of a child's own processes, as many as have come.
    pub(super) fn welcome(&mut self, key: u64) {
        loop {
            let Some(served) = self.children.get_mut(&key) else { return };
            let child = &mut served.child;
            let Some(socket) = &child.socket else { return };
            // Looked at, not taken: until it is in the journal, the message in the socket holds a copy for a successor.
            let mut word = [0; 16];
            let mut sender = None;
            let arrived = fdpass::peek_with_sender(socket.as_fd(), &mut word, 2);
            let uffd = match arrived {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok((_, mut fds, pid)) if !fds.is_empty() => {
                    sender = pid;
                    child.note_stub_queue((fds.len() == 2).then(|| fds.pop()).flatten());
                    fds.pop().ok_or(Errno::NODATA.into()).and_then(Userfaultfd::from_fd)
                }
                // Of a tree's process without memory that is to be served.
                Ok((1.., ..)) if child.own_spaces() > 1 => {
                    let _ = fdpass::receive(socket.as_fd(), &mut word, 2);
                    if child.miss_one() {
                        return self.all_are_welcome(key);
                    }
                    continue;
                }
                // An earlier pager may have heard of such.
                Ok((0, ..)) if !child.spaces.is_empty() => return self.all_are_welcome(key),
                Ok(_) => Err(io::Error::other("the socket was closed before one arrived")),
                Err(error) => Err(error),
            };
            match uffd {
                Ok(uffd) if child.own_spaces() == 1 => {
                    child.activate(0, uffd, sender);
                    self.all_are_welcome(key);
                    return self.listen(key, 0);
                }
                Ok(uffd) => {
                    let number = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                    let is_new = child.activate(number, uffd, sender);
                    // What is in the journal needs no copy in the socket.
                    let _ = child.socket.as_ref().map(|socket| fdpass::receive(socket.as_fd(), &mut word, 2));
                    let are_all = is_new && child.miss_one();
                    if is_new {
                        self.listen(key, number);
                    }
                    if are_all {
                        return self.all_are_welcome(key);
                    }
                }
                Err(error) => {
                    tracing::warn!("child {} is forgotten: no userfaultfd of it: {error}", child.id);
                    return self.forget(key);
                }
            }
        }
    }

    /// Nothing more is expected on a child's socket.
    fn all_are_welcome(&mut self, key: u64) {
        let Some(served) = self.children.get_mut(&key) else { return };
        if let Some(socket) = &served.child.socket {
            self.watch.remove(Source::Socket(key), &**socket);
        }
        served.child.complete();
        self.begin_with_early(key);
        self.queue_recalled(key);
    }

    /// Reads what a space has to say, and answers.
    pub(super) fn hear(&mut self, key: u64, space: SpaceNumber) {
        let mut messages = std::mem::take(&mut self.messages);
        messages.clear();
        let Some(served) = self.children.get_mut(&key) else { return };
        if let Some(known) = served.child.spaces.get_mut(&space) {
            known.forget_what_is_settled();
        }
        if let Err(error) = served.child.read(space, &mut messages) {
            self.cannot_hear(key, space, &error);
        }
        // All events before all faults: a fault is judged by the newest map that is known.
        for message in &messages {
            self.follow(key, space, message);
        }
        for message in &messages {
            if let Message::Fault { address, write, thread } = *message {
                if let Some(Served { child, .. }) = self.children.get_mut(&key) {
                    child.counters.faults += 1;
                    child.counters.faults_write += u64::from(write);
                }
                self.answer(Fault::heard((key, space), (address, thread), self.now), 0);
            }
        }
        self.messages = messages;
        if let Some(served) = self.children.get_mut(&key) {
            served.child.note_counters();
        }
    }

    fn follow(&mut self, key: u64, space: SpaceNumber, message: &Message) {
        let Some(served) = self.children.get_mut(&key) else { return };
        if let Message::Fork { number } = *message {
            match served.child.fork(space, number) {
                Ok(forked) => {
                    self.listen(key, forked);
                    // Behind all that was read with it.
                    self.retries.push(Task::Doubt { child: key, space: forked }, self.now, Duration::ZERO, 0);
                }
                Err(error) => tracing::error!("child {}: a process it forked is not served: {error}", served.child.id),
            }
        } else {
            served.child.follow(space, message);
        }
    }

    /// Where the table of descriptors is full, a fork waits in the kernel until its userfaultfd has room. Nothing else
    /// is a reason not to hear a child.
    fn cannot_hear(&mut self, key: u64, space: SpaceNumber, error: &io::Error) {
        let Some(served) = self.children.get_mut(&key) else { return };
        let Some(known) = served.child.spaces.get(&space) else { return };
        self.watch.remove(Source::Space(key, space), known);
        if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
            tracing::warn!("child {}: a fork waits for a free descriptor of the pager", served.child.id);
            self.retries.push(Task::Listen { child: key, space }, self.now, TABLE_FULL_PAUSE, 0);
        } else {
            served.child.lose(&format!("its faults cannot be read: {error}"));
        }
    }

    /// Answers a fault.
    pub(super) fn answer(&mut self, mut fault: Fault, paused_tries: u32) {
        let Fault { child: key, space: space_number, address, is_first, .. } = fault;
        let Some(served) = self.children.get_mut(&key) else { return };
        let child = &mut served.child;
        let Some(space) = child.spaces.get_mut(&space_number) else { return };
        if !space.knows() {
            // As all that is not quiet has it: as soon as may be. What it waits for may wait for this one.
            if !self.lends_what_grows(&mut fault) {
                self.retries.push(Task::Fault(fault), self.now, Duration::ZERO, paused_tries);
            }
            return;
        }
        if !child.forgets_what_was_wiped(&fault, self.now) {
            return self.retries.push(Task::Fault(fault), self.now, Duration::ZERO, paused_tries);
        }
        let Some(space) = child.spaces.get_mut(&space_number) else { return };
        let outcome = match space.judge(address, is_first, &child.populated) {
            // Also of a page on its way: where its read fails as well, nobody is woken a second time.
            Need::Page { slot, .. } | Need::Patience { slot, .. }
                if child.sources[child.populated.source_of(slot)].is_lost =>
            {
                space.poison(address)
            }
            Need::Patience { slot, ahead } => {
                child.counters.faults_late += 1;
                child.trace.touched(slot);
                self.have_later_copies_spared(key, slot);
                self.prefer(key, space_number, slot);
                return self.wish(key, space_number, ahead);
            }
            Need::Zeroes { pages } => {
                let outcome = space.zero(address, pages, &mut child.counters.zero_pages);
                // Who had the first of the pages may have ended before the last of them.
                child.counters.faults_zero += u64::from(matches!(outcome, Installed::All | Installed::Gone));
                self.have_later_copies_zeroed(key, address, pages);
                outcome
            }
            Need::Page { slot, mut ahead } => {
                let is_expected = child.trace.knows(slot);
                child.trace.touched(slot);
                let cached = child.put_cached(&mut self.cache, space_number, slot..slot + 1, self.now);
                child.counters.faults_cached += u64::from(cached.is_some() && is_first);
                self.have_later_copies_spared(key, slot);
                if cached.is_none() {
                    ahead = self.ask_with_company(fault, slot, ahead, is_expected);
                }
                self.wish(key, space_number, ahead);
                let Some((_, outcome)) = cached else { return };
                fault.is_first = false;
                outcome
            }
        };
        match outcome {
            Installed::All => {}
            Installed::Gone => self.close_space(key, space_number),
            Installed::Later { pause, .. } if pause.is_zero() && self.lends_what_grows(&mut fault) => {}
            Installed::Later { pause, .. } if paused_tries < PAUSED_TRIES_MAX => {
                self.retries.push(Task::Fault(fault), self.now, pause, paused_tries);
            }
            Installed::Later { .. } => {
                self.lose(key, "there is no memory for its pages (see its control group's limit)")
            }
            Installed::Failed(error) => self.lose(key, &format!("a page could not be installed: {error}")),
        }
    }

    /// Asks for a slot that somebody waits for: with what lies around it, or, where it is of the child's set, with what an earlier child
    /// wanted next; of what lies around it nothing else is fetched then but what the set has. Gives what is to be fetched behind it.
    fn ask_with_company(&mut self, fault: Fault, slot: u64, ahead: Ahead, is_expected: bool) -> Ahead {
        let Some(served) = self.children.get(&fault.child) else { return ahead };
        let pid = served.child.pid.filter(|_| fault.space == 0);
        let source = served.child.populated.source_of(slot);
        let owner = served.owners[source];
        let recalled = if is_expected { self.leap(fault, slot, (source, owner)) } else { Vec::new() };
        let (slots, ahead, is_alone) = if recalled.is_empty() {
            let is_alone = ahead.along.end - ahead.along.start <= 1;
            (self.along(fault, slot, (source, ahead.along.clone())), ahead, is_alone)
        } else {
            self.queue_part_of_set(fault, (source, owner), ahead.window);
            (recalled, Ahead { stream: ahead.stream, ..Ahead::NOTHING }, false)
        };
        self.single_at = is_alone.then_some(self.now).or(self.single_at);
        self.demand(fault, slots, (source, owner));
        self.asked_for_one = Some(AskedForOne { child: fault.child, pid, owner, is_alone });
        ahead
    }

    /// What to ask for where somebody waits for a slot: with it, what else of a range is wanted.
    fn along(&mut self, fault: Fault, slot: u64, (source, along): (usize, Range<u64>)) -> Vec<Range<u64>> {
        let Fault { child, space, .. } = fault;
        let alone = iter::once(slot..slot + 1).collect();
        let Some(served) = self.children.get_mut(&child).filter(|_| along.end - along.start > 1) else { return alone };
        let Child { spaces, populated, trace, .. } = &mut served.child;
        let Some(known) = spaces.get(&space) else { return alone };
        let (wanted, _) = known.wanted_from((source, populated), along, BULK_SLOTS);
        trace.fetched(&wanted);
        self.take_cached((child, space, source), wanted)
    }

    /// Asks for a page that somebody waits for, and what comes along with it.
    fn demand(&mut self, fault: Fault, slots: Vec<Range<u64>>, (source, owner): (usize, OwnerKey)) {
        let Fault { child, space, .. } = fault;
        if !self.ask(Read { child, space, slots, source, owner, lane: Lane::Demand, asked_at: self.now }) {
            let again = Task::Fault(Fault { is_first: false, ..fault });
            self.retries.push(again, self.now, CONNECTION_FULL_PAUSE, 0);
        }
    }

    /// Has the delivery that a page arrived with, if it did, installed before all others: somebody waits for the page.
    fn prefer(&mut self, child: u64, space: SpaceNumber, slot: u64) {
        let holds = |delivery: &Delivery| {
            let read = &delivery.read;
            (read.child, read.space) == (child, space) && read.slots.iter().any(|slots| slots.contains(&slot))
        };
        let found = self.arrived.iter().position(holds);
        if let Some(delivery) = found.and_then(|at| self.arrived.remove(at)) {
            self.arrived.push_front(delivery);
        }
    }

    /// Has slots of a space fetched when it is their turn, from whoever has them.
    fn wish(&mut self, child: u64, space: SpaceNumber, ahead: Ahead) {
        let Some(served) = self.children.get(&child) else { return };
        for slots in [ahead.window, ahead.stream] {
            if slots.end - slots.start > 1 {
                for source in served.child.populated.sources_of(slots.clone()) {
                    let wish = Wish { child, space, source, slots: [slots.clone()].into(), is_recalled: false };
                    self.owners.queue(served.owners[source], wish);
                }
            }
        }
    }

    /// Asks for slots of a space; tells whether they are on their way.
    pub(super) fn ask(&mut self, read: Read) -> bool {
        let Some(served) = self.children.get_mut(&read.child) else { return false };
        let child = &mut served.child;
        let Some(space) = child.spaces.get_mut(&read.space) else { return false };
        let deadline = self.now + child.strategy.unreachable_limit;
        let (slots, lane) = (read.slots.clone(), (read.owner, read.lane));
        let for_a_fault = u64::from(read.lane == Lane::Demand);
        let key = child.sources[read.source].key.clone();
        if self.owners.ask(read, &key, &child.populated, deadline).is_err() {
            return false;
        }
        space.asked(&slots);
        child.counters.faults_missing += for_a_fault;
        self.to_poll.insert(lane);
        true
    }

    /// Asks for what is likely wanted soon, as far as there is room: what arrived and is not installed takes memory, and
    /// time from whoever waits for a page of it.
    pub(super) fn fetch_ahead(&mut self) {
        self.cached_room = CACHED_SLOTS_MAX;
        if self.arrived.len() >= BULK_READS_MAX {
            return;
        }
        // Before what is wanted soon, or a stream that never ends would keep a child from settling.
        self.settle_some(1);
        for owner in self.owners.keys() {
            while self.cached_room > 0
                && let Some(wish) = self.owners.next_wish(owner)
            {
                self.fetch_wish(owner, wish);
            }
        }
        self.settle_some(BULK_READS_MAX);
    }

    fn fetch_wish(&mut self, owner: OwnerKey, wish: Wish) {
        let Wish { child, space, source, mut slots, is_recalled } = wish;
        let Some(served) = self.children.get_mut(&child).filter(|served| !served.child.sources[source].is_lost) else {
            return;
        };
        let Child { spaces, populated, trace, .. } = &mut served.child;
        let Some(known) = spaces.get(&space) else { return };
        let wanted = known.take_wanted((source, populated), &mut slots, BULK_SLOTS);
        if !is_recalled {
            trace.fetched(&wanted);
        }
        if !slots.is_empty() {
            self.owners.queue(owner, Wish { child, space, source, slots, is_recalled });
        }
        let wanted = self.take_cached((child, space, source), wanted);
        if !wanted.is_empty() {
            self.ask(Read { child, space, slots: wanted, source, owner, lane: Lane::Bulk, asked_at: self.now });
        }
    }

    /// Takes the end of a read.
    pub(super) fn complete(&mut self, owner: OwnerKey, lane: Lane, completion: Completion) {
        if let Some(aside) = self.owners.ended_aside(completion.tag) {
            return self.conclude_aside(aside, completion);
        }
        let read = self.owners.ended(completion.tag);
        match (read, completion.result) {
            (Some(read), Ok(reply)) => {
                self.keep(&read, &reply.data);
                if let Some(served) = self.children.get_mut(&read.child) {
                    served.child.received(&read, reply.data.len() as u64);
                }
                let delivery = Delivery { read, data: reply.data, offset: 0 };
                match lane {
                    Lane::Demand => {
                        let alone = Some(delivery.read.child).filter(|_| !delivery.read.is_guess());
                        self.brought_one = alone.or(self.brought_one);
                        self.deliver(delivery, 0);
                    }
                    Lane::Bulk => self.stream_came(delivery),
                }
            }
            (Some(read), Err(error)) => self.fail(&read, &error),
            (None, Ok(reply)) => self.owners.recycle(owner, lane, reply.data),
            (None, Err(_)) => {}
        }
    }

    /// Installs pages that arrived.
    pub(super) fn deliver(&mut self, mut delivery: Delivery, paused_tries: u32) {
        let (key, space) = (delivery.read.child, delivery.read.space);
        let outcome = match self.children.get_mut(&key) {
            Some(served) => {
                let began = (Instant::now(), served.child.counters.pages_fetched);
                let slots_max = if delivery.read.lane == Lane::Bulk { INSTALLED_SLOTS_MAX } else { u64::MAX };
                let outcome = served.child.install(&mut delivery, slots_max);
                served.child.installed(&delivery.read, &outcome, began);
                outcome
            }
            None => Installed::Gone,
        };
        match outcome {
            Installed::All if delivery.read.slots.is_empty() => {}
            Installed::All => return self.arrived.push_front(delivery),
            Installed::Gone => self.close_space(key, space),
            Installed::Later { pause, .. } if paused_tries < PAUSED_TRIES_MAX => {
                return self.retries.push(Task::Delivery(delivery), self.now, pause, paused_tries);
            }
            Installed::Later { .. } => {
                self.lose(key, "there is no memory for its pages (see its control group's limit)")
            }
            Installed::Failed(error) => self.lose(key, &format!("a page could not be installed: {error}")),
        }
        self.owners.recycle(delivery.read.owner, delivery.read.lane, delivery.data);
    }

    /// A read ended without bytes.
    fn fail(&mut self, read: &Read, error: &FabricError) {
        self.note_dropped(read, error);
        let settles = read.lane == Lane::Bulk && self.settling_fails(read, error);
        let Some(served) = self.children.get_mut(&read.child) else { return };
        let spaces = &mut served.child.spaces;
        if let Some(space) = spaces.get_mut(&read.space) {
            read.slots.iter().for_each(|slots| space.dropped(slots.clone()));
            if settles || read.is_guess() && is_about_the_range(error) {
                // Only a guess was wrong. Whoever waits for one of these pages asks for it alone.
                space.ask_alone();
                return space.wake_all();
            }
        } else if served.child.early.fails(read) && is_about_the_range(error) {
            return;
        }
        if let Some(served) = self.children.get_mut(&read.child) {
            served.child.lose_source(read.source, &error.to_string());
        }
    }

    pub(super) fn lose(&mut self, key: u64, reason: &str) {
        if let Some(served) = self.children.get_mut(&key) {
            served.child.lose(reason);
        }
    }
}

/// Whether the owner would serve other ranges of the seed.
fn is_about_the_range(error: &FabricError) -> bool {
    matches!(error, FabricError::Refused { refusal: Refusal::OutOfBounds | Refusal::Unreadable { .. }, .. })
}
