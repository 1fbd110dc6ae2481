//! Requests of programs to the daemon: no bytes panic.
#![no_main]

use farfork_program::Request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Request::decode(bytes);
});
