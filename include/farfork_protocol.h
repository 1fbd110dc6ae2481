/* What programs and a node's daemon say to each other over RUN/program.sock, a SOCK_SEQPACKET socket: one message is one
 * of the structures below, little-endian, as x86-64 lays them out. crates/program/src/layout.rs is the twin of this file;
 * a build step compares sizes and offsets.
 *
 *   program                                   daemon
 *     │ checkpoint_request ───────────────────▶│  captures the program while it waits for the answer
 *     │◀── seed_reply or failed_reply ─────────│  in the parent
 *     │◀── child_reply, result, [payload], [channel] │  in each child: the same system call returns there
 *     │                                        │
 *     │ hello_request ────────────────────────▶│  a connection that stays open says so first: it is known from here on
 *     │◀── welcome_reply ──────────────────────│  as one that children find at its end
 *     │ fork_request ─────────────────────────▶│
 *     │◀── started_reply, [channel], or failed_reply │  one for each child, as it comes
 *     │◀── ended_reply, [result] ──────────────│  one for each child that started
 *     │ kill_request, drop_request ───────────▶│  have no answer
 *
 * Texts end with a zero byte. The children of fork_requests end with the connection that asked for them, and so do the
 * seeds that they were made from, if the request says FARFORK_FORK_OWNS_SEED. In a child every such connection of the
 * parent is at its end, but the one that child_reply comes from.
 */
#ifndef FARFORK_PROTOCOL_H
#define FARFORK_PROTOCOL_H

#include <stdint.h>

#define FARFORK_MAGIC 0x4d475046u /* "FPGM" */
#define FARFORK_PROTOCOL_VERSION 1
#define FARFORK_ID_BYTES 96      /* an id has at most 63 + 2 + 16 */
#define FARFORK_NAME_BYTES 64    /* a seed's name has at most 63 */
#define FARFORK_NODES_BYTES 4096 /* names of nodes with commas between them */
#define FARFORK_STRATEGY_BYTES 32 /* how memory comes: words with commas between them */
#define FARFORK_EGRESS_BYTES 1024 /* parts of the world with commas between them */
#define FARFORK_TEXT_BYTES 2048  /* why something failed; what is longer is cut */
#define FARFORK_FDS_MAX 3        /* descriptors that come with a message */
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
    uint64_t socket_inode; /* of the sender's end of the connection (fstat(2)), in requests; 0 in replies */
};

/* Makes a seed of the sender, which goes on waiting on this very socket. Older libraries end their requests before `pages`, and
 * offer none, or before `kept_thread`. */
struct farfork_checkpoint_request {
    struct farfork_header header;
    uint64_t ttl_ms; /* the seed is dropped after so long; 0: never */
    char name[FARFORK_NAME_BYTES];
    uint64_t pages; /* where the pages begin that it offers, or 0 */
    uint64_t pages_bytes;
    /* The thread that waits (gettid(2)), if it has kept itself to one CPU until the answer comes, and else may run on all; or 0.
     * Its children may run anywhere. It says so beside pages only. */
    uint64_t kept_thread;
};

/* Pages that a sender offers, for the system calls that a capture has its threads make; without them the daemon maps some in
 * it for that moment. Private and anonymous: one page to be read and executed, which holds nothing, then as many as there may
 * be, to be read and written, which begin with this structure. The daemon uses none that are otherwise. What it leaves in
 * them stays, in children too, and is nobody's: they are the daemon's from the first request on. */
struct farfork_pages {
    uint64_t magic;   /* FARFORK_PAGES_MAGIC */
    uint64_t address; /* where the pages begin: the page before this structure's */
    uint64_t bytes;   /* of all of them */
};

enum farfork_fork_flag {
    FARFORK_FORK_ANY_NODE = 1,  /* the nodes with the fewest children first */
    FARFORK_FORK_OWNS_SEED = 2, /* the seed ends with this connection, whatever its ttl was */
    FARFORK_FORK_UNTRUSTED = 4, /* as `farfork fork --untrusted` */
    FARFORK_FORK_USER_NAMESPACE = 8, /* as `--user-namespace` besides */
    FARFORK_FORK_NO_PAYLOAD = 16, /* a child has its index by its answer alone, where `first` is 0 */
    FARFORK_FORK_CHANNEL = 32, /* each child has a channel to the sender: a SOCK_STREAM socket, whose ends come with
                                * child_reply and started_reply. It ends with the child, and with the connection. */
};

