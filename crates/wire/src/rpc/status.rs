//! The outcomes of requests and of session openings, as numbers.

/// The outcome of a request at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum Status {
    /// The handler answered; the payload is its answer.
    #[error("it was answered")]
    Answered = 0,
    /// The handler refused; the payload is its reason.
    #[error("the handler refused")]
    Failed = 1,
    /// The server has no handler with this id. Nothing ran.
    #[error("the server has no such handler")]
    NoHandler = 2,
    /// The deadline passed before the handler began. Nothing ran.
    #[error("the deadline passed before the server could begin")]
    DeadlineExceeded = 3,
    /// The client cancelled the request while it ran.
    #[error("it was cancelled while it ran")]
    Cancelled = 4,
    /// Too many requests are running, or unacknowledged replies use too much memory. Nothing ran.
    #[error(
        "the server has too many unfinished requests, or unacknowledged replies, of this connection; try again later"
    )]
    Overloaded = 5,
    /// The request was executed, but its reply was too large to be kept for long. It is not executed again.
    #[error("it was executed, but the server did not keep the reply")]
    ReplyEvicted = 6,
    /// The handler deferred its reply, then dropped the request without a reply.
    #[error("the handler dropped it without an answer")]
    Abandoned = 7,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Answered,
        Self::Failed,
        Self::NoHandler,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Overloaded,
        Self::ReplyEvicted,
        Self::Abandoned,
    ];

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

/// The outcome of an OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum OpenOutcome {
    /// Requests may be sent.
    #[error("it is open")]
    Opened = 0,
    /// The client wanted to resume the session, but the server does not have it, or no longer has it.
    #[error("the server does not have the session")]
    Expired = 1,
    /// A later connection has resumed the session.
    #[error("a later connection has resumed the session")]
    Superseded = 2,
    /// The client wanted a new session, but the server has one with this id.
    #[error("the server has a session of this id already")]
    IdInUse = 3,
    /// The server has its maximum number of sessions.
    #[error("the server has too many sessions")]
    TooManySessions = 4,
}

impl OpenOutcome {
    const ALL: [Self; 5] = [Self::Opened, Self::Expired, Self::Superseded, Self::IdInUse, Self::TooManySessions];

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}
