//! Containers on this machine's kernel. The tests need root, and say so where they don't have it.

mod lean_container;
mod pool;
mod probe;
mod root_reuse;
