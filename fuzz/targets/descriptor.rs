//! Descriptors, which a node reads from the owner of a seed: no bytes panic, and an accepted descriptor encodes and decodes
//! unchanged.
#![no_main]

use farfork_fuzz::script;
use farfork_wire::descriptor::{DecodeError, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = decode(input);
    match decode(&script::descriptor(input)) {
        Ok(descriptor) => {
            let again = encode(&descriptor).expect("it is as small as the input");
            assert_eq!(decode(&again).expect("what was encoded is decoded"), descriptor);
        }
        Err(DecodeError::Version { found }) => panic!("the script writes version {found} of the descriptor"),
        Err(_) => {}
    }
});
