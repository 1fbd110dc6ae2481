//! The requests of programs. Any program that may connect can send any bytes, so every field is checked before it is used.

use std::mem::offset_of;
use std::ops::Range;
use std::time::Duration;

use farfork_wire::SeedId;
use zerocopy::{FromBytes, IntoBytes};

use crate::layout::{
    self, CheckpointRequest, DropRequest, FORK_ANY_NODE, FORK_CHANNEL, FORK_NO_PAYLOAD, FORK_OWNS_SEED, FORK_UNTRUSTED,
    FORK_USER_NAMESPACE, ForkRequest, Header, HelloRequest, KILL_KEEPS_CHILD, KillRequest, NETWORK_HOST,
    NETWORK_PRIVATE, NETWORK_SHARED, kind,
};

/// Why bytes are not a valid request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The magic is missing.
    #[error("not a program's request: the magic is missing")]
    Magic,
    /// The message has another protocol version.
    #[error(
        "the program speaks version {found} of the protocol, this daemon version {}; use libraries of the same release",
        layout::VERSION
    )]
    Version {
        /// The version of the message.
        found: u16,
    },
    /// Programs send no requests of this kind.
    #[error("request kind {found} is unknown; use libraries of the same release")]
    Kind {
        /// The kind of the message.
        found: u16,
    },
    /// The length does not match the kind.
    #[error("a request of kind {kind} with {found} bytes has the wrong length")]
    Length {
        /// The kind of the message.
        kind: u16,
        /// The length of the message.
        found: usize,
    },
    /// A field has an invalid value.
    #[error("the field `{field}` of a request has an invalid value")]
    Field {
        /// The field.
        field: &'static str,
    },
}

/// One message of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Inode of the program's end of the connection.
    pub socket_inode: u64,
    /// The request itself.
    pub body: RequestBody,
}

/// The kinds of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestBody {
    /// Make a seed of the program.
    Checkpoint {
        /// Name of the seed; may be empty.
        name: String,
        /// Time after which the seed is dropped; `None` for never.
        ttl: Option<Duration>,
        /// The program's contribution to its capture.
        offer: Option<CaptureOffer>,
    },
    /// Start children of a seed.
    Fork(ForkOptions),
    /// Kill a child.
    Kill {
        /// The batch of the child.
        batch: u32,
        /// Index of the child in the batch.
        index: u32,
        /// Whether the ended child stays listed, with its logs.
        keeps_child: bool,
    },
    /// Register a connection that stays open.
    Hello,
    /// Drop a seed.
    Drop {
        /// The seed.
        seed: SeedId,
    },
}

/// A program's contribution to its capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureOffer {
    /// Addresses of the pages that the program reserves for injected calls.
    pub pages: Range<u64>,
    /// Id, in the program's pid namespace, of the thread that pinned itself to one CPU for the capture. In children it may
    /// run on all CPUs.
    pub pinned_thread: Option<u32>,
}

/// The options of a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkOptions {
    /// The program's number for this group of children.
    pub batch: u32,
    /// Index of the first child.
    pub first: u32,
    /// Number of children.
    pub count: u32,
    /// The seed.
    pub seed: SeedId,
    /// Names of nodes; empty for the node of the daemon.
    pub nodes: Vec<String>,
    /// Strategy for memory; empty for the default.
    pub strategy: String,
    /// Whether the cluster chooses the nodes.
    pub any_node: bool,
    /// Whether the seed ends with the connection.
    pub owns_seed: bool,
    /// Whether children are untrusted: they lack everything that could let them leave their containers.
    pub untrusted: bool,
    /// Whether children have their own user namespaces.
    pub user_namespace: bool,
    /// Whether each child gets its index as its payload.
    pub has_payload: bool,
    /// Whether each child has a channel to the program.
    pub has_channel: bool,
    /// Time after which a running child is killed; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Memory limit of a child, in bytes; 0 for no limit.
    pub memory_bytes_max: u64,
    /// CPU limit of a child, in thousandths of a CPU; 0 for no limit.
    pub cpu_millicores_max: u64,
    /// Maximum number of processes and threads of a child; 0 for no limit.
    pub processes_max: u32,
    /// The network of a child.
    pub network: RequestedNetwork,
    /// The destinations that a child can reach from its own network; empty for none.
    pub egress: Vec<String>,
}

