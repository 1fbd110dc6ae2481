//! One other member: its last heartbeat, its silence, and when the next heartbeat to it is due.

use std::time::{Duration, Instant};

use super::{HEARTBEAT_INTERVAL, JoinError, Member, MemberState, MemberView, MembershipEvent, UNREACHABLE_AFTER};

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) member: Member,
    /// Whether it has sent a message itself. Otherwise another member has named it.
    is_confirmed: bool,
    /// Time of its last message, or the time when another member named it.
    last_seen: Instant,
    /// Whether its silence was reported.
    is_silence_reported: bool,
    heartbeat_due: Instant,
}

impl Peer {
    /// A member whose first message has arrived.
    pub(super) fn from_heartbeat(member: Member, now: Instant) -> Self {
        Self { member, is_confirmed: true, last_seen: now, is_silence_reported: false, heartbeat_due: now }
    }

    /// A member that another one named.
    pub(super) fn from_gossip(member: Member, now: Instant) -> Self {
        Self { is_confirmed: false, ..Self::from_heartbeat(member, now) }
    }

    /// Records a message of the member. A daemon at another address may take over the name unless this member is alive.
    pub(super) fn record_heartbeat(
        &mut self,
        member: Member,
        now: Instant,
    ) -> Result<Option<MembershipEvent>, JoinError> {
        let is_another_run = member.incarnation != self.member.incarnation;
        if is_another_run && member.address != self.member.address && self.is_alive(now) {
            return Err(JoinError::NameTaken { address: self.member.address });
        }
        let name = member.name.clone();
        let event = match (self.is_confirmed, is_another_run, self.silence(now) >= UNREACHABLE_AFTER) {
            (false, ..) => Some(MembershipEvent::Joined(name)),
            (true, true, _) => Some(MembershipEvent::Restarted(name)),
            (true, false, true) => Some(MembershipEvent::Returned(name)),
            (true, false, false) => None,
        };
        let heartbeat_due = self.heartbeat_due;
        *self = Self { heartbeat_due, ..Self::from_heartbeat(member, now) };
        Ok(event)
    }

    /// Time since its last message.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_seen)
    }

    /// Subtracts from the member's silence the time in which this node did not read messages.
    pub(super) fn discount_missed(&mut self, missed: Duration, now: Instant) {
        self.last_seen = now.min(self.last_seen + missed);
    }

    /// Whether this node has received a message from the member itself within [`UNREACHABLE_AFTER`].
    pub(super) fn is_alive(&self, now: Instant) -> bool {
        self.is_confirmed && self.silence(now) < UNREACHABLE_AFTER
    }

    /// Returns true once for each silence of [`UNREACHABLE_AFTER`] or longer.
    pub(super) fn take_silence_report(&mut self, now: Instant) -> bool {
        let is_news = !self.is_silence_reported && self.silence(now) >= UNREACHABLE_AFTER;
        self.is_silence_reported |= is_news;
        is_news
    }

    /// Returns the member if a heartbeat to it is due, and sets the time of the next one.
    pub(super) fn poll_heartbeat(&mut self, now: Instant) -> Option<Member> {
        if now < self.heartbeat_due {
            return None;
        }
        self.heartbeat_due = now + HEARTBEAT_INTERVAL;
        Some(self.member.clone())
    }

    pub(super) fn view(&self, now: Instant) -> MemberView {
        let silent = self.silence(now);
        let state = if silent < UNREACHABLE_AFTER { MemberState::Alive } else { MemberState::Unreachable };
        MemberView { member: self.member.clone(), state, silence: silent, is_self: false }
    }
}
