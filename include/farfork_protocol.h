/* Messages between programs and the daemon of their node, over RUN/program.sock, a SOCK_SEQPACKET socket. A message is one
 * of the structures below, little-endian, in the layout of x86-64. crates/program/src/layout.rs has the same structures;
 * crates/program/tests/layout.rs compares sizes and offsets.
 *
 *   program                                   daemon
 *     │ checkpoint_request ───────────────────▶│  captures the program while it waits for the answer
 *     │◀── seed_reply or failed_reply ─────────│  in the parent
 *     │◀── child_reply, result, [payload], [channel] │  in each child: the same system call returns there
 *     │                                        │
 *     │ hello_request ────────────────────────▶│  the first message of a connection that stays open:
 *     │◀── welcome_reply ──────────────────────│  children find it at end of file
 *     │ fork_request ─────────────────────────▶│
 *     │◀── started_reply, [channel], or failed_reply │  one for each child, as soon as it is known
 *     │◀── ended_reply, [result] ──────────────│  one for each child that started
 *     │ kill_request, drop_request ───────────▶│  have no reply
 *
 * Texts end with a zero byte. Children end with the connection that requested them. Their seed ends with it as well if
 * the request has FARFORK_FORK_OWNS_SEED. In a child, the parent's connections are at their end, except the one that
 * delivers child_reply.
 */
#ifndef FARFORK_PROTOCOL_H
#define FARFORK_PROTOCOL_H

#include <stdint.h>

#define FARFORK_MAGIC 0x4d475046u /* "FPGM" */
#define FARFORK_PROTOCOL_VERSION 1
#define FARFORK_ID_BYTES 96      /* an id has at most 63 + 2 + 16 */
#define FARFORK_NAME_BYTES 64    /* a seed's name has at most 63 */
#define FARFORK_NODES_BYTES 4096 /* names of nodes, separated by commas */
#define FARFORK_STRATEGY_BYTES 32 /* paging strategy: words separated by commas */
#define FARFORK_EGRESS_BYTES 1024 /* permitted destinations, separated by commas */
#define FARFORK_TEXT_BYTES 2048  /* text of an error; longer texts are cut */
#define FARFORK_FDS_MAX 3        /* descriptors in a message */
#define FARFORK_PAGES_MAGIC 0x5345474150464646u /* "FFFPAGES" */

enum farfork_kind {
    FARFORK_KIND_CHECKPOINT = 1,
    FARFORK_KIND_FORK = 2,
    FARFORK_KIND_KILL = 3,
    FARFORK_KIND_DROP = 4,
    FARFORK_KIND_HELLO = 5,
    FARFORK_KIND_SEED = 16,
    FARFORK_KIND_CHILD = 17,
    FARFORK_KIND_FAILED = 18,
    FARFORK_KIND_STARTED = 19,
    FARFORK_KIND_ENDED = 20,
    FARFORK_KIND_WELCOME = 21,
};

struct farfork_header {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;
    uint64_t socket_inode; /* requests: inode of the sender's end of the connection (fstat(2)); replies: 0 */
};

/* Makes a seed of the sender, which waits for the reply on this socket. Older libraries send shorter requests, without
 * `pages` and the fields after it, or without `kept_thread`. */
struct farfork_checkpoint_request {
    struct farfork_header header;
    uint64_t ttl_ms; /* drops the seed after this time; 0: never */
    char name[FARFORK_NAME_BYTES];
    uint64_t pages; /* address of the offered pages, or 0 */
    uint64_t pages_bytes;
    /* The waiting thread (gettid(2)), if it pinned itself to one CPU until the reply and may otherwise run on all; else 0.
     * In children the thread may run on all CPUs. Valid only together with `pages`. */
    uint64_t kept_thread;
};

/* Pages that a sender offers for system calls that the capture injects into its threads. Without them, the daemon maps pages
 * temporarily. All pages are private and anonymous: first an empty page to read and execute, then any number of pages to
 * read and write, which start with this structure. The daemon ignores pages of another form. The pages belong to the daemon
 * after the first request: it does not restore their contents, and children have those contents as well. */
struct farfork_pages {
    uint64_t magic;   /* FARFORK_PAGES_MAGIC */
    uint64_t address; /* of the first page, which precedes the page of this structure */
    uint64_t bytes;   /* of all offered pages */
};

enum farfork_fork_flag {
    FARFORK_FORK_ANY_NODE = 1,  /* chooses the nodes with the fewest children first */
    FARFORK_FORK_OWNS_SEED = 2, /* the seed ends with this connection, whatever its ttl was */
    FARFORK_FORK_UNTRUSTED = 4, /* as `farfork fork --untrusted` */
    FARFORK_FORK_USER_NAMESPACE = 8, /* as `--user-namespace` in addition */
    FARFORK_FORK_NO_PAYLOAD = 16, /* children get no payload, only the index in child_reply; `first` must be 0 */
    FARFORK_FORK_CHANNEL = 32, /* each child has a channel to the sender: a SOCK_STREAM socket. child_reply and
                                * started_reply deliver its ends. It ends with the child, and with the connection. */
};

enum farfork_network {
    FARFORK_NETWORK_PRIVATE = 0, /* a separate network for each child */
    FARFORK_NETWORK_SHARED = 1,  /* one network for all children of the request on a node */
    FARFORK_NETWORK_HOST = 2,    /* the network of the node */
};