/// The network of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedNetwork {
    /// One network per child.
    Private,
    /// One network per node for all children of the request.
    Shared,
    /// The network of the node.
    Host,
}

impl Request {
    /// Decodes a message.
    ///
    /// # Errors
    /// The first invalid part of the message.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let (header, _) = Header::read_from_prefix(bytes).map_err(|_| ProtocolError::Magic)?;
        if header.magic != layout::MAGIC {
            return Err(ProtocolError::Magic);
        }
        if header.version != layout::VERSION {
            return Err(ProtocolError::Version { found: header.version });
        }
        let request_body = match header.kind {
            kind::CHECKPOINT => {
                const OLDER_LENGTHS: [usize; 2] =
                    [offset_of!(CheckpointRequest, pages), offset_of!(CheckpointRequest, kept_thread)];
                decode_checkpoint(&read_zero_extended(bytes, header.kind, &OLDER_LENGTHS)?)
            }
            kind::FORK => {
                const OLDER_LENGTHS: [usize; 3] = [
                    offset_of!(ForkRequest, memory_bytes_max),
                    offset_of!(ForkRequest, processes_max),
                    offset_of!(ForkRequest, egress),
                ];
                decode_fork(&read_zero_extended(bytes, header.kind, &OLDER_LENGTHS)?)
            }
            kind::KILL => {
                const OLDER_LENGTHS: [usize; 1] = [offset_of!(KillRequest, flags)];
                let request: KillRequest = read_zero_extended(bytes, header.kind, &OLDER_LENGTHS)?;
                let KillRequest { batch, index, flags, .. } = request;
                Ok(RequestBody::Kill { batch, index, keeps_child: flags & KILL_KEEPS_CHILD != 0 })
            }
            kind::HELLO => read_message::<HelloRequest>(bytes, header.kind).map(|_| RequestBody::Hello),
            kind::DROP => {
                let request: DropRequest = read_message(bytes, header.kind)?;
                Ok(RequestBody::Drop { seed: seed_id(&request.seed)? })
            }
            found => Err(ProtocolError::Kind { found }),
        };
        Ok(Self { socket_inode: header.socket_inode, body: request_body? })
    }
}

/// Reads a message that has exactly the length of `T`.
fn read_message<T: FromBytes>(bytes: &[u8], kind: u16) -> Result<T, ProtocolError> {
    T::read_from_bytes(bytes).map_err(|_| ProtocolError::Length { kind, found: bytes.len() })
}

/// Reads a message that older libraries send without its last fields. Missing fields are zero. `older_bytes` lists the
/// lengths without them.
fn read_zero_extended<T: FromBytes + IntoBytes>(
    bytes: &[u8],
    kind: u16,
    older_bytes: &[usize],
) -> Result<T, ProtocolError> {
    if !older_bytes.contains(&bytes.len()) {
        return read_message(bytes, kind);
    }
    let mut request = T::new_zeroed();
    request.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
    Ok(request)
}

fn decode_checkpoint(request: &CheckpointRequest) -> Result<RequestBody, ProtocolError> {
    let CheckpointRequest { pages: start, pages_bytes, kept_thread, .. } = *request;
    let end = start.checked_add(pages_bytes).ok_or(ProtocolError::Field { field: "pages" })?;
    let kept_thread = u32::try_from(kept_thread).ok().filter(|thread| *thread > 0);
    let offered =
        (start != 0 && pages_bytes != 0).then_some(CaptureOffer { pages: start..end, pinned_thread: kept_thread });
    Ok(RequestBody::Checkpoint {
        name: decode_text_field(&request.name, "name")?,
        ttl: duration_from_ms(request.ttl_ms),
        offer: offered,
    })
}

