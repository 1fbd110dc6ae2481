//! Captures of real processes: small C programs, compiled here, that report disturbances.
//!
//! Needs root and gcc.

mod contents;
mod disturbance;
mod flags;
mod harness;
mod images;
mod killed;
mod killed_within_calls;
mod offers;
mod parent_states;
mod pause;
mod refusals;
