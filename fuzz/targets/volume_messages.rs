//! Messages between the processes of a volume on one node, and commands of `farfork volume`, as a process receives them from a
//! socket. No bytes panic, and an accepted message encodes to bytes that decode to it.
#![no_main]

use farfork_volume::process::decoders::{MessageKind, read_messages};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let kinds = MessageKind::ALL;
    read_messages(kinds[usize::from(*kind) % kinds.len()], bytes);
});
