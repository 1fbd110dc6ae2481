//! Build script: compiles the API's proto files in pure Rust, so that no `protoc` is needed.

use std::error::Error;
use std::path::Path;

const FILES: [&str; 4] =
    ["farfork/v1/types.proto", "farfork/v1/node.proto", "farfork/v1/peer.proto", "farfork/v1/cluster.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let descriptors = protox::compile(FILES, [root])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
