//! Frames of the fabric: no bytes panic, and an accepted frame encodes to the same bytes.
#![no_main]

use farfork_wire::frame::change::{Change, append_introduce, append_message, append_write};
use farfork_wire::frame::reply::{
    Reply, append_arrived, append_granted, append_refused, append_written, data_frame_bytes, seal_data,
};
use farfork_wire::frame::request::{Request, append_ask_grants, append_open, append_read};
use farfork_wire::frame::{HEADER_BYTES, HELLO_BYTES, Header, decode_hello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = bytes.first_chunk::<HELLO_BYTES>() {
        let _ = decode_hello(hello);
    }
    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        let _ = Header::decode(header);
    }
    let Some((kind, piece)) = bytes.split_first() else { return };
    let mut frame = Vec::new();
    farfork_fuzz::script::append_frame(&mut frame, *kind, piece);
    let Ok(header) = Header::decode(frame.first_chunk().expect("a frame has a header")) else { return };
    let body = &frame[HEADER_BYTES..];
    header.check_body(body).expect("the checksum was made from it");
    let again = if header.kind.is_change() {
        Change::decode(&header, body).ok().map(|change| encode_change(header.id, &change))
    } else if header.kind.is_request() {
        Request::decode(&header, body).ok().map(|request| encode_request(header.id, &request))
    } else {
        Reply::decode(&header, body).ok().map(|reply| encode_reply(header.id, &reply))
    };
    if let Some(again) = again {
        assert_eq!(again[HEADER_BYTES..], *body, "{:?} has two forms", header.kind);
    }
});

fn encode_request(id: u64, request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    match request {
        Request::Open { handle, seed, token } => append_open(&mut out, *handle, seed, token),
        Request::Read { handle, mode, spans } => append_read(&mut out, id, *handle, *mode, spans),
        Request::AskGrants { handle } => append_ask_grants(&mut out, id, *handle),
    }
    out
}

fn encode_change(id: u64, change: &Change<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match change {
        Change::Introduce { connection, sent_below } => append_introduce(&mut out, *connection, *sent_below),
        Change::Write { handle, spans, data } => append_write(&mut out, id, *handle, spans, data),
        Change::Message { bytes } => append_message(&mut out, id, bytes),
    }
    out
}

fn encode_reply(id: u64, reply: &Reply<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match reply {
        Reply::Data { data, extent_bytes } => {
            out.resize(data_frame_bytes(data.len()), 0);
            out[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
            seal_data(&mut out, id, *extent_bytes);
        }
        Reply::Refused(refusal) => append_refused(&mut out, id, *refusal),
        Reply::Granted(grants) => append_granted(&mut out, id, grants),
        Reply::Written => append_written(&mut out, id),
        Reply::Arrived => append_arrived(&mut out, id),
    }
    out
}
