/* The restore plan: the daemon compiles it from a descriptor, and the restorer executes it. The restorer trusts the
 * plan: the daemon has checked every address and index. src/restore/plan_layout.rs has the same structures in Rust, and
 * compares sizes and offsets at compile time (plan_layout.c). */
#pragma once

#include "kernel.h"

/* The region: one address range of the child, in a hole of both the child's memory map and the stub's.
 *
 *  ┌──────┬────────┬──────────────────┬────────┬──────────────┬─────────┬─────────┬─────────┐
 *  │ code │ frames │ plan (a memfd)   │ leader │ one stack    │ staging │ scratch │ barrier │
 *  │      │        │                  │ stack  │ per thread   │ area    │ page    │ page    │
 *  └──────┴────────┴──────────────────┴────────┴──────────────┴─────────┴─────────┴─────────┘
 *  └ retained ─────┘└─ unmapped by the last thread that enters its signal frame ────────────┘
 *
 * The retained part is the frames and the first page of the code. A thread enters its frame from this page; the last
 * thread also unmaps the rest of the code.
 *
 * Each process of a tree has its own plan. The plans are page-aligned in one memfd, the first process's plan first. All
 * processes of a tree share the barrier page. A tree with one process has none. */

#define PLAN_MAGIC 0x4e414c504b465246ull /* "FRFKPLAN" */
#define REQUEST_MAGIC 0x51455246u	 /* "FREQ" */
#define WAIT_MAGIC 0x54494157u		 /* "WAIT" */
#define NETWORK_MAGIC 0x5754454eu	 /* "NETW" */
#define SIGINFO_BYTES 128
#define PROCESSES_MAX 256		 /* most processes of a tree, as in descriptors */
#define CODE_BYTES_MAX 24576		 /* also asserted by restorer.ld */
#define RETAINED_CODE_BYTES 4096	 /* also asserted: code that stays mapped in the child */
#define LEADER_STACK_BYTES 16384	 /* the restorer's deepest call uses less than 4 KiB */
#define SELECTOR_COUNT 4
#define NUMA_NODE_WORDS 16		 /* as in descriptors */
#define THREAD_STACK_BYTES 4096		 /* a thread's code uses less than 1 KiB */

/* A table or text within the plan, by offset from the plan's start. */
struct plan_span {
	u32 offset;
	u32 count;
};

