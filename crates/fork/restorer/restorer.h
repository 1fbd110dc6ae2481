/* Declarations that the stub's and the restorer's source files share, grouped by the file that defines them.
 * From restore() on, code runs from the copy in the child's region. */
#pragma once

#include "plan.h"

/* Bounds of the code and its constants, from the linker script. */
extern char image_start[] __attribute__((visibility("hidden")));
extern char image_end[] __attribute__((visibility("hidden")));

/* The region's scratch page: counters that the child's threads share during the restore, and timestamps. */
struct thread_scratch {
	u32 threads_ready;  /* threads that are complete except for their last step */
	u32 start;	    /* set when all may start */
	u32 threads_inside; /* threads that still use the part of the region that the last thread unmaps */
	u64 marks_ns[MARK_COUNT];
};

/* The barrier page: counters on which the processes of a tree synchronize. */
struct tree_barrier {
	u32 shared_memory_ready; /* processes that build an address space and have created named shared memory */
	u32 processes_forked;	 /* processes that have forked all their children */
	u32 files_opened;	 /* processes that have opened their files */
	u32 files_copied;	 /* processes that have copied files from others */
	u32 processes_ready;	 /* processes that are complete, without the first */
	u32 start;		 /* set when all may start */
	u32 processes_closed;	 /* processes that have closed farfork's descriptors, without the first */
	u32 table_users_done[PROCESSES_MAX]; /* processes that need farfork's descriptors no longer, by fd_table_owner */
};
_Static_assert(sizeof(struct tree_barrier) <= 4096, "the barrier is a page");

#define HIDDEN __attribute__((visibility("hidden")))

/* The daemon's socket: the stub inherits it as this descriptor. */
#define CONTROL_FD 3
/* The stub's descriptors once its child runs; stub.rs repeats the queue's number (STUB_QUEUE_FD). */
#define STATUS_FD (CONTROL_FD + 1)
#define USERFAULTFD_QUEUE_FD (CONTROL_FD + 2)
#define STUB_FDS (CONTROL_FD + 3)

/* Descriptors of a request. Their numbers are consecutive, because no other descriptor of the receiver is open above
 * them. */
struct passed_fds {
	i32 first;
	u32 count;
};

/* One request to restore a child: the descriptors and times that a forked process needs. */
struct restore_request {
	struct passed_fds passed;
	int plan; /* at first one of the passed descriptors */
	int userfaultfd_queue; /* self-connected socket that holds the child's userfaultfds */
	int control; /* socket for failure reports */
	u64 requested_ns;
};

/* request.c */
HIDDEN __attribute__((noreturn)) void exit_process(int status);
HIDDEN __attribute__((noreturn)) void fail(enum step step, long error, u32 detail);
HIDDEN __attribute__((noreturn)) void fail_on(int control, enum step step, long error, u32 detail);
HIDDEN void close_passed_fds(const struct passed_fds *passed);
HIDDEN void receive_request(struct stub_request *request, struct passed_fds *passed);

/* fork.c */
HIDDEN void join_new_session_keyring(void);
HIDDEN void unshare_time_namespace(const struct stub_request *request);
HIDDEN long fork_with_pid(u32 pid_wanted, u32 exit_signal, u64 shared, int cgroup);
HIDDEN __attribute__((noreturn)) void become_child(struct restore_request *request, u64 plan_file_offset);
HIDDEN u64 clone_sharing_flags(const struct plan_child *child);
HIDDEN void begin_session(const struct plan *head, int control);
HIDDEN const struct plan *map_region(const struct plan *head, u64 plan_file_offset, int plan_file, int control);

/* shared_memory_process.c */
HIDDEN void fork_shared_memory_children(const struct plan *plan);
HIDDEN void start_shared_memory_process(const struct plan *plan);

/* stub.c */
HIDDEN void mount_proc(void);

/* privileged_forker.c */
HIDDEN int has_sys_admin(void);
HIDDEN __attribute__((noreturn)) void fork_via_intermediate(const struct stub_request *stub_request,
							    struct restore_request *request);
HIDDEN void enter_user_namespace(const struct plan *plan);

/* zygote.c */
HIDDEN __attribute__((noreturn)) void run_zygote(const struct plan *plan);
HIDDEN void unmap_zygote_region(const struct plan *plan);

/* restore.c: turns the calling process, a fork of the stub, into the child. Runs in the copy of the code in the region. */
HIDDEN __attribute__((noreturn)) void restore(const struct plan *plan);

