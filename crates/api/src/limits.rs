//! Limits on what clients and nodes wait for and send. Each has its reason next to it.

use std::time::Duration;

use farfork_cluster::membership::UNREACHABLE_AFTER;

/// To connect to a daemon. On one machine or in one data centre a connection takes milliseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// For questions that a daemon answers from its tables.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// For one node's share of a list of the whole cluster: less than [`QUERY_TIMEOUT`], so that the answers of the others
/// still arrive when one is silent.
pub const CLUSTER_QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// For prepare: longer than capture's own limit, which is what bounds the parent's pause, so that its answer arrives.
pub const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// For a child to be compared with its parent: both are stopped and read one after the other, in the time of a prepare each.
pub const COMPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// For one child to start once its turn has come, shared memory included, which is copied before it runs.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// For a seed's zygote to stand with what it is to be given, before the children of a fan-out begin without it. It takes some tens of
/// milliseconds; where it takes longer, so would they, who fetch the same each for itself.
pub const ZYGOTE_TIMEOUT: Duration = Duration::from_secs(3);

/// For a node to be warmed up: a working set comes in a second over the slowest links.
pub const PREWARM_TIMEOUT: Duration = Duration::from_secs(60);

/// Most nodes that are warmed up by one request: each is asked at once.
pub const PREWARM_NODES_MAX: usize = 256;

/// For a heartbeat: as long as an answer may still come in time, so that a slow one counts.
pub const HEARTBEAT_TIMEOUT: Duration = UNREACHABLE_AFTER;

/// For another node to hear that this one stops; who does not will find out.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two probes of a connection that carries a stream without an end of its own (logs, wait, attach).
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// For the answer to such a probe: a peer that is silent for longer is gone.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The same on a Unix socket, whose other end the kernel tells to be gone: who is silent there lives, and waits for the machine. A
/// request's own limit is to speak first.
pub const SOCKET_KEEPALIVE_TIMEOUT: Duration = START_TIMEOUT;

/// For requests under way when a daemon stops.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest message of the API, in bytes: a fork with its payloads is the largest one.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Largest message that somebody who has shown no certificate may send, in bytes: a request to join has a name, a proof and a
/// request for a certificate.
pub const ANONYMOUS_MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Largest payload of one child, in bytes. Larger data belongs in the parent's memory or in a file.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Largest sum of the payloads of one fork, in bytes: they are one message, with some kilobytes beside.
pub const PAYLOADS_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (1 << 20);

/// Most children of one fork: as many as DESIGN's largest fan-out, with room.
pub const FORK_COUNT_MAX: u32 = 16_384;

/// Longest name of a label, and longest value, in bytes: as those of Kubernetes.
pub const LABEL_BYTES_MAX: usize = 63;

/// Longest name of a seed, in bytes: it stands in a column of a table.
pub const SEED_NAME_BYTES_MAX: usize = 63;

/// Most children that start at once on a node; more would only wait for each other's processor.
pub const CONCURRENT_STARTS_MAX: usize = 8;

/// Programs that are connected at once; each has a few descriptors of the daemon's.
pub const PROGRAM_CONNECTIONS_MAX: usize = 1024;

/// Ended children that a node still lists although nobody needs them; the oldest go first. Those that a request waits for, and those
/// whose end nobody has asked for, are listed beside.
pub const ENDED_CHILDREN_MAX: usize = 1024;

/// How long an ended child is listed at least whose end nobody has asked for: who forks with `--detach` comes back within that.
pub const UNCOLLECTED_KEPT_MIN: Duration = Duration::from_secs(3600);

/// Most such children: as many as the largest fork has. Beyond, the oldest go first, whatever their age.
pub const UNCOLLECTED_CHILDREN_MAX: usize = FORK_COUNT_MAX as usize;

/// Most that their files take together, in bytes: a run directory is in memory as a rule.
pub const UNCOLLECTED_BYTES_MAX: u64 = 1 << 30;

/// Ended children that a start of a child forgets at most: each start adds one, so that their number falls nevertheless.
pub const EVICTED_PER_START_MAX: usize = 2;

/// Ended children that are forgotten in one round, which comes each second.
pub const EVICTED_PER_ROUND_MAX: usize = 1024;

/// From the SIGTERM that children get whose caller has gone to the SIGKILL for those that live on: as a service manager's user is used to.
pub const CALLER_GONE_GRACE: Duration = Duration::from_secs(10);

/// Connections to one published port of a child that are led into it at once: each has two descriptors of the daemon's.
pub const PUBLISHED_CONNECTIONS_MAX: usize = 1024;

/// Connections by the way out of one network that are led at once: each has two descriptors of the daemon's. Further ones wait.
pub const EGRESS_CONNECTIONS_MAX: usize = 256;

/// Pairs of ends between which datagrams out of one network are led at once: each has two descriptors of the daemon's. Those of further ones are lost.
pub const EGRESS_FLOWS_MAX: usize = 512;

/// For what a child that has ended had sent to others to be led on: a slow reader takes some seconds, and one that never reads has two
/// descriptors of the daemon's meanwhile.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// For whom a child calls to answer.
pub const EGRESS_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A piece of a child's output, in bytes: large enough to stream at the speed of a disk.
pub const OUTPUT_CHUNK_BYTES: usize = 64 << 10;

/// The most bytes of a channel that one message has.
pub const CHANNEL_CHUNK_BYTES: usize = 256 << 10;

/// Messages of a stream that wait for a slow reader.
pub const STREAM_MESSAGES_MAX: usize = 16;

/// For an attached fork's caller to come back and attach before the child's standard input is closed.
pub const ATTACH_GRACE: Duration = Duration::from_secs(30);

/// Most children of a seed that stand by. With one, who asks at once for the next finds it half made.
pub const PRESTARTED_PER_SEED_MAX: usize = 2;

/// Zygotes that a node keeps unless told otherwise: a node works with few seeds at a time, and each has 16 MiB at most.
pub const ZYGOTES_MAX_DEFAULT: usize = 8;

/// Default time after which an unused zygote ends: a later fork of its seed can wait a millisecond. No node is
/// informed that a seed of another node was dropped, so it keeps a useless zygote for as long.
pub const ZYGOTE_IDLE_DEFAULT: Duration = Duration::from_secs(20);
