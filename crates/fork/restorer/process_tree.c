/* Synchronizes the processes of a tree, in the restorer: barriers, process groups, and the end and stop of children.
 * The counters are in the barrier page (struct tree_barrier), which all processes map. Each process checks its own live
 * children while it waits: nothing else notices their end. */
#include "restorer.h"

/* Time between two checks of the children. Only these checks detect the end of a child for which other processes
 * wait. */
#define CHILD_CHECK_INTERVAL_NS 10000000

/* The part of siginfo_t that waitid(2) fills and this file reads. */
struct wait_info {
	i32 signal, error, code, padding, pid, uid, status;
	char rest[SIGINFO_BYTES - 7 * sizeof(i32)];
};

/* Reports that a live child has ended, so that the tree can never be complete, and exits. If the child has reported its
 * own failure, that report arrives first. */
static __attribute__((noreturn)) void fail_lost_child(const struct plan *plan, const struct wait_info *info)
{
	struct stub_report report;
	clear_bytes(&report, sizeof report);
	report.kind = REPORT_PROCESS_ENDED;
	report.process_index = plan->process_index;
	report.detail = (u32)info->pid;
	report.status = info->code == K_CLD_EXITED ? (u32)info->status << 8 : (u32)info->status;
	send_report_struct(control_fd(plan), &report);
	for (;;)
		CALL1(exit_group, 127);
}

static void check_children_alive(const struct plan *plan)
{
	const struct plan_child *children = plan_pointer(plan, plan->children.offset);
	for (u32 i = 0; i < plan->children.count; i++) {
		struct wait_info info;
		clear_bytes(&info, sizeof info);
		if (children[i].flags & CHILD_ZOMBIE)
			continue;
		CALL5(waitid, K_P_PID, children[i].pid, &info, K_WEXITED | K_WNOHANG | K_WNOWAIT | K_WALL, 0);
		if (info.pid != 0)
			fail_lost_child(plan, &info);
	}
}

/* Waits until a barrier counter has the wanted value, and checks that this process's children live. */
void wait_barrier_count(const struct plan *plan, u32 *counter, u32 wanted)
{
	struct k_timespec interval = { 0, CHILD_CHECK_INTERVAL_NS };
	for (;;) {
		u32 seen = __atomic_load_n(counter, __ATOMIC_ACQUIRE);
		if (seen == wanted)
			return;
		if (CALL4(futex, counter, K_FUTEX_WAIT, seen, &interval) == -K_ETIMEDOUT)
			check_children_alive(plan);
	}
}

/* Counts this process at a barrier, and waits until `count` processes have arrived. */
void wait_barrier(const struct plan *plan, u32 *counter, u32 count)
{
	if (plan->process_count == 1)
		return;
	if (__atomic_add_fetch(counter, 1, __ATOMIC_ACQ_REL) == count)
		CALL3(futex, counter, K_FUTEX_WAKE, K_FUTEX_ALL); /* all: zombies wait as well */
	wait_barrier_count(plan, counter, count);
}

/* Waits until each child with `flag` has one of the waitid(2) `events`. */
static void wait_flagged_children(const struct plan *plan, u32 flag, u32 events)
{
	const struct plan_child *children = plan_pointer(plan, plan->children.offset);
	for (u32 i = 0; i < plan->children.count; i++) {
		struct wait_info info;
		long error;
		if (!(children[i].flags & flag))
			continue;
		/* A child may end instead of stopping. */
		do
			error = CALL5(waitid, K_P_PID, children[i].pid, &info, events | K_WEXITED | K_WNOWAIT | K_WALL, 0);
		while (error == -K_EINTR);
		check(plan, STEP_WAIT_CHILD, error, children[i].pid);
		if (!(children[i].flags & CHILD_ZOMBIE) && info.code != K_CLD_STOPPED)
			fail_lost_child(plan, &info);
		if (!(events & K_WNOWAIT) && !(children[i].flags & CHILD_STOP_UNREPORTED))
			CALL5(waitid, K_P_PID, children[i].pid, &info, events | K_WALL, 0);
	}
}

/* Waits until all processes are forked, so that all pids and group leaders exist. Then joins the group, and waits until
 * zombies have ended. */