enum farfork_network {
    FARFORK_NETWORK_PRIVATE = 0, /* each child has one of its own */
    FARFORK_NETWORK_SHARED = 1,  /* one for all children of the request on a node */
    FARFORK_NETWORK_HOST = 2,    /* the node's */
};

/* Starts children of a seed. The payload of each is its index, in decimal digits, unless none is wanted. A request may end before memory_bytes_max or
 * processes_max, as older libraries send it: what it does not have is 0. */
struct farfork_fork_request {
    struct farfork_header header;
    uint32_t batch;      /* a number of the sender's, which comes back in what is said of these children */
    uint32_t first;      /* the first child's index */
    uint32_t count;      /* how many children, with consecutive indices; 0 only says FARFORK_FORK_OWNS_SEED */
    uint32_t flags;      /* enum farfork_fork_flag */
    uint64_t timeout_ms; /* kills a child that has run so long; 0: never */
    char seed[FARFORK_ID_BYTES];
    char nodes[FARFORK_NODES_BYTES]; /* the children are spread over them in turn; empty: the daemon's own */
    char strategy[FARFORK_STRATEGY_BYTES]; /* as `farfork fork --strategy` takes it; empty: the default */
    uint64_t memory_bytes_max;   /* what a child may use of memory; 0: no limit of its own */
    uint64_t cpu_millicores_max; /* what a child may use of processors, in thousandths of one; 0: no limit of its own */
    uint32_t processes_max;      /* how many processes and threads a child may have; 0: no limit of its own */
    uint32_t network;            /* enum farfork_network */
    char egress[FARFORK_EGRESS_BYTES]; /* as `farfork fork --egress` takes it; empty: nobody is called */
};

/* Kills a child of this connection; its end is told as any other. */
struct farfork_kill_request {
    struct farfork_header header;
    uint32_t batch;
    uint32_t index;
};

/* Drops a seed. */
struct farfork_drop_request {
    struct farfork_header header;
    char seed[FARFORK_ID_BYTES];
};

/* Makes itself known. */
struct farfork_hello_request {
    struct farfork_header header;
};

/* The daemon knows the connection. */
struct farfork_welcome_reply {
    struct farfork_header header;
    char node[FARFORK_NAME_BYTES]; /* the daemon's node */
};

/* The sender of a checkpoint_request is the parent of this seed. */
struct farfork_seed_reply {
    struct farfork_header header;
    uint64_t pause_us; /* how long it stood still */
    uint64_t prepare_us;
    char seed[FARFORK_ID_BYTES];
};

/* The sender of a checkpoint_request is a child now. Descriptors: the file for its result (write, append), then, with
 * has_payload, its payload (read), then, if the fork_request had FARFORK_FORK_CHANNEL, its end of the channel. */
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
    uint32_t code; /* a number of google.rpc.Code */
    uint32_t reserved;
    char text[FARFORK_TEXT_BYTES]; /* object: cause; next step */
};

/* A child runs. Descriptor: the sender's end of its channel, if the fork_request had FARFORK_FORK_CHANNEL. */
struct farfork_started_reply {
    struct farfork_header header;
    uint32_t batch;
    uint32_t index;
    char child[FARFORK_ID_BYTES];
};

enum farfork_how {
    FARFORK_ENDED_EXIT = 1,   /* value: its exit code */
    FARFORK_ENDED_SIGNAL = 2, /* value: the signal that killed it; text: which limit it was killed for, or empty */
    FARFORK_ENDED_LOST = 3,   /* text: what is known */
};

enum farfork_limit {
    FARFORK_LIMIT_NONE = 0,
    FARFORK_LIMIT_TIME = 1,        /* it ran for as long as it may */
    FARFORK_LIMIT_MEMORY = 2,      /* it needed more memory than it may use */
    FARFORK_LIMIT_NODE_MEMORY = 3, /* its node had no memory left */
};

/* A child has ended. With has_result, a descriptor to read its result from. */
struct farfork_ended_reply {
    struct farfork_header header;
    uint32_t batch;
    uint32_t index;
    uint32_t how; /* enum farfork_how */
    uint32_t value;
    uint32_t has_result;
    uint32_t limit; /* enum farfork_limit: which it was killed for */
    char text[FARFORK_TEXT_BYTES];
};

/* Room for any message. */
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
