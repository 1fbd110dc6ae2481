/* The restore plan: what the node's daemon compiles from a descriptor, and the restorer carries out. It is trusted: the
 * daemon has checked each address and index. src/restore/layout.rs is its twin; a test compares sizes and offsets.
 *
 *  one address range R of the child, in a hole of the future map and of the stub's own:
 *  ┌──────┬────────┬──────────────────┬────────┬──────────────┬─────────┬─────────┐
 *  │ code │ frames │ plan (a memfd)   │ leader │ one stack a  │ parking │ scratch │
 *  │      │        │                  │ stack  │ thread       │         │         │
 *  └──────┴────────┴──────────────────┴────────┴──────────────┴─────────┴─────────┘
 *  └─┘    └─ stay ─┘└── unmapped by the last thread that leaves ───────────────────┘
 *  the code's first page stays, where a thread leaves from; the rest of it goes, too
 *
 * Of a tree of processes each has a plan of its own, page-aligned in one memfd, the first one's first; and behind the scratch
 * page a page that all of them share, the gate.
 */
#pragma once

#include "kernel.h"

#define PLAN_MAGIC 0x4e414c504b465246ull /* "FRFKPLAN" */
#define REQUEST_MAGIC 0x51455246u	 /* "FREQ" */
#define AWAIT_MAGIC 0x54494157u		 /* "WAIT" */
#define NETWORK_MAGIC 0x5754454eu	 /* "NETW" */
#define SIGINFO_BYTES 128
#define PROCESSES_MAX 256		 /* of a tree, as descriptors have it */
#define CODE_BYTES_MAX 20480		 /* also asserted by restorer.ld */
#define LAST_CODE_BYTES 4096		 /* likewise: what of the code stays in the child */
#define LEADER_STACK_BYTES 16384	 /* the restorer's deepest call needs under 4 KiB */
#define THREAD_STACK_BYTES 4096		 /* a thread's part of it under 1 KiB */

/* A table or text within the plan, by offset from the plan's start. */
struct plan_span {
	u32 offset;
	u32 count;
};

enum plan_flag {
	PLAN_PAUSED = 1,	 /* report, then wait for a word before the child runs */
	PLAN_SESSION_LEADER = 2, /* begin a session */
	PLAN_GROUP_LEADER = 4,	 /* begin a process group */
	PLAN_STOPPED = 8,	 /* stop, complete, before the first instruction */
	PLAN_SUBREAPER = 16,	 /* be the parent of orphans */
	PLAN_ZYGOTE = 32,	 /* with its memory complete, stop, and fork as asked (zygote.c) */
	PLAN_COPY = 64,		 /* of a zygote: its memory is there */
	PLAN_SHARED_FILES = 128, /* processes of its tree, whichever, have one table of descriptors */
	PLAN_SAME_MEMORY = 256,	 /* its memory is its parent's, who has built it */
	PLAN_EXE_PASSED = 512,	 /* no path leads to its executable */
};

enum mapping_kind {
	MAPPING_ANONYMOUS = 0,
	MAPPING_FILE = 1,   /* source: index into the files */
	MAPPING_PASSED = 2, /* source: index into the passed descriptors */
};

enum mapping_flag {
	MAPPING_GROWS_DOWN = 1,
	MAPPING_NO_RESERVE = 2,
	MAPPING_HUGE_PAGE = 8,
	MAPPING_NO_HUGE_PAGE = 16,
	MAPPING_WIPE_ON_FORK = 32,
	MAPPING_DONT_DUMP = 64,
	MAPPING_SHARED = 128,
	MAPPING_SEQUENTIAL = 256,
	MAPPING_RANDOM = 512,
	MAPPING_MERGEABLE = 1024,
	MAPPING_DONT_FORK = 2048,
	MAPPING_DROPPABLE = 4096,
};

struct plan_mapping {
	u64 start;
	u64 bytes;
	u64 offset;
	u32 source;
	u8 kind;
	u8 protection;
	u16 flags;
};

