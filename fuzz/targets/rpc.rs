//! Frames of the RPC, as both sides read them: no bytes panic, and what is understood is what would have been sent.
#![no_main]

use farfork_fuzz::calls::{Speaker, append_frame};
use farfork_wire::rpc::{Answer, Ask, HELLO_BYTES, Message, Versions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = bytes.first_chunk::<HELLO_BYTES>() {
        let _ = Versions::decode(hello);
    }
    let _ = Ask::decode(bytes);
    let _ = Answer::decode(bytes);
    let Some((kind, piece)) = bytes.split_first() else { return };
    let mut asked = Vec::new();
    append_frame(&mut asked, Speaker::Client, *kind, piece);
    if let Ok(Some(frame)) = Ask::decode(&asked) {
        assert_eq!(frame.head_bytes + frame.payload_bytes, asked.len());
        let mut again = vec![0; frame.head_bytes];
        match frame.message {
            Ask::Request(head) => {
                again.extend_from_slice(&asked[frame.head_bytes..]);
                head.seal(&mut again, None);
            }
            other => {
                again.clear();
                other.append(&mut again);
            }
        }
        assert!(again == asked || !matches!(frame.message, Ask::Request(_)), "a request has two forms");
    }
    let mut answered = Vec::new();
    append_frame(&mut answered, Speaker::Server, *kind, piece);
    if let Ok(Some(frame)) = Answer::decode(&answered) {
        assert_eq!(frame.head_bytes + frame.payload_bytes, answered.len());
    }
});
