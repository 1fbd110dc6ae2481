//! Tests of containers on this machine's kernel. They need root, and fail with a message without it.

mod lean_container;
mod pool;
mod probe;
mod root_reuse;