struct plan_range {
	u64 start;
	u64 bytes;
};

/* A kernel mapping (vdso, vvar): where the stub has it, and where the child must. */
struct plan_special {
	u64 from;
	u64 to;
	u64 bytes;
};

struct plan_file {
	u32 path; /* offset of a zero-terminated text */
	u32 flags;
};

/* Bytes that must be in place before anything runs. */
struct plan_eager {
	u64 address;
	u32 offset; /* in the plan */
	u32 bytes;
};

enum descriptor_kind {
	DESCRIPTOR_OPEN = 0,   /* source: offset of the path */
	DESCRIPTOR_PASSED = 1, /* source: index into the passed descriptors */
	DESCRIPTOR_SAME = 2,   /* source: number of a descriptor placed before */
	DESCRIPTOR_EPOLL = 3,
	DESCRIPTOR_TAKEN = 4, /* source: a process of the tree, by its id, that has the file; flags: its number there */
};

struct plan_descriptor {
	u32 number;
	u32 kind;
	u32 source;
	u32 flags;
	u64 offset;
	u32 close_on_exec;
	u32 reserved;
};

struct plan_epoll {
	u32 epoll; /* descriptor number */
	u32 target;
	u32 events;
	u32 reserved;
	u64 data;
};

/* A system call that the child makes for itself: what makes, or sets, one of its resources. Which calls there are is the
 * daemon's choice alone; a descriptor decides about values only. */
struct plan_call {
	u64 arguments[6];
	u64 expected; /* what it gives; CALL_ANY_RESULT: anything but an error; CALL_MAY_FAIL: whatever */
	u32 number;
	u32 pointers; /* bit N: argument N is an offset in the plan */
	u32 step;
	u32 object; /* for messages: a descriptor, a timer, whatever the step is about */
};

#define CALL_ANY_RESULT (~0ull)
#define CALL_MAY_FAIL (~0ull - 1)

struct plan_action {
	u64 signal;
	u64 handler; /* from here on as the kernel's struct sigaction */
	u64 flags;
	u64 restorer;
	u64 mask;
};

struct plan_limit {
	u64 resource;
	u64 soft;
	u64 hard;
};

struct plan_credentials {
	u32 uids[4]; /* real, effective, saved, file system */
	u32 gids[4];
	struct plan_span groups; /* u32 each */
	u64 inheritable;
	u64 permitted;
	u64 effective;
	u64 bounding;
	u64 ambient;
	u32 securebits;
	u32 no_new_privileges;
};

#define CREDENTIALS_AS_THEY_ARE 0xffffffffu

/* A filter of system calls to be installed: seccomp(2) with these arguments. threads.c knows the offsets. */
struct plan_filter {
	u64 operation;
	u64 flags;
	u64 program;
};

/* Filters that all threads of a process have: the leader installs them for all of them, when all others wait and need no system call
 * any more but their last. threads.c knows the offsets. */
struct common_filters {
	u32 waiting; /* threads that have come */
	u32 go;	     /* set when they may leave */
	u32 woken;   /* where they wait in the end */
	u32 others;  /* threads beside the leader */
	u32 can_wake; /* the filters let the leader wake them; else they do not sleep */
	u32 reserved;
	struct plan_filter filters[]; /* the last with operation 0 */
};

struct plan_thread {
	u64 frame; /* address of the signal frame's page */
	u64 filters; /* address of plan_filter's, the last with operation 0; or 0 */
	u64 common_filters; /* address of a struct common_filters; or 0 */
	u64 stack_top;
	u64 fs_base;
	u64 gs_base;
	u64 clear_child_tid;
	u64 robust_list;
	u64 robust_list_bytes;
	u64 rseq;
	u32 rseq_bytes;
	u32 rseq_signature;
	u64 timer_slack_ns;
	u32 tid;
	u32 parent_death_signal;
	u32 policy;
	i32 nice;
	u32 priority;
	u32 credentials; /* index, or CREDENTIALS_AS_THEY_ARE */
	u32 attributes; /* a struct sched_attr, where policy and priority are not all; or 0 */
	u32 forbids_time_stamps;
	u32 personality;
	u32 reserved;
	struct plan_span pending; /* siginfo_t, SIGINFO_BYTES each */
	char name[16];
};

