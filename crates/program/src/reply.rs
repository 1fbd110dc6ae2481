//! The replies that the daemon sends to programs.

use farfork_wire::{ChildId, SeedId};
use zerocopy::IntoBytes;

use crate::layout::{
    self, ChildReply, ENDED_EXIT, ENDED_LOST, ENDED_SIGNAL, EndedReply, FailedReply, Header, LIMIT_MEMORY,
    LIMIT_NODE_MEMORY, LIMIT_NONE, LIMIT_TIME, SeedReply, StartedReply, WelcomeReply, kind,
};

/// A message of the daemon.
#[derive(Debug, Clone, Copy)]
pub enum Reply<'a> {
    /// The daemon has registered the connection.
    Welcome {
        /// Name of the node.
        node: &'a str,
    },
    /// The program is the parent of this seed.
    Seed {
        /// The seed's id.
        seed: &'a str,
        /// How long the program was stopped, in microseconds.
        pause_us: u64,
        /// Duration of the whole prepare, in microseconds.
        prepare_us: u64,
    },
    /// The program is a child. Descriptors are sent with the message: the child's result file, then its payload and its end
    /// of the channel, if any.
    Child {
        /// The child's id.
        child: &'a ChildId,
        /// The child's seed.
        seed: &'a SeedId,
        /// The child's position among the children of its fork.
        index: u32,
        /// Whether the child has a payload.
        has_payload: bool,
    },
    /// A request failed, or a child did not start.
    Failed {
        /// The batch of the child; 0 if the reply is about no child.
        batch: u32,
        /// Index of the child in the batch; 0 if the reply is about no child.
        index: u32,
        /// A value of `google.rpc.Code`.
        code: u32,
        /// Object, cause and next step.
        text: &'a str,
    },
    /// A child runs. If the fork requested channels, a descriptor of the child's channel is sent with the message.
    Started {
        /// The batch of the child.
        batch: u32,
        /// Index of the child in the batch.
        index: u32,
        /// The child's id.
        child: &'a str,
    },
    /// A child has ended.
    Ended {
        /// The batch of the child.
        batch: u32,
        /// Index of the child in the batch.
        index: u32,
        /// How the child ended.
        end: ChildEnd<'a>,
        /// Whether a descriptor of the child's result is sent with the message.
        has_result: bool,
    },
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEnd<'a> {
    /// The child exited with this code.
    Exit(u32),
    /// A signal killed the child.
    Signal {
        /// The signal.
        signal: u32,
        /// The limit that the child exceeded, if it was killed for that.
        limit: Option<ExceededLimit>,
        /// The cause as a clause; may be empty.
        why: &'a str,
    },
    /// How the child ended is unknown. The text has the reason.
    Lost(&'a str),
}

/// The limit that a killed child exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededLimit {
    /// The child's time limit.
    Time,
    /// The child's memory limit.
    Memory,
    /// The memory of its node.
    NodeMemory,
}

impl Reply<'_> {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Self::Welcome { node } => {
                let header = Header::for_reply(kind::WELCOME);
                WelcomeReply { header, node: layout::encode_text(node) }.as_bytes().to_vec()
            }
            Self::Seed { seed, pause_us, prepare_us } => {
                let header = Header::for_reply(kind::SEED);
                SeedReply { header, pause_us, prepare_us, seed: layout::encode_text(seed) }.as_bytes().to_vec()
            }
            Self::Child { child, seed, index, has_payload } => ChildReply {
                header: Header::for_reply(kind::CHILD),
                index,
                has_payload: has_payload.into(),
                seed: layout::encode_text(&seed.to_string()),
                child: layout::encode_text(&child.to_string()),
            }
            .as_bytes()
            .to_vec(),
            Self::Failed { batch, index, code, text } => {
                let header = Header::for_reply(kind::FAILED);
                FailedReply { header, batch, index, code, reserved: 0, text: layout::encode_text(text) }
                    .as_bytes()
                    .to_vec()
            }
            Self::Started { batch, index, child } => {
                let header = Header::for_reply(kind::STARTED);
                StartedReply { header, batch, index, child: layout::encode_text(child) }.as_bytes().to_vec()
            }
            Self::Ended { batch, index, end, has_result } => {
                encode_ended(batch, index, end, has_result).as_bytes().to_vec()
            }
        }
    }
}

fn encode_ended(batch: u32, index: u32, end: ChildEnd<'_>, has_result: bool) -> EndedReply {
    let (how, value, text) = match end {
        ChildEnd::Exit(code) => (ENDED_EXIT, code, ""),
        ChildEnd::Signal { signal, why, .. } => (ENDED_SIGNAL, signal, why),
        ChildEnd::Lost(text) => (ENDED_LOST, 0, text),
    };
    let limit = match end {
        ChildEnd::Signal { limit: Some(ExceededLimit::Time), .. } => LIMIT_TIME,
        ChildEnd::Signal { limit: Some(ExceededLimit::Memory), .. } => LIMIT_MEMORY,
        ChildEnd::Signal { limit: Some(ExceededLimit::NodeMemory), .. } => LIMIT_NODE_MEMORY,
        _ => LIMIT_NONE,
    };
    let header = Header::for_reply(kind::ENDED);
    let has_result = has_result.into();
    EndedReply { header, batch, index, how, value, has_result, limit, text: layout::encode_text(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn each_reply_has_its_kind_and_length() {
        let child: ChildId = "n2.c00f3a96c5d217e84".parse().unwrap();
        let seed: SeedId = "n1.s00f3a96c5d217e84".parse().unwrap();
        let replies = [
            (Reply::Seed { seed: "s", pause_us: 1, prepare_us: 2 }, kind::SEED, size_of::<SeedReply>()),
            (
                Reply::Child { child: &child, seed: &seed, index: 1, has_payload: true },
                kind::CHILD,
                size_of::<ChildReply>(),
            ),
            (Reply::Failed { batch: 1, index: 2, code: 3, text: "x" }, kind::FAILED, size_of::<FailedReply>()),
            (Reply::Welcome { node: "n1" }, kind::WELCOME, size_of::<WelcomeReply>()),
            (Reply::Started { batch: 1, index: 2, child: "c" }, kind::STARTED, size_of::<StartedReply>()),
            (
                Reply::Ended { batch: 1, index: 2, end: ChildEnd::Lost("gone"), has_result: false },
                kind::ENDED,
                size_of::<EndedReply>(),
            ),
        ];
        for (reply, kind, bytes) in replies {
            let message = reply.encode();
            let (header, _) = Header::read_from_prefix(&message).unwrap();
            assert_eq!((header.magic, header.kind, message.len()), (layout::MAGIC, kind, bytes));
        }
    }
}
