//! The events of the simulated network, each with its time.
//!
//! A delivery event takes the first packet of its pipe, not the packet for which it was scheduled. So the bytes of a
//! connection keep their order, with any delays and after any cut of a path.

use std::time::Duration;

use super::SimAddress;
use super::network::{ACCEPTOR_SIDE, DIALER_SIDE, Network};
use super::pipe::SimPacket;

/// Maximum number of connections that wait to be accepted. Further connections are refused.
const BACKLOG_MAX: usize = 128;

/// An event in the network.
#[derive(Debug, Clone, Copy)]
pub(super) enum NetworkEvent {
    ConnectRequest { connection: u64, port: u16 },
    ConnectReply { connection: u64, accepted: bool },
    Delivery { connection: u64, side: usize },
}

impl Network {
    pub(super) fn schedule(&mut self, at: Duration, event: NetworkEvent) {
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    /// Returns the time of the next event.
    pub(super) fn next_event_at(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Advances the time, and applies all events that are due.
    pub(super) fn advance(&mut self, to: Duration) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= to) {
            let ((at, _), event) = entry.remove_entry();
            self.now = self.now.max(at);
            self.apply_event(event);
        }
        self.now = self.now.max(to);
    }

    fn apply_event(&mut self, event: NetworkEvent) {
        let (NetworkEvent::ConnectRequest { connection: id, .. }
        | NetworkEvent::ConnectReply { connection: id, .. }
        | NetworkEvent::Delivery { connection: id, .. }) = event;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let [dialler, acceptor] = connection.nodes;
        let to_dialler =
            matches!(event, NetworkEvent::ConnectReply { .. } | NetworkEvent::Delivery { side: DIALER_SIDE, .. });
        let key = if to_dialler { (acceptor, dialler) } else { (dialler, acceptor) };
        let path = self.paths.entry(key).or_default();
        if path.is_down {
            return path.held_events.push(event);
        }
        match event {
            NetworkEvent::ConnectRequest { port, .. } => self.handle_connect(id, SimAddress { node: acceptor, port }),
            NetworkEvent::ConnectReply { accepted, .. } => connection.accepted = Some(accepted),
            NetworkEvent::Delivery { side, .. } => self.deliver_packet(id, side),
        }
        self.trace.record(self.now, format_args!("{event:?}"));
    }

    fn handle_connect(&mut self, id: u64, at: SimAddress) {
        let backlog = self.listeners.get_mut(&at).filter(|backlog| backlog.len() < BACKLOG_MAX);
        let accepted = backlog.is_some();
        if let Some(backlog) = backlog {
            backlog.push_back(id);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.open[ACCEPTOR_SIDE] = accepted;
        let [dialler, acceptor] = connection.nodes;
        let answered_at = self.now + self.random_delay(acceptor, dialler);
        self.schedule(answered_at, NetworkEvent::ConnectReply { connection: id, accepted });
    }

    fn deliver_packet(&mut self, id: u64, side: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let bytes = connection.pipes[side].deliver_next();
        // As in TCP, the reply to data for a closed end is a reset.
        if bytes > 0 && !connection.open[side] {
            self.send_packet(id, side, SimPacket::Reset, self.now);
        }
        self.trace.record(self.now, format_args!("connection {id} side {side} received {bytes} bytes"));
    }
}