enum kin_flag {
	KIN_ZOMBIE = 1,
	KIN_AFTER_SESSION = 2, /* forked when the parent has begun its session and group */
	KIN_SESSION_LEADER = 4, /* of a zombie; others have it in their plan */
	KIN_GROUP_LEADER = 8,	/* so */
	KIN_STOPPED = 16,	/* it stops by itself: to be waited for */
	KIN_UNHEARD = 32,	/* the parent has not yet waited for its stop */
	KIN_CORE = 128, /* a zombie that has left a core */
	KIN_FORGOTTEN = 256, /* a zombie that was waited for: it leads a group until others have joined that */
	KIN_SAME_DIRECTORY = 64, /* root, directory and mask are the parent's, whoever changes them */
	KIN_SAME_FILES = 512,	 /* so its descriptors, which the first of those who have them places */
	KIN_HEIR = 1024, /* born by a zombie, the leader of its session, and the parent's when that has ended */
	KIN_SAME_MEMORY = 2048, /* its memory is the parent's, and it is born when that has been built (shared_memory_process.c) */
	KIN_SAME_HANDLERS = 4096, /* so its signal handlers, which the parent sets */
};

/* A child that a process of a tree forks. */
struct plan_kin {
	u64 plan_at; /* where its plan stands in the memfd */
	u32 pid;
	u32 exit_signal;
	u32 flags;
	u32 status; /* of a zombie */
	u32 group;  /* so: to be joined, or 0; of an heir, by whom it is born */
	char name[16];
	u32 reserved;
};

struct plan {
	u64 magic;
	u64 plan_bytes;
	u64 region_start;
	u64 region_bytes;
	u64 keep_bytes; /* code, frames and filters */
	u64 code_bytes;
	u64 frame_bytes; /* of one thread */
	u64 plan_offset; /* in the region; so the next four */
	u64 leader_stack_offset;
	u64 parking_offset;
	u64 scratch_offset;
	u64 gate_offset;
	u32 process;	   /* number of the process in its tree */
	u32 process_count; /* 1: it is alone, and has no gate */
	u32 group;	   /* process group to be joined, or 0 */
	u32 gate;	   /* index into the passed descriptors */
	u32 table;	   /* number of the process that places its descriptors: its own, or one from which it has them */
	u32 table_users;   /* how many processes have them */
	u32 flags;
	u32 terminal; /* of the session that it begins: index into the passed descriptors, or 0 */
	u32 spaces;   /* how many processes build an address space */
	u32 plan_file; /* descriptor of the file that all plans are in, until files are made */
	u32 users; /* index into the passed descriptors of whose user namespace it enters, or 0 */
	u32 fd_base; /* first number for farfork's own descriptors while it restores: one for all of a tree */
	u32 umask;
	u32 personality;
	u32 dumpable;
	u32 exe; /* offset of the path; with PLAN_EXE_PASSED, index into the passed descriptors */
	u32 cwd;
	u32 frames; /* offset of the frames' contents */
	struct plan_span mappings;
	struct plan_span files;
	struct plan_span specials;
	struct plan_span eager;
	struct plan_span registered; /* plan_range, for userfaultfd */
	struct plan_span descriptors;
	struct plan_span epolls;
	struct plan_span actions;
	struct plan_span limits;
	struct plan_span credentials;
	struct plan_span threads; /* the first is the leader */
	struct plan_span pending; /* of the process */
	struct plan_span guards;	/* plan_range: pages that must not be touched */
	struct plan_span calls_before_maps; /* while nothing is open, and nothing mapped */
	struct plan_span calls_before_files;
	struct plan_span calls_behind_paths; /* nobody of its tree needs a path any more */
	struct plan_span calls_at_last; /* all is there, with the child's own credentials */
	u64 mm[11];		  /* in the order of struct prctl_mm_map */
	struct plan_span auxv;	  /* u64 each */
	struct plan_span kin;	  /* children, in the order of their births */
	struct plan_span locked;  /* plan_range: what is locked in memory */
	struct plan_range zygote; /* of a copy: the region of the zygote, which it leaves */
};