/* address_space.c */
HIDDEN void stage_special_mappings(const struct plan *plan);
HIDDEN void unmap_stub(const struct plan *plan);
HIDDEN void map_all_mappings(const struct plan *plan);
HIDDEN void install_guards(const struct plan *plan);
HIDDEN void lock_ranges(const struct plan *plan);
HIDDEN void copy_eager_bytes(const struct plan *plan);
HIDDEN void register_userfaultfd(const struct plan *plan);
HIDDEN void place_special_mappings(const struct plan *plan);
HIDDEN void set_mm(const struct plan *plan);

/* syscalls.c */
HIDDEN void run_syscalls(const struct plan *plan, struct plan_span syscalls);

/* process_tree.c */
HIDDEN void wait_barrier(const struct plan *plan, u32 *counter, u32 count);
HIDDEN void wait_barrier_count(const struct plan *plan, u32 *counter, u32 wanted);
HIDDEN void join_group_and_wait_zombies(const struct plan *plan);
HIDDEN void consume_child_events(const struct plan *plan);
HIDDEN void wait_tree_ready(const struct plan *plan);
HIDDEN void wait_tree_start(const struct plan *plan);
HIDDEN void remove_cores(const struct plan *plan);
HIDDEN __attribute__((noreturn)) void become_zombie(const struct plan_child *child, int barrier_fd, u32 process_count);

/* file_descriptors.c */
HIDDEN void open_descriptors(const struct plan *plan);

/* credentials.c */
HIDDEN void set_credentials(const struct plan *plan, u32 index);

/* threads.c */
HIDDEN long start_task(struct k_clone_args *args, void (*run)(void *), void *run_argument);
HIDDEN void start_threads(const struct plan *plan);
HIDDEN void become_leader(const struct plan *plan, const struct plan_thread *leader);
HIDDEN void queue_pending_signals(const struct plan *plan, struct plan_span pending_signals, u32 tid);
HIDDEN void futex_wait_until(u32 *futex, u32 wanted);
HIDDEN __attribute__((noreturn)) void enter_thread(const struct plan *plan, const struct plan_thread *thread);

static inline u64 realtime_ns(void)
{
	struct k_timespec now = { 0, 0 };
	CALL2(clock_gettime, K_CLOCK_REALTIME, &now);
	return (u64)now.seconds * 1000000000ull + (u64)now.nanoseconds;
}

static inline void send_report_struct(int socket, struct stub_report *report)
{
	report->realtime_ns = realtime_ns();
	CALL6(sendto, socket, report, sizeof *report, K_MSG_NOSIGNAL, 0, 0);
}

static inline void send_report_with_marks(int socket, u32 kind, u32 step, long error, u32 detail,
					  u32 process_index, const u64 *marks_ns)
{
	struct stub_report report;
	clear_bytes(&report, sizeof report);
	report.kind = kind;
	report.error = (i32)-error;
	report.step = step;
	report.detail = detail;
	report.process_index = process_index;
	if (marks_ns)
		copy_bytes(report.marks_ns, marks_ns, sizeof report.marks_ns);
	send_report_struct(socket, &report);
}

static inline void send_report(int socket, u32 kind, u32 step, long error, u32 detail)
{
	send_report_with_marks(socket, kind, step, error, detail, 0, 0);
}

static inline const void *plan_pointer(const struct plan *plan, u32 offset)
{
	return (const char *)plan + offset;
}

/* Address of restore() in the copy of the code. */
static inline u64 restorer_entry(const struct plan *head)
{
	return head->region_start + ((u64)restore - (u64)image_start);
}

static inline struct thread_scratch *scratch_page(const struct plan *plan)
{
	return (struct thread_scratch *)(plan->region_start + plan->scratch_offset);
}

static inline void set_mark(const struct plan *plan, enum restore_mark mark)
{
	scratch_page(plan)->marks_ns[mark] = realtime_ns();
}

static inline struct tree_barrier *barrier_page(const struct plan *plan)
{
	return (struct tree_barrier *)(plan->region_start + plan->barrier_offset);
}

static inline int control_fd(const struct plan *plan)
{
	return (int)plan->fd_base + RESTORER_SLOT_CONTROL;
}

/* Used in the child; the stub uses fail(). */
static inline __attribute__((noreturn)) void fail_restore(const struct plan *plan, u32 step, long error, u32 detail)
{
	send_report_with_marks(control_fd(plan), REPORT_FAILED, step, error, detail, plan->process_index, 0);
	for (;;)
		CALL1(exit_group, 127);
}

static inline long check(const struct plan *plan, u32 step, long result, u32 detail)
{
	if (result < 0)
		fail_restore(plan, step, result, detail);
	return result;
}
