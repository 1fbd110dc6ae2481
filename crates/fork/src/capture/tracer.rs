//! The thread that traces: ptrace(2) ties a process to one thread, which captures it, waits for it, and owns its template.

pub(super) mod beside;
pub(super) mod deadline;
pub(super) mod owner;
pub(super) mod post;
pub(super) mod ready;
pub(super) mod turn;
