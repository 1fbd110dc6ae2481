/* What the stub and the restorer share. */
#pragma once

#include "plan.h"

/* Bounds of the code and its constants, from the linker script. */
extern char image_start[] __attribute__((visibility("hidden")));
extern char image_end[] __attribute__((visibility("hidden")));

/* Words in the region that the child's threads share while they are made. */
struct scratch {
	u32 ready;  /* threads that stand before their last step */
	u32 go;	    /* set when all may leave */
	u32 inside; /* threads that still use the part of the region that goes */
	u64 marks_ns[MARK_COUNT];
};

/* Words that the processes of a tree share, and meet at. */
struct gate {
	u32 named;  /* processes that build an address space, and have made shared memory that has a name */
	u32 born;   /* processes that have forked all of their children */
	u32 opened; /* processes that have opened files */
	u32 taken;  /* processes that have files of others */
	u32 ready;  /* processes that are complete, but the first */
	u32 go;	    /* set when all may leave */
	u32 closed; /* processes that need none of farfork's descriptors any more, but the first; only where some have one table */
	u32 done[PROCESSES_MAX]; /* so, by the process that places the table's */
};
_Static_assert(sizeof(struct gate) <= 4096, "the gate is a page");

#define HIDDEN __attribute__((visibility("hidden")))

/* The daemon's socket, as whoever starts the stub leaves it. */
#define CONTROL_FD 3
/* What a stub has once its child lives; the daemon knows the second one (stub.rs). */
#define STATUS_FD (CONTROL_FD + 1)
#define KEEP_FD (CONTROL_FD + 2)
#define STUB_FDS (CONTROL_FD + 3)

/* Descriptors that came with a request: one behind the other, as who hears it has none with higher numbers. */
struct passed_set {
	i32 first;
	u32 count;
};

/* What all that is forked needs. */
struct request {
	struct passed_set passed;
	int plan; /* one of these at first */
	int keep;
	int control; /* where to tell what goes wrong */
	u64 requested_ns;
};

/* request.c */
HIDDEN __attribute__((noreturn)) void leave(int status);
HIDDEN __attribute__((noreturn)) void fail(enum step step, long error, u32 detail);
HIDDEN __attribute__((noreturn)) void fail_at(int control, enum step step, long error, u32 detail);
HIDDEN void close_passed(const struct passed_set *passed);
HIDDEN void receive_request(struct stub_request *request, struct passed_set *passed);

/* fork.c */
HIDDEN void leave_keys(void);
HIDDEN void set_time(const struct stub_request *request);
HIDDEN long fork_with(u32 pid_wanted, u32 exit_signal, u64 shared, int cgroup);
HIDDEN __attribute__((noreturn)) void become_child(struct request *request, u64 plan_at);
HIDDEN u64 shared_flags(const struct plan_kin *kin);
HIDDEN void begin_session(const struct plan *head, int control);
HIDDEN const struct plan *map_region(const struct plan *head, u64 plan_at, int plan_file, int control);

/* shared_memory_process.c */
HIDDEN void bear_sharers(const struct plan *plan);
HIDDEN void begin_sharing(const struct plan *plan);

/* stub.c */
HIDDEN void mount_proc(void);

/* privileged_forker.c */
HIDDEN int has_rights(void);
HIDDEN __attribute__((noreturn)) void bear_beside(const struct stub_request *asked, struct request *request);
HIDDEN void enter_users(const struct plan *plan);

/* zygote.c */
HIDDEN __attribute__((noreturn)) void be_zygote(const struct plan *plan);
HIDDEN void leave_zygote(const struct plan *plan);

/* restore.c: turns the calling process, a fork of the stub, into the child. Runs in the copy of the code inside the region. */
HIDDEN __attribute__((noreturn)) void restore(const struct plan *plan);

/* address_space.c */
HIDDEN void park_special(const struct plan *plan);
HIDDEN void unmap_stub(const struct plan *plan);
HIDDEN void map_all(const struct plan *plan);
HIDDEN void guard_all(const struct plan *plan);
HIDDEN void lock_all(const struct plan *plan);
HIDDEN void fill_eager(const struct plan *plan);
HIDDEN void hand_to_pager(const struct plan *plan);
HIDDEN void place_special(const struct plan *plan);
HIDDEN void set_mm(const struct plan *plan);

