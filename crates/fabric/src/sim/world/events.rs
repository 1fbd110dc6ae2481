//! What happens in the simulated network, each at its time.
//!
//! An arrival takes the first parcel of its pipe, whichever it was scheduled for: so the bytes of a connection keep
//! their order, whatever delays were drawn and however long a path was cut.

use std::time::Duration;

use super::Place;
use super::network::{ACCEPTOR, DIALLER, Network};
use super::pipe::Parcel;

/// Connections that wait to be accepted; further ones are refused.
const BACKLOG_MAX: usize = 128;

/// What happens at some time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Knock { connection: u64, port: u16 },
    Answer { connection: u64, accepted: bool },
    Arrive { connection: u64, side: usize },
}

impl Network {
    pub(super) fn schedule(&mut self, at: Duration, event: Event) {
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    /// When something happens next.
    pub(super) fn next_event_at(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets time pass, and happen what is due by then.
    pub(super) fn advance(&mut self, to: Duration) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= to) {
            let ((at, _), event) = entry.remove_entry();
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = self.now.max(to);
    }

    fn happen(&mut self, event: Event) {
        let (Event::Knock { connection: id, .. }
        | Event::Answer { connection: id, .. }
        | Event::Arrive { connection: id, .. }) = event;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let [dialler, acceptor] = connection.nodes;
        let to_dialler = matches!(event, Event::Answer { .. } | Event::Arrive { side: DIALLER, .. });
        let key = if to_dialler { (acceptor, dialler) } else { (dialler, acceptor) };
        let path = self.paths.entry(key).or_default();
        if path.cut {
            return path.held.push(event);
        }
        match event {
            Event::Knock { port, .. } => self.knock(id, Place { node: acceptor, port }),
            Event::Answer { accepted, .. } => connection.answered = Some(accepted),
            Event::Arrive { side, .. } => self.arrive(id, side),
        }
        self.trace.note(self.now, format_args!("{event:?}"));
    }

    fn knock(&mut self, id: u64, at: Place) {
        let backlog = self.listeners.get_mut(&at).filter(|backlog| backlog.len() < BACKLOG_MAX);
        let accepted = backlog.is_some();
        if let Some(backlog) = backlog {
            backlog.push_back(id);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.open[ACCEPTOR] = accepted;
        let [dialler, acceptor] = connection.nodes;
        let answered_at = self.now + self.draw_delay(acceptor, dialler);
        self.schedule(answered_at, Event::Answer { connection: id, accepted });
    }

    fn arrive(&mut self, id: u64, side: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let bytes = connection.pipes[side].arrive();
        // As TCP does: who sends to somebody who left is told.
        if bytes > 0 && !connection.open[side] {
            self.send_parcel(id, side, Parcel::Reset, self.now);
        }
        self.trace.note(self.now, format_args!("connection {id} side {side} has {bytes} bytes more"));
    }
}
