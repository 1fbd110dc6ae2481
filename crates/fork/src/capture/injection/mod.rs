//! System calls that a process's own stopped threads make for the tracer, and their recovery if the tracer dies.
//!
//! `sigreturn_frame` protects the calls that map and unmap the tracer's pages. `pages` holds a script and a frame
//! for each thread. `script` encodes many calls as one run. `injector` runs one call, or a script, in a stopped thread.
//! `thread_queries` lists the calls that all threads make in a pause. `script_runner` runs scripts of one thread.

pub(super) mod injector;
pub(super) mod pages;
pub(super) mod script;
pub(super) mod script_runner;
pub(super) mod sigreturn_frame;
pub(super) mod thread_queries;
