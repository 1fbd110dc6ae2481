//! Decodes messages of the processes of a node as they do, for the fuzz targets (`fuzz/`).

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::channel::{read_message, write_message};
use super::control::{ControlAnswer, ControlRequest};
use super::message::{ClientMessage, OffloadMessage, PublishRequest, WorkerAnswer};

/// A kind of message: its sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// From a client to the offload process.
    Client,
    /// From the offload process to a client.
    Offload,
    /// From the offload process to the worker.
    Publish,
    /// From the worker to the offload process.
    Worker,
    /// From `farfork volume` to the offload process.
    Control,
    /// From the offload process to `farfork volume`.
    ControlAnswer,
}

impl MessageKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Client, Self::Offload, Self::Publish, Self::Worker, Self::Control, Self::ControlAnswer];
}

/// Reads messages until the input ends, or one is refused. Returns their number.
///
/// # Panics
/// If a message does not encode to bytes that decode to it.
pub fn read_messages(kind: MessageKind, bytes: &[u8]) -> usize {
    match kind {
        MessageKind::Client => read_all::<ClientMessage>(bytes),
        MessageKind::Offload => read_all::<OffloadMessage>(bytes),
        MessageKind::Publish => read_all::<PublishRequest>(bytes),
        MessageKind::Worker => read_all::<WorkerAnswer>(bytes),
        MessageKind::Control => read_all::<ControlRequest>(bytes),
        MessageKind::ControlAnswer => read_all::<ControlAnswer>(bytes),
    }
}

fn read_all<T: Serialize + DeserializeOwned + PartialEq + Debug>(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(message) = read_message::<T>(&mut bytes) {
        let mut encoded = Vec::new();
        write_message(&mut encoded, &message).expect("a received message can be sent");
        assert_eq!(read_message::<T>(&mut encoded.as_slice()).ok().as_ref(), Some(&message));
        count += 1;
    }
    count
}
