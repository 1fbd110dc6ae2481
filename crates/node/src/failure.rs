//! What a user is told when a request fails: which object, why, and what to do. It crosses the network in the details
//! of a gRPC status, so that the client prints the same words on whichever node the failure arose.

use std::error::Error;
use std::fmt::{self, Display};

use prost::Message as _;
use tonic::{Code, Status};

use crate::api::v1;

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    object: String,
    cause: String,
    next_step: String,
}

impl Failure {
    /// `object` could not be dealt with because of `cause`, a lower-case clause.
    pub fn new(code: Code, object: impl Display, cause: impl Display) -> Self {
        let (object, cause) = (object.to_string(), cause.to_string());
        Self { code, object, cause, next_step: String::new() }
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn with_next_step(mut self, step: impl Display) -> Self {
        self.next_step = step.to_string();
        self
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What it happened to.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// What went wrong.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// What the user can do about it; may be empty.
    pub fn next_step(&self) -> &str {
        &self.next_step
    }

    /// Reads what the other side said about `object`. A status without our details comes from the transport: the
    /// connection broke, or a deadline passed.
    pub fn from_status(object: impl Display, status: &Status) -> Self {
        match v1::Error::decode(status.details()) {
            Ok(error) if !error.cause.is_empty() => error.into(),
            _ => Self::from_transport(object, status),
        }
    }

    fn from_transport(object: impl Display, status: &Status) -> Self {
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => {
                Self::new(Code::DeadlineExceeded, object, "no answer came in time")
                    .with_next_step("see `farfork nodes`, and the node's log")
            }
            Code::Unavailable => Self::new(Code::Unavailable, object, format!("no connection ({})", said(status)))
                .with_next_step("see whether its daemon runs: `farfork nodes`"),
            code => Self::new(code, object, said(status)),
        }
    }
}

/// What the transport met, where it tells.
fn said(status: &Status) -> String {
    status.source().map_or_else(|| status.message().to_owned(), |error| innermost(error).to_string())
}

/// The innermost error, which alone says what happened (`Connection refused`).
pub(crate) fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.cause)?;
        if self.next_step.is_empty() { Ok(()) } else { write!(f, "; {}", self.next_step) }
    }
}

impl Error for Failure {}

impl From<Failure> for v1::Error {
    fn from(failure: Failure) -> Self {
        let Failure { code, object, cause, next_step } = failure;
        Self { object, cause, next_step, code: code as u32 }
    }
}

impl From<v1::Error> for Failure {
    fn from(error: v1::Error) -> Self {
        let v1::Error { object, cause, next_step, code } = error;
        let code = Code::from_i32(i32::try_from(code).unwrap_or(Code::Unknown as i32));
        Self { code, object, cause, next_step }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let (code, message) = (failure.code, failure.to_string());
        let details = v1::Error::from(failure).encode_to_vec();
        Status::with_details(code, message, details.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;
    use tonic::{Code, Status};

    #[test]
    fn a_failure_survives_the_way_through_a_status() {
        let failure =
            Failure::new(Code::NotFound, "seed x", "there is none").with_next_step("list them with `farfork seeds`");
        let status = Status::from(failure.clone());
        assert_eq!(status.message(), "seed x: there is none; list them with `farfork seeds`");
        assert_eq!(Failure::from_status("ignored", &status), failure);
    }

    #[test]
    fn a_transport_error_names_the_object_it_was_about() {
        let failure = Failure::from_status("node b", &Status::unavailable("connection refused"));
        assert_eq!((failure.object(), failure.code()), ("node b", Code::Unavailable));
    }
}
