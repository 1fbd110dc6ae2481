//! What the fuzz targets share: streams that are valid where a fuzzer could not make them so, and a world to send them
//! through.
#![forbid(unsafe_code)]

pub mod script;
pub mod stage;
