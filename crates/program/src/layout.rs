//! The structures of the messages between a program and the daemon. `include/farfork_protocol.h` documents each field.
//! The test in `tests/layout.rs` compares them with that header and with the Python package.

use std::ops::Range;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The layout of a structure, for tests.
#[derive(Debug)]
pub struct StructLayout {
    /// The structure's name in C, without the prefix `farfork_`.
    pub name: &'static str,
    /// The structure's size, in bytes.
    pub bytes: usize,
    /// Name, offset and size of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

macro_rules! structures {
    ($($(#[$doc:meta])* $c_name:literal $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[expect(missing_docs, reason = "the C header explains the fields")]
            pub struct $name { $(pub $field: $type,)* }
        )*

        /// The layouts of all structures.
        pub const LAYOUTS: &[StructLayout] = &[$(
            StructLayout {
                name: $c_name,
                bytes: size_of::<$name>(),
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)*],
            },
        )*];
    };
}

/// `FARFORK_MAGIC`.
pub const MAGIC: u32 = 0x4d47_5046;
/// `FARFORK_PROTOCOL_VERSION`.
pub const VERSION: u16 = 1;
/// `FARFORK_ID_BYTES`.
pub const ID_BYTES: usize = 96;
/// `FARFORK_NAME_BYTES`.
pub const NAME_BYTES: usize = 64;
/// `FARFORK_NODES_BYTES`.
pub const NODES_BYTES: usize = 4096;
/// `FARFORK_PAGES_MAGIC`.
pub const PAGES_MAGIC: u64 = 0x5345_4741_5046_4646;
/// `FARFORK_STRATEGY_BYTES`.
pub const STRATEGY_BYTES: usize = 32;
/// `FARFORK_EGRESS_BYTES`.
pub const EGRESS_BYTES: usize = 1024;
/// `FARFORK_TEXT_BYTES`.
pub const TEXT_BYTES: usize = 2048;

/// `enum farfork_kind`.
#[expect(missing_docs, reason = "the C header explains them")]
pub mod kind {
    pub const CHECKPOINT: u16 = 1;
    pub const FORK: u16 = 2;
    pub const KILL: u16 = 3;
    pub const DROP: u16 = 4;
    pub const HELLO: u16 = 5;
    pub const SEED: u16 = 16;
    pub const CHILD: u16 = 17;
    pub const FAILED: u16 = 18;
    pub const STARTED: u16 = 19;
    pub const ENDED: u16 = 20;
    pub const WELCOME: u16 = 21;
}

/// `FARFORK_FORK_ANY_NODE`.
pub const FORK_ANY_NODE: u32 = 1;
/// `FARFORK_FORK_OWNS_SEED`.
pub const FORK_OWNS_SEED: u32 = 2;
/// `FARFORK_FORK_UNTRUSTED`.
pub const FORK_UNTRUSTED: u32 = 4;
/// `FARFORK_FORK_USER_NAMESPACE`.
pub const FORK_USER_NAMESPACE: u32 = 8;
/// `FARFORK_FORK_NO_PAYLOAD`.
pub const FORK_NO_PAYLOAD: u32 = 16;
/// `FARFORK_FORK_CHANNEL`.
pub const FORK_CHANNEL: u32 = 32;

/// `FARFORK_KILL_KEEPS_CHILD`.
pub const KILL_KEEPS_CHILD: u32 = 1;

/// `FARFORK_NETWORK_PRIVATE`.
pub const NETWORK_PRIVATE: u32 = 0;
/// `FARFORK_NETWORK_SHARED`.
pub const NETWORK_SHARED: u32 = 1;
/// `FARFORK_NETWORK_HOST`.
pub const NETWORK_HOST: u32 = 2;

/// `FARFORK_LIMIT_NONE`.
pub const LIMIT_NONE: u32 = 0;
/// `FARFORK_LIMIT_TIME`.
pub const LIMIT_TIME: u32 = 1;
/// `FARFORK_LIMIT_MEMORY`.
pub const LIMIT_MEMORY: u32 = 2;
/// `FARFORK_LIMIT_NODE_MEMORY`.
pub const LIMIT_NODE_MEMORY: u32 = 3;

/// `FARFORK_ENDED_EXIT`.
pub const ENDED_EXIT: u32 = 1;
/// `FARFORK_ENDED_SIGNAL`.
pub const ENDED_SIGNAL: u32 = 2;
/// `FARFORK_ENDED_LOST`.
pub const ENDED_LOST: u32 = 3;