/* Starts children of a seed. The payload of each child is its index in decimal digits, except with FARFORK_FORK_NO_PAYLOAD.
 * Older libraries send requests that end before memory_bytes_max, processes_max or egress; missing fields count as 0. */
struct farfork_fork_request {
    struct farfork_header header;
    uint32_t batch;      /* chosen by the sender; replies about these children repeat it */
    uint32_t first;      /* index of the first child */
    uint32_t count;      /* number of children, with consecutive indices; 0: only sets FARFORK_FORK_OWNS_SEED */
    uint32_t flags;      /* enum farfork_fork_flag */
    uint64_t timeout_ms; /* kills a child that has run for this time; 0: never */
    char seed[FARFORK_ID_BYTES];
    char nodes[FARFORK_NODES_BYTES]; /* children are distributed over these nodes in turn; empty: the node of the daemon */
    char strategy[FARFORK_STRATEGY_BYTES]; /* as `farfork fork --strategy` takes it; empty: the default */
    uint64_t memory_bytes_max;   /* memory limit of a child; 0: no limit of its own */
    uint64_t cpu_millicores_max; /* CPU limit of a child, in thousandths of a CPU; 0: no limit of its own */
    uint32_t processes_max;      /* limit of processes and threads of a child; 0: no limit of its own */
    uint32_t network;            /* enum farfork_network */
    char egress[FARFORK_EGRESS_BYTES]; /* as `farfork fork --egress` takes it; empty: no egress */
};

enum farfork_kill_flag {
    FARFORK_KILL_KEEPS_CHILD = 1, /* the ended child stays listed, with its logs; by default, the daemon removes it */
};

/* Kills a child of this connection. The daemon sends ended_reply as for any end. Older libraries send requests that end
 * before flags; missing fields count as 0. */
struct farfork_kill_request {
    struct farfork_header header;
    uint32_t batch;
    uint32_t index;
    uint32_t flags; /* enum farfork_kill_flag */
    uint32_t reserved;
};

/* Drops a seed. */
struct farfork_drop_request {
    struct farfork_header header;
    char seed[FARFORK_ID_BYTES];
};

/* Announces a connection that stays open. */
struct farfork_hello_request {
    struct farfork_header header;
};

/* The daemon knows the connection. */
struct farfork_welcome_reply {
    struct farfork_header header;
    char node[FARFORK_NAME_BYTES]; /* name of the daemon's node */
};

/* The sender of the checkpoint_request is the parent of this seed. */
struct farfork_seed_reply {
    struct farfork_header header;
    uint64_t pause_us; /* how long the parent was stopped */
    uint64_t prepare_us;
    char seed[FARFORK_ID_BYTES];
};

/* The sender of the checkpoint_request is a child. Descriptors, in this order: the file for its result (write, append);
 * with has_payload, its payload (read); with FARFORK_FORK_CHANNEL in the fork_request, its end of the channel. */
struct farfork_child_reply {
    struct farfork_header header;
    uint32_t index; /* its position among the children of its fork */
    uint32_t has_payload;
    char seed[FARFORK_ID_BYTES];
    char child[FARFORK_ID_BYTES];
};

/* A request failed, or a child did not start. */
struct farfork_failed_reply {
    struct farfork_header header;
    uint32_t batch;
    uint32_t index;
    uint32_t code; /* number of a google.rpc.Code */
    uint32_t reserved;
    char text[FARFORK_TEXT_BYTES]; /* object: cause; next step */
};

/* A child was started. Descriptor: the sender's end of its channel, if the fork_request had FARFORK_FORK_CHANNEL. */
struct farfork_started_reply {
    struct farfork_header header;
    uint32_t batch;
    uint32_t index;
    char child[FARFORK_ID_BYTES];
};

enum farfork_how {
    FARFORK_ENDED_EXIT = 1,   /* value: its exit code */
    FARFORK_ENDED_SIGNAL = 2, /* value: the signal that killed it; text: the limit that it exceeded, or empty */
    FARFORK_ENDED_LOST = 3,   /* text: the cause, as far as known */
};

enum farfork_limit {
    FARFORK_LIMIT_NONE = 0,
    FARFORK_LIMIT_TIME = 1,        /* it reached its time limit */
    FARFORK_LIMIT_MEMORY = 2,      /* it exceeded its memory limit */
    FARFORK_LIMIT_NODE_MEMORY = 3, /* its node ran out of memory */
};

/* A child has ended. With has_result, the descriptor reads its result. */
struct farfork_ended_reply {
    struct farfork_header header;
    uint32_t batch;
    uint32_t index;
    uint32_t how; /* enum farfork_how */
    uint32_t value;
    uint32_t has_result;
    uint32_t limit; /* enum farfork_limit: the limit that it exceeded */
    char text[FARFORK_TEXT_BYTES];
};

/* Large enough for any message. */
union farfork_message {
    struct farfork_header header;
    struct farfork_checkpoint_request checkpoint_request;
    struct farfork_fork_request fork_request;
    struct farfork_kill_request kill_request;
    struct farfork_drop_request drop_request;
    struct farfork_hello_request hello_request;
    struct farfork_welcome_reply welcome_reply;
    struct farfork_seed_reply seed_reply;
    struct farfork_child_reply child_reply;
    struct farfork_failed_reply failed_reply;
    struct farfork_started_reply started_reply;
    struct farfork_ended_reply ended_reply;
};

#endif
