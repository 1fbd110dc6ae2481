//! Frames of the RPC, as both sides read them: no bytes panic, and what is understood is what would have been sent.
#![no_main]

use farfork_wire::rpc::{Answer, Ask, HELLO_BYTES, Message, Versions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = bytes.first_chunk::<HELLO_BYTES>() {
        let _ = Versions::decode(hello);
    }
    let _ = Ask::decode(bytes);
    let _ = Answer::decode(bytes);
});