enum plan_flag {
	PLAN_PAUSED = 1,	      /* report, then wait for a command before the child runs */
	PLAN_SESSION_LEADER = 2,      /* begin a session with setsid */
	PLAN_GROUP_LEADER = 4,	      /* begin a process group */
	PLAN_STOPPED = 8,	      /* when restored, stop before the first instruction */
	PLAN_SUBREAPER = 16,	      /* PR_SET_CHILD_SUBREAPER */
	PLAN_ZYGOTE = 32,	      /* build the memory only, then serve copy requests (zygote.c) */
	PLAN_ZYGOTE_COPY = 64,	      /* a zygote's copy: it has the zygote's memory */
	PLAN_SHARES_MEMORY = 256,     /* CLONE_VM: its parent has built the memory */
	PLAN_EXE_PASSED = 512,	      /* its executable has no path */
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

/* A kernel mapping (vdso, vvar): its address in the stub, and in the child. */
struct plan_special_mapping {
	u64 from;
	u64 to;
	u64 bytes;
};

struct plan_file {
	u32 path; /* offset of a zero-terminated text */
	u32 flags;
};

/* Bytes that must be in memory before the child runs. */
struct plan_eager_bytes {
	u64 address;
	u32 offset; /* in the plan */
	u32 bytes;
};

enum descriptor_kind {
	DESCRIPTOR_OPEN = 0,   /* source: offset of the path */
	DESCRIPTOR_PASSED = 1, /* source: index into the passed descriptors */
	DESCRIPTOR_DUPLICATE = 2,   /* source: number of a descriptor that was placed earlier */
	DESCRIPTOR_EPOLL = 3,
	DESCRIPTOR_FROM_PROCESS = 4, /* source: pid of a process that has the file; flags: its descriptor there */
};

struct plan_file_descriptor {
	u32 number;
	u32 kind;
	u32 source;
	u32 flags;
	u64 offset;
	u32 close_on_exec;
	u32 reserved;
};

struct plan_epoll_entry {
	u32 epoll; /* descriptor number */
	u32 target; /* the number to register */
	u32 source; /* a descriptor of the file; if it is not the target, the file gets that number only for the registration */
	u32 events;
	u64 data;
};

/* A system call by which the child creates or sets one of its resources. Only the daemon chooses the calls; a
 * descriptor supplies only values. */
struct plan_syscall {
	u64 arguments[6];
	u64 expected; /* the result; SYSCALL_ANY_RESULT: anything but an error; SYSCALL_MAY_FAIL: anything */
	u32 number;
	u32 pointer_mask; /* bit N: argument N is an offset in the plan */
	u32 step;
	u32 object; /* for error messages: the object of the step, such as a descriptor or a timer */
};

#define SYSCALL_ANY_RESULT (~0ull)
#define SYSCALL_MAY_FAIL (~0ull - 1)

struct plan_signal_action {
	u64 signal;
	u64 handler; /* from this field on, the kernel's struct sigaction */
	u64 flags;
	u64 restorer;
	u64 mask;
};

struct plan_resource_limit {
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

#define CREDENTIALS_UNCHANGED 0xffffffffu

/* Arguments of one seccomp(2) call. The assembly in threads.c depends on the offsets. */
struct plan_seccomp_filter {
	u64 operation;
	u64 flags; /* at the end of a thread's own list: address of its struct plan_user_dispatch; or 0 */
	u64 program;
};

/* Filters that all threads of a process have. The leader installs them for all threads when the other threads wait,
 * with only their last system call left. The assembly in threads.c depends on the offsets. */
struct plan_common_filters {
	u32 waiting_threads; /* threads that have arrived */
	u32 start;	     /* set when they may continue */
	u32 wake_futex;	     /* futex that they sleep on at the end */
	u32 other_threads;   /* number of threads without the leader */
	u32 can_wake;	     /* whether the filters allow FUTEX_WAKE; otherwise the threads do not sleep */
	u32 reserved;
	struct plan_seccomp_filter filters[]; /* the last with operation 0 */
};

/* The futex words of the call that a thread repeats; all 0 for another call. */
struct plan_futex_words {
	u64 words[2];
	u64 vector; /* address of a struct futex_waitv[] */
	u64 vector_entries;
};

/* A thread's memory policy (set_mempolicy(2)). */
struct plan_memory_policy {
	u64 mode;
	u64 node_count; /* nodes_max of the call; 0: no nodes */
	u64 nodes[NUMA_NODE_WORDS];
};

/* Syscall User Dispatch of a thread, after the end of its list of filters. The assembly in threads.c depends on the
 * offsets. */
struct plan_user_dispatch {
	u64 mode;
	u64 offset;
	u64 bytes;
	u64 selector;
};

struct plan_thread {
	u64 frame; /* address of the signal frame's page */
	u64 filters; /* address of struct plan_seccomp_filter[], the last with operation 0; or 0 */
	u64 common_filters; /* address of a struct plan_common_filters; or 0 */
	u64 stack_top;
	u64 fs_base;
	u64 gs_base;
	u64 clear_child_tid;
	u64 robust_list;
	u64 robust_list_bytes;
	u64 rseq;
	struct plan_futex_words futex_words;
	u32 rseq_bytes;
	u32 rseq_signature;
	u64 timer_slack_ns;
	u32 tid;
	u32 parent_death_signal;
	u32 policy;
	i32 nice;
	u32 priority;
	u32 credentials; /* index, or CREDENTIALS_UNCHANGED */
	u32 sched_attr; /* offset of a struct sched_attr, if policy and priority do not suffice; or 0 */
	u32 forbids_tsc;
	u32 store_bypass;    /* PR_SPEC_DISABLE, PR_SPEC_FORCE_DISABLE, or 0 */
	u32 indirect_branch; /* likewise */
	u32 personality;
	u32 memory_policy; /* offset of a struct plan_memory_policy; or 0 */
	u16 selectors[SELECTOR_COUNT]; /* ds, es, fs, gs */
	u32 io_priority; /* or 0 */
	u32 mce_kill; /* PR_MCE_KILL_LATE, PR_MCE_KILL_EARLY, or PR_MCE_KILL_DEFAULT */
	u32 is_io_flusher;
	u32 reserved;
	struct plan_span pending_signals; /* siginfo_t, SIGINFO_BYTES each */
	char name[16];
};

enum child_flag {
	CHILD_ZOMBIE = 1,	      /* has ended already */
	CHILD_AFTER_SESSION = 2,      /* forked after the parent has begun its session and group */
	CHILD_SESSION_LEADER = 4,     /* zombies only; other processes have this flag in their plan */
	CHILD_GROUP_LEADER = 8,	      /* likewise */
	CHILD_STOPPED = 16,	      /* stops itself; the parent waits for the stop */
	CHILD_STOP_UNREPORTED = 32,   /* the parent had not waited for its stop */
	CHILD_CORE_DUMPED = 128,      /* zombie that left a core */
	CHILD_REAPED = 256,	      /* zombie that was waited for: leads a group until others have joined it */
	CHILD_SHARES_DIRECTORY = 64,  /* CLONE_FS: root, directory and umask are the parent's */
	CHILD_SHARES_FILES = 512,     /* CLONE_FILES: the first process that uses the table places the descriptors */
	CHILD_REPARENTED = 1024,      /* forked by its session leader, a zombie; reparented when that ends */
	CHILD_SHARES_MEMORY = 2048,   /* CLONE_VM: forked when the parent has built the memory (shared_memory_process.c) */
	CHILD_SHARES_HANDLERS = 4096, /* CLONE_SIGHAND: the parent sets the signal handlers */
};

/* A child that a process of a tree forks. */
struct plan_child {
	u64 plan_offset; /* offset of its plan in the memfd */
	u32 pid;
	u32 exit_signal;
	u32 flags;
	u32 status;	      /* zombies: wait status */
	u32 group_or_session; /* zombies: group to join, or 0; CHILD_REPARENTED: pid of the zombie that forks it */
	char name[16];
	u32 reserved;
};

struct plan {
	u64 magic;
	u64 plan_bytes;
	u64 region_start;
	u64 region_bytes;
	u64 retained_bytes; /* code, frames and filters */
	u64 code_bytes;
	u64 frame_bytes; /* of one thread */
	u64 plan_offset; /* in the region; likewise the next four */
	u64 leader_stack_offset;
	u64 staging_offset;
	u64 scratch_offset;
	u64 barrier_offset;
	u32 process_index; /* index of the process in its tree */
	u32 process_count; /* 1: no other processes and no barrier page */
	u32 process_group; /* group to join, or 0 */
	u32 barrier_fd;	   /* index into the passed descriptors */
	u32 fd_table_owner; /* index of the process that places the descriptors of its table */
	u32 fd_table_users; /* number of processes that share the table */
	u32 flags;
	u32 controlling_terminal; /* terminal of the session that it begins: index into the passed descriptors, or 0 */
	u32 address_space_count;  /* number of processes that build an address space */
	u32 plan_file; /* descriptor of the memfd with all plans, until the child's files are created */
	u32 user_namespace; /* namespace to enter: index into the passed descriptors of a pidfd of a process in it, or 0 */
	u32 fd_base; /* first number of farfork's own descriptors during the restore; the same for all processes of a tree */
	u32 umask;
	u32 personality;
	u32 dumpable;
	u32 exe; /* offset of the path; with PLAN_EXE_PASSED, index into the passed descriptors */
	u32 cwd;
	u32 frames; /* offset of the frames' contents */
	struct plan_span mappings;
	struct plan_span files;
	struct plan_span special_mappings;
	struct plan_span eager;
	struct plan_span userfaultfd_ranges; /* plan_range */
	struct plan_span file_descriptors;
	struct plan_span epolls;
	struct plan_span signal_actions;
	struct plan_span resource_limits;
	struct plan_span credentials;
	struct plan_span threads; /* the first is the leader */
	struct plan_span pending_signals; /* of the process */
	struct plan_span guards;	  /* plan_range: guard pages */
	struct plan_span syscalls_before_mappings; /* run before files are opened and memory is mapped */
	struct plan_span syscalls_before_files;
	struct plan_span syscalls_after_paths; /* run when no process of the tree needs a path */
	struct plan_span syscalls_before_start; /* run when all resources exist, with the child's credentials */
	u64 mm[11];			    /* in the order of struct prctl_mm_map */
	struct plan_span auxv;		    /* u64 each */
	struct plan_span children;	    /* in the order in which they are forked */
	struct plan_span locked_ranges;	    /* plan_range */
	struct plan_range zygote_region;    /* zygote's copies: the zygote's region, which the copy unmaps */
	u64 confinement_filters; /* address of struct plan_seccomp_filter[], the last with operation 0; or 0 */
};

/* A request to a stub: this message with descriptors, then more messages until all descriptors have arrived.
 *
 * | request to                | pid   | passed[0]   | passed[1]        | passed[2]        | passed[3..]  | last one |
 * | a container's stub        | child | plan        | pager's socket   | status file      | the child's  | queue    |
 * | a stub outside containers | 0     | plan        | pager's socket   | unused           | the zygote's | -        |
 * | a zygote                  | child | plan        | container's init | control socket   | the child's  | cgroup   |
 * | a privileged forker       | child | plan        | pager's socket   | container's init | the child's  | queue    |
 * | a stub that waits         | child | status file | queue            |                  |              |          |
 * | a stub, before all others |       | namespace   |                  |                  |              |          |
 *
 * The queue is the child's userfaultfd queue.
 *
 * A stub outside of containers becomes a zygote. A zygote or a privileged forker forks the child through an
 * intermediate, whose pid is intermediate_pid, because the child must be in the pid namespace of another stub, the
 * container's init. A privileged forker serves containers whose init is in its own user namespace. When the child is
 * restored, the container's init receives a request with WAIT_MAGIC, and waits for the child as if it had forked it.
 * passed[1] of this request is the userfaultfd queue.
 *
 * The first request to a stub may have NETWORK_MAGIC: the stub leaves its container's network namespace and enters
 * passed[0]. It sends REPORT_READY when it is in passed[0], and again when it is ready for the next request. */
struct stub_request {
	u32 magic;
	u32 passed_count;
	u32 pid;
	u32 intermediate_pid; /* to a zygote or privileged forker: pid of the intermediate, which forks the child and ends */
	u32 fd_limit; /* all descriptors that the forker and the child need during the restore are below this number */
	u32 time_offsets_bytes; /* 0: stay in the node's time namespace */
	char time_offsets[112]; /* for /proc/self/timens_offsets */
};

enum passed_slot {
	PASSED_PLAN = 0,
	PASSED_PAGER = 1,
	PASSED_STATUS = 2,
	RESTORER_SLOT_QUEUE = PASSED_PLAN,     /* in the child: the userfaultfd queue, see stub.c */
	RESTORER_SLOT_CONTROL = PASSED_STATUS, /* in the child: the control socket */
	PASSED_RESERVED_COUNT = 3,	       /* passed descriptors that are farfork's own */
	PASSED_ZYGOTE_INIT = PASSED_PAGER,     /* to a zygote: the container's init */
	PASSED_FORKER_INIT = PASSED_STATUS,    /* to a privileged forker: the container's init */
	WAIT_PASSED_STATUS = 0,		       /* to a stub that waits for a child that it did not fork */
	WAIT_PASSED_QUEUE = 1,
	WAIT_PASSED_COUNT = 2,
	NETWORK_PASSED_NAMESPACE = 0, /* to a stub that enters another network namespace */
	NETWORK_PASSED_COUNT = 1,
};

enum report_kind {
	REPORT_READY = 1,    /* the stub waits for a request */
	REPORT_FAILED = 2,   /* error, step and detail name the failure */
	REPORT_RESTORED = 3, /* the child is complete: it runs, or waits if it is paused */
	REPORT_CHILD_ENDED = 4,    /* detail: wait status of the child */
	REPORT_PROCESS_ENDED = 5, /* detail: pid of another process of the tree; status: its wait status */
};

/* Commands to a paused child. */
enum child_command {
	COMMAND_START = 1,
	COMMAND_START_AND_REPORT = 2, /* send REPORT_RESTORED again just before the child runs */
};

/* The step that failed; src/restore/report.rs has the texts. */
enum step {
	STEP_MOUNT_PROC = 1,
	STEP_RECEIVE = 2,
	STEP_TIME_NAMESPACE = 3,
	STEP_FORK = 4,
	STEP_MOVE_DESCRIPTORS = 5,
	STEP_MAP_REGION = 6,
	STEP_MAP_PLAN = 7,
	STEP_PROTECT_CODE = 8,
	STEP_STAGE_SPECIAL_MAPPING = 9,
	STEP_UNMAP_STUB = 10,
	STEP_OPEN_MAPPED_FILE = 11,
	STEP_MAP = 12,
	STEP_ADVISE = 13,
	STEP_USERFAULTFD = 14,
	STEP_REGISTER = 15,
	STEP_SEND_USERFAULTFD = 16,
	STEP_PLACE_SPECIAL_MAPPING = 17,
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
	STEP_PIDFD = 43,
	STEP_LOCK = 44,
	STEP_FILE_OWNER = 45,
	STEP_MEMORY_BARRIER = 46,
	STEP_OOM_SCORE = 47,
	STEP_SOCKET = 48,
	STEP_SHARED_MEMORY = 49,
	STEP_TERMINAL = 50,
	STEP_SYSTEM_V = 51,
	STEP_HUGE_PAGES = 52,
	STEP_TREE_BARRIER = 53,
	STEP_GROUP = 54,
	STEP_WAIT_CHILD = 55,
	STEP_COPY_DESCRIPTOR = 56,
	STEP_VDSO_BRIDGE = 57,
	STEP_ENTER_CONTAINER = 58,
	STEP_FORK_INTERMEDIATE = 59,
	STEP_UNMAP_ZYGOTE = 60,
	STEP_PROTECT_PROC = 61,
	STEP_ENTER_NETWORK = 62,
	STEP_ENTER_USER_NAMESPACE = 63,
	STEP_ENTER_ROOT = 64,
	STEP_RAISE_FILE_LIMIT = 65,
	STEP_SESSION_KEYRING = 66,
	STEP_WRITTEN_PAGES = 67,
	STEP_CONFINEMENT = 68,
	STEP_LOCAL_DESCRIPTOR = 69,
	STEP_CORE_FILTER = 70,
};

/* Timestamps of a restore, for measurements. */
enum restore_mark {
	MARK_REQUEST = 0,    /* the stub has the request */
	MARK_FORKED = 1,	     /* the child's first instruction as a copy of the stub */
	MARK_RESTORER_ENTERED = 2,    /* the restorer runs in the region */
	MARK_MAPPED = 3,     /* its mappings exist */
	MARK_REGISTERED = 4, /* the pager has its userfaultfd */
	MARK_FILES_OPENED = 5,     /* its memory addresses, process attributes and descriptors are set */
	MARK_COUNT = 6,
};

struct stub_report {
	u32 kind;
	i32 error; /* errno */
	u32 step;
	u32 detail; /* index, signal or number in the step; in REPORT_CHILD_ENDED, the wait status */
	u32 process_index; /* index of the process in its tree; 0 if it is not known yet */
	u32 status;  /* wait status, in REPORT_PROCESS_ENDED */
	u64 realtime_ns;
	u64 marks_ns[MARK_COUNT]; /* in REPORT_RESTORED; CLOCK_REALTIME, which no time namespace changes */
};
