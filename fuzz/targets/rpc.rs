//! Frames of the RPC, as both sides read them: no bytes panic, and an accepted request encodes to the same bytes.
#![no_main]

use farfork_fuzz::calls::{Speaker, append_frame};
use farfork_wire::rpc::{ClientFrame, FrameHead, HELLO_BYTES, ServerFrame, VersionRange};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = bytes.first_chunk::<HELLO_BYTES>() {
        let _ = VersionRange::decode(hello);
    }
    let _ = ClientFrame::decode(bytes);
    let _ = ServerFrame::decode(bytes);
    let Some((kind, piece)) = bytes.split_first() else { return };
    let mut request = Vec::new();
    append_frame(&mut request, Speaker::Client, *kind, piece);
    if let Ok(Some(frame)) = ClientFrame::decode(&request) {
        assert_eq!(frame.head_bytes + frame.payload_bytes, request.len());
        let mut again = vec![0; frame.head_bytes];
        match frame.head {
            ClientFrame::Request(head) => {
                again.extend_from_slice(&request[frame.head_bytes..]);
                head.seal(&mut again, None);
            }
            other => {
                again.clear();
                other.append(&mut again);
            }
        }
        assert!(again == request || !matches!(frame.head, ClientFrame::Request(_)), "a request has two forms");
    }
    let mut answered = Vec::new();
    append_frame(&mut answered, Speaker::Server, *kind, piece);
    if let Ok(Some(frame)) = ServerFrame::decode(&answered) {
        assert_eq!(frame.head_bytes + frame.payload_bytes, answered.len());
    }
});
