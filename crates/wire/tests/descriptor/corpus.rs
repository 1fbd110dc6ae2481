//! Seed inputs of the fuzz targets that read descriptors. A format change invalidates all earlier inputs, and a fuzzer
//! finds no valid one by chance.

use std::fs;
use std::path::Path;

use farfork_wire::descriptor::{Descriptor, decode, encode};

use super::{descriptor, shares_memory};

/// Size of the header before the body, in bytes. A target adds the header itself.
const HEADER_BYTES: usize = 24;

/// Size of the stub's report that the target `restore` reads before the body.
const REPORT_BYTES: usize = 72;

/// The environment variable that makes the test write the inputs instead of comparing them, after a change of the format.
const RENEW: &str = "FARFORK_RENEW_CORPUS";

#[test]
fn fuzz_targets_begin_with_valid_descriptors() {
    let mut tree = descriptor();
    shares_memory(&mut tree);
    for (name, descriptor) in [("process", descriptor()), ("tree", tree)] {
        assert_eq!(decode(&encode(&descriptor).unwrap()).unwrap(), descriptor, "{name} is valid");
        for (target, bytes_before) in [("descriptor", 0), ("restore", REPORT_BYTES)] {
            check(&format!("{target}/{name}"), &input(&descriptor, bytes_before));
        }
    }
}

fn input(descriptor: &Descriptor, bytes_before: usize) -> Vec<u8> {
    [&vec![0; bytes_before], &encode(descriptor).unwrap()[HEADER_BYTES..]].concat()
}

fn check(name: &str, wanted: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    if std::env::var_os(RENEW).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read(&path).unwrap_or_default();
    assert!(found == wanted, "fuzz/corpus/{name} has another format: run this test once with {RENEW}=1");
}