/* What the daemon asks of a stub: this message with descriptors, then more messages until all have come.
 * passed[0] the plan, [1] the socket that the userfaultfd goes to, [2] the file for the wait status, [3…] the child's, the last
 * one the queue that keeps its userfaultfds.
 *
 * A stub outside of containers becomes a zygote: pid is 0, and passed[2] nobody's. A zygote is asked for children by the same
 * message, where passed[1] is the first process of the child's container, [2] the child's control socket, and the last one
 * the control group to be born in. The container's stub is then told to wait for that child, which it did not fork: magic
 * AWAIT_MAGIC, passed[0] the file for the wait status, [1] the socket with the child's userfaultfd in it.
 *
 * A stub beside a container whose first process has users of its own is asked for the child as pid 1 is elsewhere, but with a
 * midwife's number, where passed[2] is that first process, and the last one the socket that this one keeps. When the
 * child stands, pid 1 is told to wait.
 *
 * Before all that a stub may be told to leave its container's network for another: magic NETWORK_MAGIC, passed[0] the
 * namespace. It says that it is there, and then once more that it is ready. */
struct stub_request {
	u32 magic;
	u32 passed_count;
	u32 pid;
	u32 midwife; /* asked of a zygote or bearer: number of the process that forks the child in its container, and ends */
	u32 descriptors; /* numbers that whoever forks the child, and the child, use for open files while it is made: all are below this */
	u32 time_offsets_bytes; /* 0: stay in the node's time namespace */
	char time_offsets[112]; /* for /proc/self/timens_offsets */
};

enum passed {
	PASSED_PLAN = 0,
	PASSED_PAGER = 1,
	PASSED_STATUS = 2,
	CHILD_KEEP = PASSED_PLAN,      /* in the child, where the plan is behind the others: a socket that the stub keeps, see stub.c */
	CHILD_CONTROL = PASSED_STATUS, /* in the child: the control socket */
	PASSED_OWN = 3,		       /* how many of these are farfork's own */
	PASSED_CONTAINER = PASSED_PAGER, /* to a zygote */
	PASSED_FIRST = PASSED_STATUS, /* to a bearer */
	AWAITED_STATUS = 0,	       /* to a stub that did not fork its child */
	AWAITED_KEEP = 1,
	AWAITED_OWN = 2,
	NETWORK_PASSED = 0,	       /* to a stub that is to enter another network */
	NETWORK_OWN = 1,
};

enum report_kind {
	REPORT_READY = 1,    /* the stub waits for a request */
	REPORT_FAILED = 2,   /* error, step and detail say what */
	REPORT_RESTORED = 3, /* the child is complete; it runs on, or waits when it is to be paused */
	REPORT_ENDED = 4,    /* detail: wait status of the child */
	REPORT_KIN_ENDED = 5, /* another process of the tree, detail: its id; status: how */
};

/* What a child hears that waits at its gate. */
enum word {
	WORD_GO = 1,
	WORD_GO_AND_TELL = 2, /* with REPORT_RESTORED once more, the last thing before it runs */
};