fn decode_fork(request: &ForkRequest) -> Result<RequestBody, ProtocolError> {
    let ForkRequest { batch, first, count, flags, .. } = *request;
    // A request for no children only makes the connection the owner of the seed.
    if (count == 0 && flags & FORK_OWNS_SEED == 0) || first.checked_add(count).is_none() {
        return Err(ProtocolError::Field { field: "count" });
    }
    const FLAGS: u32 =
        FORK_ANY_NODE | FORK_OWNS_SEED | FORK_UNTRUSTED | FORK_USER_NAMESPACE | FORK_NO_PAYLOAD | FORK_CHANNEL;
    if flags & !FLAGS != 0 {
        return Err(ProtocolError::Field { field: "flags" });
    }
    let has_payload = flags & FORK_NO_PAYLOAD == 0;
    // Each fork without payloads numbers its children from 0.
    if !has_payload && first != 0 {
        return Err(ProtocolError::Field { field: "first" });
    }
    let network = match request.network {
        NETWORK_PRIVATE => RequestedNetwork::Private,
        NETWORK_SHARED => RequestedNetwork::Shared,
        NETWORK_HOST => RequestedNetwork::Host,
        _ => return Err(ProtocolError::Field { field: "network" }),
    };
    let (nodes, egress) = (split_commas(&request.nodes, "nodes")?, split_commas(&request.egress, "egress")?);
    Ok(RequestBody::Fork(ForkOptions {
        batch,
        first,
        count,
        seed: seed_id(&request.seed)?,
        nodes,
        strategy: decode_text_field(&request.strategy, "strategy")?,
        any_node: flags & FORK_ANY_NODE != 0,
        owns_seed: flags & FORK_OWNS_SEED != 0,
        untrusted: flags & FORK_UNTRUSTED != 0,
        user_namespace: flags & FORK_USER_NAMESPACE != 0,
        has_payload,
        has_channel: flags & FORK_CHANNEL != 0,
        timeout: duration_from_ms(request.timeout_ms),
        memory_bytes_max: request.memory_bytes_max,
        cpu_millicores_max: request.cpu_millicores_max,
        processes_max: request.processes_max,
        network,
        egress,
    }))
}

fn decode_text_field(array: &[u8], field: &'static str) -> Result<String, ProtocolError> {
    layout::decode_text(array).map(str::to_owned).ok_or(ProtocolError::Field { field })
}

