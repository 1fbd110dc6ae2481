//! Shared code of the fuzz targets: streams that a fuzzer could not make valid (`script`, `calls`), a simulated world
//! to send them through (`stage`), and a member of a cluster (`member`).
#![forbid(unsafe_code)]

pub mod calls;
pub mod member;
pub mod script;
pub mod stage;
