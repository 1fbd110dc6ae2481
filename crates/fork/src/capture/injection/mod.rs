//! System calls on a process's behalf: made by its own threads while they stand still, and the way back for them should we die.
//!
//! ```text
//!  rescue ─▶ lifeline: pages of ours in the process ─▶ script: many calls in one go ─▶ answers
//!                                                      inject: one call, or a script, made by a thread that stands
//!                                                      ask: what a capture has it ask for
//! ```

pub(super) mod injector;
pub(super) mod pages;
pub(super) mod script;
pub(super) mod sigreturn_frame;
pub(super) mod thread_queries;
