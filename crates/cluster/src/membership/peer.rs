//! One other member: when it was heard of, when it is to hear of us.

use std::time::{Duration, Instant};

use super::{Event, HEARTBEAT_INTERVAL, JoinError, Member, State, UNREACHABLE_AFTER, View};

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) member: Member,
    /// Whether it has spoken itself; else somebody named it.
    has_spoken: bool,
    /// When it last spoke, or was named.
    heard_at: Instant,
    /// Whether its silence was reported.
    is_reported: bool,
    heartbeat_due: Instant,
}

impl Peer {
    /// A member that spoke for the first time.
    pub(super) fn heard(member: Member, now: Instant) -> Self {
        Self { member, has_spoken: true, heard_at: now, is_reported: false, heartbeat_due: now }
    }

    /// A member that another one named.
    pub(super) fn introduced(member: Member, now: Instant) -> Self {
        Self { has_spoken: false, ..Self::heard(member, now) }
    }

    /// It has spoken. A run at another address may take the name only once this one is silent.
    pub(super) fn hear(&mut self, member: Member, now: Instant) -> Result<Option<Event>, JoinError> {
        let is_another_run = member.incarnation != self.member.incarnation;
        if is_another_run && member.address != self.member.address && self.is_heard(now) {
            return Err(JoinError::NameTaken { address: self.member.address });
        }
        let name = member.name.clone();
        let event = match (self.has_spoken, is_another_run, self.silent(now) >= UNREACHABLE_AFTER) {
            (false, ..) => Some(Event::Joined(name)),
            (true, true, _) => Some(Event::Restarted(name)),
            (true, false, true) => Some(Event::Returned(name)),
            (true, false, false) => None,
        };
        let heartbeat_due = self.heartbeat_due;
        *self = Self { heartbeat_due, ..Self::heard(member, now) };
        Ok(event)
    }

    /// Since when it has said nothing.
    pub(super) fn silent(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard_at)
    }

    /// Time in which nobody would have heard it is no silence of its.
    pub(super) fn forgive(&mut self, missed: Duration, now: Instant) {
        self.heard_at = now.min(self.heard_at + missed);
    }

    /// Whether this node itself hears from it.
    pub(super) fn is_heard(&self, now: Instant) -> bool {
        self.has_spoken && self.silent(now) < UNREACHABLE_AFTER
    }

    /// True once for each silence.
    pub(super) fn fell_silent(&mut self, now: Instant) -> bool {
        let is_news = !self.is_reported && self.silent(now) >= UNREACHABLE_AFTER;
        self.is_reported |= is_news;
        is_news
    }

    /// The member, when a heartbeat to it is due.
    pub(super) fn take_heartbeat(&mut self, now: Instant) -> Option<Member> {
        if now < self.heartbeat_due {
            return None;
        }
        self.heartbeat_due = now + HEARTBEAT_INTERVAL;
        Some(self.member.clone())
    }

    pub(super) fn view(&self, now: Instant) -> View {
        let silent = self.silent(now);
        let state = if silent < UNREACHABLE_AFTER { State::Alive } else { State::Unreachable };
        View { member: self.member.clone(), state, silent, is_self: false }
    }
}
