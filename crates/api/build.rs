//! Build script: compiles the API's proto files in pure Rust, so that no `protoc` is needed.

use std::env;
use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 5] = [
    "farfork/v1/types.proto",
    "farfork/v1/volumes.proto",
    "farfork/v1/node.proto",
    "farfork/v1/peer.proto",
    "farfork/v1/cluster.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    // Read at run time: work trees that share a target directory share this program, too.
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let descriptors = protox::compile(FILES, [root])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
