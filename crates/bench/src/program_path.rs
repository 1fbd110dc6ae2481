//! Finds the program `farfork`, whose nodes and commands the benchmarks measure: it is next to `farfork-bench`.

use std::env;
use std::path::PathBuf;

use anyhow::Context as _;
use farfork_api::failure::Failure;
use tonic::Code;

/// The path of `farfork`.
///
/// # Errors
/// It does not exist.
pub(crate) fn farfork() -> anyhow::Result<PathBuf> {
    let path = env::current_exe().context("readlink of /proc/self/exe")?.with_file_name("farfork");
    if path.exists() {
        return Ok(path);
    }
    let cause = format!("there is no {}, which the benchmarks measure", path.display());
    let failure = Failure::new(Code::NotFound, "program farfork", cause);
    Err(failure
        .with_next_step("build it with `cargo build --release --bin farfork`, or install it with `make install`")
        .into())
}
