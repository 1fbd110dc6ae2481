//! What the fuzz targets share: streams that are valid where a fuzzer could not make them so, a world to send them
//! through, and a member of a cluster.
#![forbid(unsafe_code)]

pub mod calls;
pub mod member;
pub mod script;
pub mod stage;
