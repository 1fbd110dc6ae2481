//! The copier of one log as state machines without I/O. `handle_*` reports an event, `poll_*` returns what to do next, and time
//! is an argument. `process/offload/log_copier` executes the actions with threads, files and connections; `simulation` executes
//! them on a virtual clock.

//                      handle_append                  handle_opened, handle_written, handle_stored, handle_failure
//   predecessor ────────────▶ CopierLog ◀──────────────────────────────┐
//        ▲                 ▲      │  ▲ handle_records                  │
//        │    take_replies │      │  └──── LogValidator                │
//        └─────────────────┘      └───────────────────────▶ LogForwarder ──▶ successor
//                                        poll_task                poll_action

mod copier_log;
mod forwarder;
mod later_space;
mod piece;
mod replica_progress;
mod send_action;
mod successor_health;
mod validator;

pub use copier_log::{CopierLog, DueReplies, LogAnnouncement, ReplyTime};
pub use forwarder::{ForwardTask, LogForwarder, StartedTask};
pub use later_space::LaterSpace;
pub(super) use piece::{INLINE_BYTES_MAX, WRITE_BYTES};
pub use piece::{PieceAnnouncement, RecordBounds, TransferError};
pub use replica_progress::ReplicaRate;
pub use send_action::{SendAction, SendFailure};
pub use validator::{LogClient, LogSource, LogValidator, ReadResult, ReadTask};

use std::time::Instant;

/// Whether work is due. Otherwise, `wake_at` becomes at most its time.
fn is_due(at: Instant, now: Instant, wake_at: &mut Instant) -> bool {
    *wake_at = (*wake_at).min(at.max(now));
    at <= now
}