/// Splits a list of words at commas.
fn split_commas(array: &[u8], field: &'static str) -> Result<Vec<String>, ProtocolError> {
    let text = decode_text_field(array, field)?;
    Ok(text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

fn seed_id(array: &[u8]) -> Result<SeedId, ProtocolError> {
    let field = ProtocolError::Field { field: "seed" };
    layout::decode_text(array).and_then(|id| id.parse().ok()).ok_or(field)
}

fn duration_from_ms(count: u64) -> Option<Duration> {
    (count > 0).then(|| Duration::from_millis(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u16) -> Header {
        Header { socket_inode: 7, ..Header::for_reply(kind) }
    }

    fn fork_request() -> ForkRequest {
        ForkRequest {
            header: header(kind::FORK),
            batch: 3,
            first: 10,
            count: 5,
            flags: FORK_OWNS_SEED | FORK_UNTRUSTED | FORK_USER_NAMESPACE,
            timeout_ms: 1500,
            seed: layout::encode_text("n1.s00f3a96c5d217e84"),
            nodes: layout::encode_text("n2,n3"),
            strategy: layout::encode_text("cow,cache"),
            memory_bytes_max: 64 << 20,
            cpu_millicores_max: 500,
            processes_max: 20,
            network: NETWORK_SHARED,
            egress: layout::encode_text("any,10.0.0.0/8:443"),
        }
    }

    #[test]
    fn a_fork_request_is_decoded() {
        let request = Request::decode(fork_request().as_bytes()).unwrap();
        let expected = ForkOptions {
            batch: 3,
            first: 10,
            count: 5,
            seed: "n1.s00f3a96c5d217e84".parse().unwrap(),
            nodes: vec!["n2".to_owned(), "n3".to_owned()],
            strategy: "cow,cache".to_owned(),
            any_node: false,
            owns_seed: true,
            untrusted: true,
            user_namespace: true,
            has_payload: true,
            has_channel: false,
            timeout: Some(Duration::from_millis(1500)),
            memory_bytes_max: 64 << 20,
            cpu_millicores_max: 500,
            processes_max: 20,
            network: RequestedNetwork::Shared,
            egress: vec!["any".to_owned(), "10.0.0.0/8:443".to_owned()],
        };
        assert_eq!(request, Request { socket_inode: 7, body: RequestBody::Fork(expected.clone()) });
        let older = |end: usize| Request::decode(&fork_request().as_bytes()[..end]).unwrap().body;
        let expected = ForkOptions { egress: Vec::new(), ..expected };
        assert_eq!(older(offset_of!(ForkRequest, egress)), RequestBody::Fork(expected.clone()), "an older library");
        let expected = ForkOptions { processes_max: 0, network: RequestedNetwork::Private, ..expected };
        assert_eq!(older(offset_of!(ForkRequest, processes_max)), RequestBody::Fork(expected.clone()), "an older one");
        let unlimited = ForkOptions { memory_bytes_max: 0, cpu_millicores_max: 0, ..expected };
        assert_eq!(older(offset_of!(ForkRequest, memory_bytes_max)), RequestBody::Fork(unlimited), "a still older one");
    }

    #[test]
    fn a_checkpoint_request_is_decoded() {
        let (header, name) = (header(kind::CHECKPOINT), layout::encode_text("warm"));
        let request = CheckpointRequest { header, ttl_ms: 0, name, pages: 0x5000, pages_bytes: 0x3000, kept_thread: 7 };
        let request_body = |bytes: &[u8]| Request::decode(bytes).map(|request| request.body);
        let expected = |offered| Ok(RequestBody::Checkpoint { name: "warm".to_owned(), ttl: None, offer: offered });
        let offered = |kept_thread| Some(CaptureOffer { pages: 0x5000..0x8000, pinned_thread: kept_thread });
        assert_eq!(request_body(request.as_bytes()), expected(offered(Some(7))));
        let older = &request.as_bytes()[..offset_of!(CheckpointRequest, kept_thread)];
        assert_eq!(request_body(older), expected(offered(None)), "an older library pins no thread to a CPU");
        let older = &request.as_bytes()[..offset_of!(CheckpointRequest, pages)];
        assert_eq!(request_body(older), expected(None), "a still older one offers nothing");
        assert_eq!(request_body(CheckpointRequest { pages: 0, ..request }.as_bytes()), expected(None));
        let beyond = CheckpointRequest { pages_bytes: u64::MAX, ..request };
        assert_eq!(request_body(beyond.as_bytes()), Err(ProtocolError::Field { field: "pages" }));
    }

    #[test]
    fn invalid_fields_of_a_request_are_refused() {
        let field = |field| Err(ProtocolError::Field { field });
        let decode = |request: ForkRequest| Request::decode(request.as_bytes()).map(drop);
        assert_eq!(decode(ForkRequest { first: u32::MAX, ..fork_request() }), field("count"));
        assert_eq!(decode(ForkRequest { count: 0, flags: 0, ..fork_request() }), field("count"));
        assert!(decode(ForkRequest { count: 0, flags: FORK_OWNS_SEED, ..fork_request() }).is_ok());
        assert_eq!(decode(ForkRequest { flags: 64, ..fork_request() }), field("flags"));
        assert_eq!(decode(ForkRequest { flags: FORK_NO_PAYLOAD, ..fork_request() }), field("first"));
        assert!(decode(ForkRequest { flags: FORK_NO_PAYLOAD, first: 0, ..fork_request() }).is_ok());
        assert!(decode(ForkRequest { flags: FORK_CHANNEL, ..fork_request() }).is_ok());
        assert_eq!(decode(ForkRequest { network: 3, ..fork_request() }), field("network"));
        assert_eq!(decode(ForkRequest { seed: layout::encode_text("n1"), ..fork_request() }), field("seed"));
        assert_eq!(decode(ForkRequest { nodes: [b'n'; 4096], ..fork_request() }), field("nodes"));
        assert_eq!(decode(ForkRequest { strategy: [b'c'; 32], ..fork_request() }), field("strategy"));
        let mut request = fork_request();
        request.header.version = 2;
        assert_eq!(decode(request), Err(ProtocolError::Version { found: 2 }));
        request.header.magic = 0;
        assert_eq!(decode(request), Err(ProtocolError::Magic));
        assert_eq!(Request::decode(b"short"), Err(ProtocolError::Magic));
        let (request, seed) = (fork_request(), header(kind::SEED));
        let cut = &request.as_bytes()[..64];
        assert_eq!(Request::decode(cut), Err(ProtocolError::Length { kind: kind::FORK, found: 64 }));
        assert_eq!(Request::decode(seed.as_bytes()), Err(ProtocolError::Kind { found: kind::SEED }));
    }
}
