//! Captures of real processes: small C programs, compiled here, that report disturbances.
//!
//! Needs root and gcc.

mod contents;
mod disturbance;
mod ended_within;
mod flags;
mod harness;
mod images;
mod killed;
mod offers;
mod pause;
mod refusals;
mod stubborn;