structures! {
    /// The start of every message.
    "header" Header {
        magic: u32,
        version: u16,
        kind: u16,
        socket_inode: u64,
    }
    /// Makes a seed of the sender.
    "checkpoint_request" CheckpointRequest {
        header: Header,
        ttl_ms: u64,
        name: [u8; NAME_BYTES],
        pages: u64,
        pages_bytes: u64,
        kept_thread: u64,
    }
    /// The marker at the start of the second page that a program offers. The first page is executable and empty.
    "pages" Pages {
        magic: u64,
        address: u64,
        bytes: u64,
    }
    /// Starts children of a seed.
    "fork_request" ForkRequest {
        header: Header,
        batch: u32,
        first: u32,
        count: u32,
        flags: u32,
        timeout_ms: u64,
        seed: [u8; ID_BYTES],
        nodes: [u8; NODES_BYTES],
        strategy: [u8; STRATEGY_BYTES],
        memory_bytes_max: u64,
        cpu_millicores_max: u64,
        processes_max: u32,
        network: u32,
        egress: [u8; EGRESS_BYTES],
    }
    /// Kills a child.
    "kill_request" KillRequest {
        header: Header,
        batch: u32,
        index: u32,
        flags: u32,
        reserved: u32,
    }
    /// Drops a seed.
    "drop_request" DropRequest {
        header: Header,
        seed: [u8; ID_BYTES],
    }
    /// Registers a connection that stays open.
    "hello_request" HelloRequest {
        header: Header,
    }
    /// Confirms the registration of a connection.
    "welcome_reply" WelcomeReply {
        header: Header,
        node: [u8; NAME_BYTES],
    }
    /// Reports the seed to the parent.
    "seed_reply" SeedReply {
        header: Header,
        pause_us: u64,
        prepare_us: u64,
        seed: [u8; ID_BYTES],
    }
    /// Informs the sender of a checkpoint request that it is a child, and of the child's id and index.
    "child_reply" ChildReply {
        header: Header,
        index: u32,
        has_payload: u32,
        seed: [u8; ID_BYTES],
        child: [u8; ID_BYTES],
    }
    /// Reports a failure.
    "failed_reply" FailedReply {
        header: Header,
        batch: u32,
        index: u32,
        code: u32,
        reserved: u32,
        text: [u8; TEXT_BYTES],
    }
    /// Reports that a child runs.
    "started_reply" StartedReply {
        header: Header,
        batch: u32,
        index: u32,
        child: [u8; ID_BYTES],
    }
    /// Reports how a child ended.
    "ended_reply" EndedReply {
        header: Header,
        batch: u32,
        index: u32,
        how: u32,
        value: u32,
        has_result: u32,
        limit: u32,
        text: [u8; TEXT_BYTES],
    }
}

impl Pages {
    /// The bytes of the marker that a program writes into `pages` to offer them.
    pub fn marker_bytes(pages: &Range<u64>) -> Vec<u8> {
        let bytes = pages.end.saturating_sub(pages.start);
        Self { magic: PAGES_MAGIC, address: pages.start, bytes }.as_bytes().to_vec()
    }
}

impl Header {
    /// The header of a reply.
    pub(crate) fn for_reply(kind: u16) -> Self {
        Self { magic: MAGIC, version: VERSION, kind, socket_inode: 0 }
    }
}

/// Encodes a text in an array: zero-terminated, and cut at a character boundary if it is too long.
pub(crate) fn encode_text<const BYTES: usize>(text: &str) -> [u8; BYTES] {
    let mut array = <[u8; BYTES]>::new_zeroed();
    let end = text.floor_char_boundary(BYTES - 1);
    array[..end].copy_from_slice(&text.as_bytes()[..end]);
    array
}

/// Decodes a zero-terminated text in an array; `None` if it is not terminated or not UTF-8.
pub(crate) fn decode_text(array: &[u8]) -> Option<&str> {
    let end = array.iter().position(|byte| *byte == 0)?;
    str::from_utf8(&array[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_its_field_and_terminated() {
        assert_eq!(decode_text(&encode_text::<8>("abc")), Some("abc"));
        assert_eq!(decode_text(&encode_text::<4>("abcdef")), Some("abc"));
        assert_eq!(decode_text(&encode_text::<4>("abé")), Some("ab"), "cut at a character boundary");
        assert_eq!(decode_text(b"abc"), None, "not terminated");
        assert_eq!(decode_text(&[0xff, 0]), None, "not UTF-8");
    }
}