/* What went wrong where; src/restore/report.rs has the words. */
enum step {
	STEP_MOUNT_PROC = 1,
	STEP_RECEIVE = 2,
	STEP_TIME_NAMESPACE = 3,
	STEP_FORK = 4,
	STEP_MOVE_DESCRIPTORS = 5,
	STEP_MAP_REGION = 6,
	STEP_MAP_PLAN = 7,
	STEP_PROTECT_CODE = 8,
	STEP_PARK_SPECIAL = 9,
	STEP_UNMAP_STUB = 10,
	STEP_OPEN_MAPPED_FILE = 11,
	STEP_MAP = 12,
	STEP_ADVISE = 13,
	STEP_USERFAULTFD = 14,
	STEP_REGISTER = 15,
	STEP_SEND_USERFAULTFD = 16,
	STEP_PLACE_SPECIAL = 17,
	STEP_OPEN_EXECUTABLE = 18,
	STEP_SET_MM = 19,
	STEP_CHANGE_DIRECTORY = 20,
	STEP_OPEN_FILE = 21,
	STEP_SEEK = 22,
	STEP_PLACE_DESCRIPTOR = 23,
	STEP_EPOLL = 24,
	STEP_SIGNAL_ACTION = 25,
	STEP_LIMIT = 26,
	STEP_THREAD = 27,
	STEP_TLS = 28,
	STEP_RSEQ = 29,
	STEP_ROBUST_LIST = 30,
	STEP_SCHEDULING = 31,
	STEP_CREDENTIALS = 32,
	STEP_PENDING_SIGNAL = 33,
	STEP_UNPAUSE = 34,
	STEP_SESSION = 35,
	STEP_KEEP_USERFAULTFD = 36,
	STEP_GUARD = 37,
	STEP_TIMER = 38,
	STEP_TIMER_FD = 39,
	STEP_SIGNAL_FD = 40,
	STEP_NAMED_PIPE = 41,
	STEP_INOTIFY = 42,
	STEP_OWN_PID = 43,
	STEP_LOCK = 44,
	STEP_OWNER = 45,
	STEP_MEMORY_BARRIER = 46,
	STEP_OOM_SCORE = 47,
	STEP_SOCKET = 48,
	STEP_SHARED_MEMORY = 49,
	STEP_TERMINAL = 50,
	STEP_QUEUE = 51,
	STEP_HUGE_PAGES = 52,
	STEP_MEET = 53,
	STEP_GROUP = 54,
	STEP_AWAIT_KIN = 55,
	STEP_TAKE_DESCRIPTOR = 56,
	STEP_BRIDGE = 57,
	STEP_ENTER_CONTAINER = 58,
	STEP_MIDWIFE = 59,
	STEP_LEAVE_ZYGOTE = 60,
	STEP_FORBID_SETTINGS = 61,
	STEP_ENTER_NETWORK = 62,
	STEP_ENTER_USERS = 63,
	STEP_ENTER_ROOT = 64,
	STEP_MAKE_ROOM = 65,
	STEP_KEYS = 66,
	STEP_WRITTEN_PAGES = 67,
};

/* Moments on a child's way, for who wants to know where its time went. */
enum mark {
	MARK_REQUEST = 0,    /* the stub has the request */
	MARK_BORN = 1,	     /* the child's first instruction as a copy of the stub */
	MARK_ENTERED = 2,    /* it runs in the region */
	MARK_MAPPED = 3,     /* its mappings are there */
	MARK_REGISTERED = 4, /* the pager has its userfaultfd */
	MARK_OPENED = 5,     /* addresses of the address space, process and descriptors are set */
	MARK_COUNT = 6,
};

struct report {
	u32 kind;
	i32 error; /* errno */
	u32 step;
	u32 detail; /* index, signal or number that the step was at; the wait status in REPORT_ENDED */
	u32 process; /* number in its tree; 0 where it has none yet */
	u32 status;  /* wait status, in REPORT_KIN_ENDED */
	u64 realtime_ns;
	u64 marks_ns[MARK_COUNT]; /* CLOCK_REALTIME, in REPORT_RESTORED; which clocks else the child has may be its own */
};
