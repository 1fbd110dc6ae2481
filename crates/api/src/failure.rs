//! A failed request as its user sees it: the object, the cause, and the next step. The details of a gRPC status contain the
//! failure, so that the client prints the same text whichever node failed.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;

use prost::Message as _;
use tonic::{Code, Status};

use crate::limits::CONNECT_TIMEOUT;
use crate::v1;

/// The cause, with the code `Cancelled`, of each child whose start had not begun when the caller stopped the fork.
pub const NEVER_STARTED_CAUSE: &str = "it was never started: the fork was stopped";

/// Largest size of each part of a failure in a gRPC status, in bytes; longer parts are cut. HTTP/2 carries a status in
/// headers. A client accepts 16 KiB of headers, and base64 makes the details a third longer. A failure in the body of a
/// response (`v1::Error`) is not cut.
const OBJECT_BYTES_MAX: usize = 256;
const CAUSE_BYTES_MAX: usize = 5 << 10;
const NEXT_STEP_BYTES_MAX: usize = 1 << 10;

/// Largest status message, in bytes. It is for clients that do not decode the details. Percent-encoding in a header can
/// triple the message.
const MESSAGE_BYTES_MAX: usize = 512;

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    object: String,
    cause: String,
    next_step: String,
}

impl Failure {
    /// The failure of a request about `object`. `cause` is a lower-case clause.
    pub fn new(code: Code, object: impl Display, cause: impl Display) -> Self {
        let (object, cause) = (object.to_string(), cause.to_string());
        Self { code, object, cause, next_step: String::new() }
    }

    /// Adds what the user can do about the failure.
    #[must_use]
    pub fn with_next_step(mut self, step: impl Display) -> Self {
        self.next_step = step.to_string();
        self
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The object that the request concerned.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Why the request failed.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The next step for the user; may be empty.
    pub fn next_step(&self) -> &str {
        &self.next_step
    }

    /// Reads a status that answers a request about `object`. A status without details of this API is from the transport or
    /// the gRPC library: for example, the connection broke or a deadline passed.
    pub fn from_status(object: impl Display, status: &Status) -> Self {
        match v1::Error::decode(status.details()) {
            Ok(error) if !error.cause.is_empty() => error.into(),
            _ => Self::from_transport(object, status),
        }
    }

    fn from_transport(object: impl Display, status: &Status) -> Self {
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => {
                Self::new(Code::DeadlineExceeded, object, "it did not answer in time")
                    .with_next_step("see `farfork nodes`, and the node's log")
            }
            Code::Unavailable | Code::Unknown if status.source().is_some_and(is_connect_timeout) => {
                Self::new(Code::Unavailable, object, connect_timeout_cause()).with_next_step(CONNECT_TIMEOUT_STEP)
            }
            Code::Unavailable => {
                let step = if is_connection_refused(status) { RESTART_STEP } else { CHECK_STEP };
                Self::new(Code::Unavailable, object, format!("no connection ({})", transport_cause(status)))
                    .with_next_step(step)
            }
            // Only a status of the transport has a source. The connection broke while the answer was awaited.
            Code::Unknown | Code::Internal if status.source().is_some() => {
                let cause = format!("the connection closed before the answer ({})", transport_cause(status));
                Self::new(Code::Unavailable, object, cause)
                    .with_next_step("check that its daemon runs: `farfork nodes`; then repeat the command")
            }
            code => Self::new(code, object, transport_cause(status)),
        }
    }
}

/// The next step for a user when a node has no daemon.
const RESTART_STEP: &str =
    "its daemon does not run: start it again, with `farfork up --restart` for a cluster on one machine";

/// The next step for a user when there is no connection for another reason.
const CHECK_STEP: &str = "check that its daemon runs: `farfork nodes`";

/// The next step for a user when no connection is accepted in time.
pub const CONNECT_TIMEOUT_STEP: &str =
    "check that its daemon runs and is not stopped (SIGSTOP), and that the network reaches it: `farfork nodes`";

/// Whether the time limit on connecting expired. The transport's own text names neither the limit nor the object.
pub fn is_connect_timeout(error: &(dyn Error + 'static)) -> bool {
    innermost_error(error).to_string() == "deadline has elapsed"
}

/// Whether no process listened at the address. The request has then reached no daemon.
pub fn is_connection_refused(status: &Status) -> bool {
    let innermost = status.source().and_then(|error| innermost_error(error).downcast_ref::<io::Error>());
    innermost.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The cause to report for a connect timeout.
pub fn connect_timeout_cause() -> String {
    format!(
        "no connection within {} s: its daemon does not accept it, or the network drops packets",
        CONNECT_TIMEOUT.as_secs()
    )
}

/// The innermost error of the transport; the status message if there is no such error.
fn transport_cause(status: &Status) -> String {
    status.source().map_or_else(|| status.message().to_owned(), |error| innermost_error(error).to_string())
}

/// Returns the innermost error, which alone names the cause (such as `Connection refused`).
pub fn innermost_error<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
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
        let failure = failure.truncated_for_header();
        let (code, message) = (failure.code, truncate_text(failure.to_string(), MESSAGE_BYTES_MAX));
        let details = v1::Error::from(failure).encode_to_vec();
        Status::with_details(code, message, details.into())
    }
}

