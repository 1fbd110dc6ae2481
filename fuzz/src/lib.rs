//! Code that the fuzz targets share: streams with valid checksums (`script`, `calls`), a simulated world to send them
//! through (`stage`), and a member of a cluster (`member`).
#![forbid(unsafe_code)]

pub mod calls;
pub mod member;
pub mod script;
pub mod stage;
