//! Limits on the waits, messages and lists of clients and nodes. Most comments give the reason for the value.

use std::time::Duration;

use farfork_cluster::membership::UNREACHABLE_AFTER;

/// Time limit for connecting to a daemon. On one machine or in one data centre a connection takes milliseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit for queries that a daemon answers from its tables.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for one node's part of a list of the whole cluster. It is shorter than [`QUERY_TIMEOUT`], so that the parts of
/// the other nodes still arrive if one node is silent.
pub const CLUSTER_QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for a prepare. The capture has a limit of its own, which also bounds the parent's pause. That limit is shorter,
/// so the reply arrives even if the capture exceeds it.
pub const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for the comparison of a child with its parent. The two processes are stopped and read one after the other.
/// Each can take as long as a prepare ([`PREPARE_TIMEOUT`]).
pub const COMPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of requests about volumes that a node serves at once; further ones wait. Each holds a thread, for an hour
/// if it repairs a replica.
pub const VOLUME_REQUESTS_MAX: usize = 64;

/// Time limit for starting one child, without its time in the queue. It includes the copy of shared memory, which is made
/// before the child runs.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time that a fan-out waits for the seed's zygote before it starts its children without one. A zygote takes tens of
/// milliseconds. If a zygote takes much longer, the children would too, because each of them fetches the same pages.
pub const ZYGOTE_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit for the prewarm of a node. A link of 1 Gbit/s transfers the largest working set (128 MiB) in about a second.
pub const PREWARM_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of nodes in one prewarm request. Requests to all of them are sent at once.
pub const PREWARM_NODES_MAX: usize = 256;

/// Time limit for the answer to a heartbeat. It equals the time after which a silent member counts as unreachable, so that a
/// slow answer is still used.
pub const HEARTBEAT_TIMEOUT: Duration = UNREACHABLE_AFTER;

/// Time limit for notifying another node that this node stops. A node that misses the notification detects the stop by
/// missing heartbeats.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two keepalive probes of a connection. Without them, a request that has no time limit (logs, wait, attach)
/// could wait forever for a dead peer.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Time limit for the reply to a keepalive probe. A peer that is silent for longer counts as dead.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for the reply to a keepalive probe on a Unix socket. The kernel reports a dead peer on a Unix socket, so a
/// silent peer is alive and waits for a CPU. The limit is so long that the own time limits of nearly all requests expire
/// first.
pub const SOCKET_KEEPALIVE_TIMEOUT: Duration = START_TIMEOUT;

/// Time limit for requests in progress when a daemon stops.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest message of the API, in bytes: a fork with its payloads is the largest one.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Largest message from a peer without a certificate, in bytes: a request to join has a name, a proof and a certificate
/// signing request.
pub const ANONYMOUS_MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Largest payload of one child, in bytes. Larger data belongs in the parent's memory or in a file.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Largest sum of the payloads of one fork, in bytes: one message contains all of them, with a few kilobytes of other
/// fields.
pub const PAYLOADS_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (1 << 20);

/// Maximum number of children of one fork. It exceeds the 10,000 children that a node is to start within seconds
/// (docs/specification.md).
pub const FORK_COUNT_MAX: u32 = 16_384;

/// Longest name and longest value of a label, in bytes: the limit of Kubernetes.
pub const LABEL_BYTES_MAX: usize = 63;

/// Longest name of a seed, in bytes. The name must fit in a column of a table.
pub const SEED_NAME_BYTES_MAX: usize = 63;

/// Maximum number of children that start at once on a node. More would only wait for the same CPUs.
pub const CONCURRENT_STARTS_MAX: usize = 8;

/// Maximum number of programs that are connected at once. Each takes a few file descriptors of the daemon.
pub const PROGRAM_CONNECTIONS_MAX: usize = 1024;

/// Maximum number of ended children that a node lists. A child for which a request still waits does not count. Beyond this
/// number, the oldest are evicted, but no uncollected ones ([`UNCOLLECTED_KEPT_MIN`]). These count, and have their own limits.
pub const ENDED_CHILDREN_MAX: usize = 1024;

/// Time for which a node lists an uncollected child: one that has ended, and whose exit no request has read. The caller of a
/// detached fork must read the exit within this time. Too many or too large uncollected children are evicted earlier.
pub const UNCOLLECTED_KEPT_MIN: Duration = Duration::from_secs(3600);

/// Maximum number of uncollected children: the number of children of the largest fork. Beyond this number, the oldest are
/// evicted, whatever their age.
pub const UNCOLLECTED_CHILDREN_MAX: usize = FORK_COUNT_MAX as usize;

/// Largest total size of the files of all uncollected children, in bytes: a run directory is usually in memory.
pub const UNCOLLECTED_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of ended children that the start of a child evicts. Each start leads to one more ended child, so evicting
/// two reduces their number.
pub const EVICTED_PER_START_MAX: usize = 2;

/// Maximum number of ended children that one eviction round evicts. There is one round per second.
pub const EVICTED_PER_ROUND_MAX: usize = 1024;

/// Time between SIGTERM and SIGKILL for children whose caller has disconnected: the same as the default of `docker stop`.
pub const CALLER_GONE_GRACE: Duration = Duration::from_secs(10);

/// Maximum number of forwarded connections to one published port of a child. Each takes two file descriptors of the daemon.
pub const PUBLISHED_CONNECTIONS_MAX: usize = 1024;

/// Maximum number of forwarded TCP connections out of one network. Each takes two file descriptors of the daemon. Further
/// connections wait.
pub const EGRESS_CONNECTIONS_MAX: usize = 256;

/// Maximum number of UDP flows (pairs of endpoints) out of one network. Each takes two file descriptors of the daemon.
/// Datagrams of further flows are dropped.
pub const EGRESS_FLOWS_MAX: usize = 512;

/// Time limit for forwarding the data that a child sent before it ended. A slow reader may need some seconds. A reader that
/// never reads holds two file descriptors of the daemon for this time.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for a destination outside of the network to accept a child's connection.
pub const EGRESS_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest piece of a child's output in one message, in bytes: large enough to stream at the speed of a disk.
pub const OUTPUT_CHUNK_BYTES: usize = 64 << 10;

/// Maximum number of bytes of a channel in one message.
pub const CHANNEL_CHUNK_BYTES: usize = 256 << 10;

/// Maximum number of messages of a stream that are queued for a slow reader.
pub const STREAM_MESSAGES_MAX: usize = 16;

/// Time within which the caller of an attached fork must attach. If it does not, the child's standard input is
/// closed.
pub const ATTACH_GRACE: Duration = Duration::from_secs(30);

/// Maximum number of prestarted children of a seed. With only one, a caller that forks twice in a row would have to wait for
/// the second child.
pub const PRESTARTED_PER_SEED_MAX: usize = 2;

/// Default number of zygotes that a node keeps: a node works with few seeds at a time. Each zygote is filled with 32 MiB at
/// most.
pub const ZYGOTES_MAX_DEFAULT: usize = 8;

/// Default time after which an unused zygote ends. A later fork of the zygote's seed then restores its first child, instead
/// of forking it from the zygote. A node may not learn that a seed of another node was dropped. Then it keeps the useless
/// zygote for this time.
pub const ZYGOTE_IDLE_DEFAULT: Duration = Duration::from_secs(20);