impl Failure {
    /// Cuts parts that are too long. This node's log then has the whole text.
    fn truncated_for_header(self) -> Self {
        let fits = self.object.len() <= OBJECT_BYTES_MAX
            && self.cause.len() <= CAUSE_BYTES_MAX
            && self.next_step.len() <= NEXT_STEP_BYTES_MAX;
        if fits {
            return self;
        }
        tracing::warn!(failure = %self, "cut a failure that is too long for a status");
        let Self { code, object, cause, next_step } = self;
        let is_cause_cut = cause.len() > CAUSE_BYTES_MAX;
        let [object, cause, mut next_step] =
            [(object, OBJECT_BYTES_MAX), (cause, CAUSE_BYTES_MAX), (next_step, NEXT_STEP_BYTES_MAX)]
                .map(|(text, bytes_max)| truncate_text(text, bytes_max));
        if is_cause_cut {
            let separator = if next_step.is_empty() { "" } else { "; " };
            next_step = format!("{next_step}{separator}the log of the answering node has the whole text");
        }
        Self { code, object, cause, next_step }
    }
}

/// Cuts a text that is too long, and appends the number of missing bytes.
fn truncate_text(mut text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    let whole = text.len();
    text.truncate(text.floor_char_boundary(bytes_max));
    format!("{text} … ({} bytes more)", whole - text.len())
}

#[cfg(test)]
mod tests {
    use super::Failure;
    use tonic::{Code, Status};

    #[test]
    fn a_failure_is_the_same_after_conversion_to_a_status() {
        let failure =
            Failure::new(Code::NotFound, "seed x", "there is none").with_next_step("list them with `farfork seeds`");
        let status = Status::from(failure.clone());
        assert_eq!(status.message(), "seed x: there is none; list them with `farfork seeds`");
        assert_eq!(Failure::from_status("ignored", &status), failure);
    }

    #[tokio::test]
    async fn a_connect_timeout_names_node_and_limit() {
        let elapsed = tokio::time::timeout(std::time::Duration::ZERO, std::future::pending::<()>()).await.unwrap_err();
        let status = Status::from_error(Box::new(std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)));
        let failure = Failure::from_status("node `b`", &status);
        assert_eq!(failure.object(), "node `b`");
        assert!(failure.cause().contains("no connection within 3 s"), "{failure}");
        assert!(failure.next_step().contains("farfork nodes"), "{failure}");
    }

    #[test]
    fn a_refused_connection_is_recognized() {
        let of = |kind| Status::from_error(Box::new(std::io::Error::from(kind)));
        assert!(super::is_connection_refused(&of(std::io::ErrorKind::ConnectionRefused)));
        assert!(!super::is_connection_refused(&of(std::io::ErrorKind::ConnectionReset)));
        assert!(!super::is_connection_refused(&Status::unavailable("connection refused")));
    }

    #[test]
    fn long_failures_are_shortened_to_fit_a_header() {
        let long = "å".repeat(100_000);
        let failure = Failure::new(Code::InvalidArgument, &long, &long).with_next_step(&long);
        let status = Status::from(failure);
        // Encoded sizes: up to three bytes per byte of the message, and four per three bytes of the details.
        assert!(3 * status.message().len() + status.details().len() * 4 / 3 < 12 << 10);
        let decoded = Failure::from_status("ignored", &status);
        assert!(decoded.object().starts_with("åå") && decoded.object().contains("bytes more"), "{}", decoded.object());
        assert!(decoded.next_step().contains("log"), "{}", decoded.next_step());
        let exact = Failure::new(Code::Internal, "x", "c".repeat(super::CAUSE_BYTES_MAX));
        assert_eq!(Failure::from_status("ignored", &Status::from(exact.clone())), exact);
    }

    #[test]
    fn a_transport_error_names_its_object() {
        let failure = Failure::from_status("node b", &Status::unavailable("connection refused"));
        assert_eq!((failure.object(), failure.code()), ("node b", Code::Unavailable));
    }
}