void join_group_and_wait_zombies(const struct plan *plan)
{
	wait_barrier(plan, &barrier_page(plan)->processes_forked, plan->process_count);
	if (plan->process_group != 0)
		check(plan, STEP_GROUP, CALL2(setpgid, 0, plan->process_group), plan->process_group);
	/* Must run before the signal actions are set: with SIGCHLD ignored, children would not become zombies. */
	wait_flagged_children(plan, CHILD_ZOMBIE, K_WEXITED | K_WNOWAIT);
	remove_cores(plan);
}

/* Reaps the zombies that were waited for, waits for stops, and discards the signals about children that this restore has
 * caused, SIGCHLD or another exit signal (clone(2)): in the original, these events were earlier. All processes have
 * already joined their groups. */
void consume_child_events(const struct plan *plan)
{
	const struct plan_child *children = plan_pointer(plan, plan->children.offset);
	u64 of_children = 1ull << (K_SIGCHLD - 1);
	struct k_timespec at_once = { 0, 0 };
	for (u32 i = 0; i < plan->children.count; i++) {
		if (children[i].exit_signal != 0)
			of_children |= 1ull << (children[i].exit_signal - 1);
		if (children[i].flags & CHILD_REAPED)
			CALL4(wait4, children[i].pid, 0, K_WALL, 0);
	}
	wait_flagged_children(plan, CHILD_STOPPED, K_WSTOPPED);
	if (plan->children.count > 0)
		while (CALL4(rt_sigtimedwait, &of_children, 0, &at_once, sizeof of_children) > 0)
			;
}

/* Called in the first process: waits until all others are complete and have closed farfork's descriptors. No program of
 * the tree may see these, even in another process. */
void wait_tree_ready(const struct plan *plan)
{
	wait_barrier_count(plan, &barrier_page(plan)->processes_closed, plan->process_count - 1);
}

/* Closes farfork's descriptors. In a shared table, the last process closes them, because the others may still report
 * failures on them. Counts this process in processes_closed, for which the first process waits before it starts the
 * tree. */
static void close_restorer_fds(const struct plan *plan)
{
	struct tree_barrier *barrier = barrier_page(plan);
	if (plan->fd_table_users == 1 ||
	    __atomic_add_fetch(&barrier->table_users_done[plan->fd_table_owner], 1, __ATOMIC_ACQ_REL) ==
		    plan->fd_table_users)
		CALL3(close_range, plan->fd_base, ~0u, 0);
	if (plan->process_index != 0 &&
	    __atomic_add_fetch(&barrier->processes_closed, 1, __ATOMIC_ACQ_REL) == plan->process_count - 1)
		CALL3(futex, &barrier->processes_closed, K_FUTEX_WAKE, K_FUTEX_ALL);
}

/* The last barrier, for complete processes. The first process starts all others. A process that was stopped stops here
 * until SIGCONT. */
void wait_tree_start(const struct plan *plan)
{
	const struct plan_thread *leader = plan_pointer(plan, plan->threads.offset);
	struct tree_barrier *barrier = barrier_page(plan);
	if (plan->process_index != 0) {
		if (__atomic_add_fetch(&barrier->processes_ready, 1, __ATOMIC_ACQ_REL) == plan->process_count - 1)
			CALL3(futex, &barrier->processes_ready, K_FUTEX_WAKE, K_FUTEX_ALL);
		/* Check the children until they are complete, too, unless this process must stop: its parent may be
		 * waiting for the stop. */
		if (plan->children.count > 0 && !(plan->flags & PLAN_STOPPED))
			wait_barrier_count(plan, &barrier->processes_ready, plan->process_count - 1);
	}
	close_restorer_fds(plan);
	if (plan->process_count > 1 && plan->process_index == 0) {
		__atomic_store_n(&barrier->start, 1, __ATOMIC_RELEASE);
		CALL3(futex, &barrier->start, K_FUTEX_WAKE, K_FUTEX_ALL);
	}
	if (plan->flags & PLAN_STOPPED)
		CALL2(kill, leader->tid, K_SIGSTOP);
	if (plan->process_index != 0)
		futex_wait_until(&barrier->start, 1);
}
