//! The tracer thread: ptrace(2) ties a process to one thread, which captures it, waits for it, and owns its template.

pub(super) mod cpu_pin;
pub(super) mod deadline;
pub(super) mod executor;
pub(super) mod owner_thread;
pub(super) mod thread_pool;
pub(super) mod trace_lock;
