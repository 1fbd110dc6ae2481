/* A zygote: a stub outside of containers that has rebuilt a child's memory and stopped there, before anything that is the
 * child's own. It forks copies of itself into containers, as asked, and each copy goes on by a plan of its own.
 *
 *   zygote ── clone3(VM, VFORK) ──▶ midwife, in the container's pid namespace
 *                                     │ clone3(set_tid, INTO_CGROUP)
 *                                     ├──────────────────────────────▶ copy: fork.c, restore.c
 *                                     ends: the copy is now the child of its namespace's first process, the stub, which reaps it
 *
 * The midwife shares the zygote's memory, so that one copy of it is made, not two. That a process whose parent ends goes to
 * the first process of the *parent's* namespace is why it is in there itself. */
#include "restorer.h"

#define MIDWIFE_STACK_BYTES (LEADER_STACK_BYTES / 2) /* the lower half of the leader's */
#define OWN_FDS (CONTROL_FD + 2)		     /* the daemon's socket, and behind it the userfaultfd */

struct order {
	struct stub_request asked;
	struct request request;
};

/* The copy. From here on it has a table of descriptors of its own, and tells its own socket what goes wrong. */
static __attribute__((noreturn)) void become_copy(struct order *order)
{
	struct passed_set *passed = &order->request.passed;
	passed->count--; /* the control group is of no use to it */
	CALL3(dup3, passed->first + PASSED_STATUS, CONTROL_FD, K_O_CLOEXEC);
	become_child(&order->request, 0);
}

/* The midwife. She shares the zygote's descriptors too, and leaves none that are the copy's: the copy waits for her end, and
 * ends of pipes that somebody else holds would show. */
static __attribute__((noreturn)) void deliver(void *given)
{
	struct order *order = given;
	const struct passed_set *passed = &order->request.passed;
	set_time(&order->asked);
	leave_keys(); /* or all copies had the zygote's */
	long error = CALL2(setns, passed->first + PASSED_CONTAINER,
			   K_CLONE_NEWNS | K_CLONE_NEWUTS | K_CLONE_NEWIPC | K_CLONE_NEWNET);
	if (error < 0)
		fail(STEP_ENTER_CONTAINER, error, 0);
	long copy = fork_with(order->asked.pid, K_SIGCHLD, 0, passed->first + (i32)passed->count - 1);
	if (copy == 0)
		become_copy(order);
	if (copy < 0)
		fail(STEP_FORK, copy, order->asked.pid);
	close_passed(passed);
	leave(0);
}

/* Has one copy born. Gives an error where there was no midwife; what she could not do she has told. */
static long bear_copy(const struct plan *plan, struct order *order)
{
	struct k_clone_args args;
	i32 pid = (i32)order->asked.midwife, status = 0;
	long error = CALL2(setns, order->request.passed.first + PASSED_CONTAINER, K_CLONE_NEWPID);
	if (error < 0)
		return error;
	clear_bytes(&args, sizeof args);
	args.flags = K_CLONE_VM | K_CLONE_VFORK | K_CLONE_FILES;
	args.stack = plan->region_start + plan->leader_stack_offset;
	args.stack_size = MIDWIFE_STACK_BYTES;
	args.set_tid = (u64)&pid;
	args.set_tid_size = 1;
	long midwife = start_task(&args, deliver, order);
	if (midwife < 0)
		return midwife;
	do
		error = CALL4(wait4, midwife, &status, K_WALL, 0);
	while (error == -K_EINTR);
	if (status) /* else she did: whoever waits for the copy sees that nobody can be it */
		close_passed(&order->request.passed);
	return 0;
}

/* Ends with the daemon, whose end closes the socket. */
void be_zygote(const struct plan *plan)
{
	struct order order;
	int control = control_of(plan), userfaultfd = (int)plan->fd_base + CHILD_KEEP;
	check(plan, STEP_MOVE_DESCRIPTORS, CALL3(dup3, control, CONTROL_FD, K_O_CLOEXEC), 0);
	check(plan, STEP_MOVE_DESCRIPTORS, CALL3(dup3, userfaultfd, CONTROL_FD + 1, K_O_CLOEXEC), 1);
	CALL3(close_range, OWN_FDS, ~0u, 0);
	/* What comes is to stand behind these in one piece. */
	for (int below = 0; below < CONTROL_FD; below++)
		check(plan, STEP_MOVE_DESCRIPTORS, CALL3(dup3, CONTROL_FD, below, K_O_CLOEXEC), 0);
	send_marked(CONTROL_FD, REPORT_RESTORED, 0, 0, 0, 0, scratch_of(plan)->marks_ns);
	for (;;) {
		order.request.passed.count = 0;
		receive_request(&order.asked, &order.request.passed);
		order.request.plan = order.request.passed.first + PASSED_PLAN;
		order.request.requested_ns = realtime_ns();
		order.request.control = CONTROL_FD;
		order.request.keep = CONTROL_FD; /* the pager keeps the copy's userfaultfd where the stub can */
		long error = bear_copy(plan, &order);
		if (error < 0)
			close_passed(&order.request.passed);
		send_report(CONTROL_FD, error < 0 ? REPORT_FAILED : REPORT_READY, STEP_MIDWIFE, error, 0);
	}
}

/* In the copy: what only the zygote needs goes. First the midwife must have: until then the copy is hers, not the stub's. */
void leave_zygote(const struct plan *plan)
{
	while (CALL0(getppid) != 1)
		CALL0(sched_yield);
	check(plan, STEP_LEAVE_ZYGOTE, CALL2(munmap, plan->zygote.start, plan->zygote.bytes), 0);
}