/* syscalls.c */
HIDDEN void make_calls(const struct plan *plan, struct plan_span calls);

/* process_tree.c */
HIDDEN void meet(const struct plan *plan, u32 *word, u32 count);
HIDDEN void await_others(const struct plan *plan, u32 *word, u32 wanted);
HIDDEN void join_kin(const struct plan *plan);
HIDDEN void await_kin(const struct plan *plan);
HIDDEN void await_all(const struct plan *plan);
HIDDEN void pass_gate(const struct plan *plan);
HIDDEN void remove_cores(const struct plan *plan);
HIDDEN __attribute__((noreturn)) void become_zombie(const struct plan_kin *kin, int gate, u32 process_count);

/* file_descriptors.c */
HIDDEN void open_descriptors(const struct plan *plan);

/* credentials.c */
HIDDEN void set_credentials(const struct plan *plan, u32 index);

/* threads.c */
HIDDEN long start_task(struct k_clone_args *args, void (*run)(void *), void *given);
HIDDEN void start_threads(const struct plan *plan);
HIDDEN void become_leader(const struct plan *plan, const struct plan_thread *leader);
HIDDEN void raise_pending(const struct plan *plan, struct plan_span pending, u32 tid);
HIDDEN void wait_for(u32 *word, u32 wanted);
HIDDEN __attribute__((noreturn)) void enter(const struct plan *plan, const struct plan_thread *thread);

static inline u64 realtime_ns(void)
{
	struct k_timespec now = { 0, 0 };
	CALL2(clock_gettime, K_CLOCK_REALTIME, &now);
	return (u64)now.seconds * 1000000000ull + (u64)now.nanoseconds;
}

static inline void send_words(int socket, struct report *report)
{
	report->realtime_ns = realtime_ns();
	CALL6(sendto, socket, report, sizeof *report, K_MSG_NOSIGNAL, 0, 0);
}

static inline void send_marked(int socket, u32 kind, u32 step, long error, u32 detail, u32 process,
			       const u64 *marks_ns)
{
	struct report report;
	clear_bytes(&report, sizeof report);
	report.kind = kind;
	report.error = (i32)-error;
	report.step = step;
	report.detail = detail;
	report.process = process;
	if (marks_ns)
		copy_bytes(report.marks_ns, marks_ns, sizeof report.marks_ns);
	send_words(socket, &report);
}

static inline void send_report(int socket, u32 kind, u32 step, long error, u32 detail)
{
	send_marked(socket, kind, step, error, detail, 0, 0);
}

static inline const void *at(const struct plan *plan, u32 offset)
{
	return (const char *)plan + offset;
}

/* Where restore() is in the copy of the code. */
static inline u64 entry_of(const struct plan *head)
{
	return head->region_start + ((u64)restore - (u64)image_start);
}

static inline struct scratch *scratch_of(const struct plan *plan)
{
	return (struct scratch *)(plan->region_start + plan->scratch_offset);
}

static inline void mark(const struct plan *plan, enum mark moment)
{
	scratch_of(plan)->marks_ns[moment] = realtime_ns();
}

static inline struct gate *gate_of(const struct plan *plan)
{
	return (struct gate *)(plan->region_start + plan->gate_offset);
}

static inline int control_of(const struct plan *plan)
{
	return (int)plan->fd_base + CHILD_CONTROL;
}

/* In the child; its stub has a way of its own to give up. */
static inline __attribute__((noreturn)) void give_up(const struct plan *plan, u32 step, long error, u32 detail)
{
	send_marked(control_of(plan), REPORT_FAILED, step, error, detail, plan->process, 0);
	for (;;)
		CALL1(exit_group, 127);
}

static inline long check(const struct plan *plan, u32 step, long result, u32 detail)
{
	if (result < 0)
		give_up(plan, step, result, detail);
	return result;
}
