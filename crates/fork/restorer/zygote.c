/* The zygote: a stub outside of containers that has rebuilt only a child's memory. On request it forks copies of itself
 * into containers. Each copy continues with its own plan (fork.c, restore.c). It serves requests until the daemon
 * closes its socket. */
#include "restorer.h"

/*   zygote ── clone3(VM, VFORK) ──▶ intermediate, in the container's pid namespace
 *                                     │ clone3(set_tid, INTO_CGROUP)
 *                                     ├──────────────────────────────▶ copy: fork.c, restore.c
 *                                     ends: the kernel reparents the copy to the namespace's pid 1, the stub
 *
 * The intermediate shares the zygote's memory (CLONE_VM), so that only one fork copies it. It is in the container's pid
 * namespace, because the kernel reparents an orphan to pid 1 of its *parent's* namespace. */

#define INTERMEDIATE_STACK_BYTES (LEADER_STACK_BYTES / 2) /* the lower half of the leader's stack */
#define ZYGOTE_FDS (CONTROL_FD + 2)		     /* the daemon's socket and the userfaultfd, consecutive */

struct copy_request {
	struct stub_request stub_request;
	struct restore_request request;
};

/* Runs in the copy. The copy has its own descriptor table, and reports failures on its own socket. */
static __attribute__((noreturn)) void become_copy(struct copy_request *copy_request)
{
	struct passed_fds *passed = &copy_request->request.passed;
	passed->count--; /* the copy does not need the cgroup */
	CALL3(dup3, passed->first + PASSED_STATUS, CONTROL_FD, K_O_CLOEXEC);
	become_child(&copy_request->request, 0);
}

/* Runs in the intermediate, which shares the zygote's descriptor table. Closes the copy's descriptors in this table: if
 * the zygote held pipe ends open, the copy would not see the end of file. The copy waits for the intermediate's end. */
static __attribute__((noreturn)) void run_zygote_intermediate(void *argument)
{
	struct copy_request *copy_request = argument;
	const struct passed_fds *passed = &copy_request->request.passed;
	unshare_time_namespace(&copy_request->stub_request);
	join_new_session_keyring(); /* otherwise all copies would share the zygote's keyring */
	long error = CALL2(setns, passed->first + PASSED_ZYGOTE_INIT,
			   K_CLONE_NEWNS | K_CLONE_NEWUTS | K_CLONE_NEWIPC | K_CLONE_NEWNET);
	if (error < 0)
		fail(STEP_ENTER_CONTAINER, error, 0);
	long copy = fork_with_pid(copy_request->stub_request.pid, K_SIGCHLD, 0, passed->first + (i32)passed->count - 1);
	if (copy == 0)
		become_copy(copy_request);
	if (copy < 0)
		fail(STEP_FORK, copy, copy_request->stub_request.pid);
	close_passed_fds(passed);
	exit_process(0);
}

/* Forks one copy through an intermediate. Returns an error if the intermediate could not be created; the intermediate
 * reports its own failures. */
static long fork_copy(const struct plan *plan, struct copy_request *copy_request)
{
	struct k_clone_args args;
	i32 pid = (i32)copy_request->stub_request.intermediate_pid, status = 0;
	long error = CALL2(setns, copy_request->request.passed.first + PASSED_ZYGOTE_INIT, K_CLONE_NEWPID);
	if (error < 0)
		return error;
	clear_bytes(&args, sizeof args);
	args.flags = K_CLONE_VM | K_CLONE_VFORK | K_CLONE_FILES;
	args.stack = plan->region_start + plan->leader_stack_offset;
	args.stack_size = INTERMEDIATE_STACK_BYTES;
	args.set_tid = (u64)&pid;
	args.set_tid_size = 1;
	long intermediate = start_task(&args, run_zygote_intermediate, copy_request);
	if (intermediate < 0)
		return intermediate;
	do
		error = CALL4(wait4, intermediate, &status, K_WALL, 0);
	while (error == -K_EINTR);
	if (status) /* on success, the intermediate has closed them; the closed socket shows that there is no copy */
		close_passed_fds(&copy_request->request.passed);
	return 0;
}

/* Serves copy requests until the daemon closes its end of the socket. */
void run_zygote(const struct plan *plan)
{
	struct copy_request copy_request;
	int control = control_fd(plan), userfaultfd = (int)plan->fd_base + RESTORER_SLOT_QUEUE;
	check(plan, STEP_MOVE_DESCRIPTORS, CALL3(dup3, control, CONTROL_FD, K_O_CLOEXEC), 0);
	check(plan, STEP_MOVE_DESCRIPTORS, CALL3(dup3, userfaultfd, CONTROL_FD + 1, K_O_CLOEXEC), 1);
	CALL3(close_range, ZYGOTE_FDS, ~0u, 0);
	/* Fill the lower numbers, so that passed descriptors are consecutive. */
	for (int below = 0; below < CONTROL_FD; below++)
		check(plan, STEP_MOVE_DESCRIPTORS, CALL3(dup3, CONTROL_FD, below, K_O_CLOEXEC), 0);
	send_report_with_marks(CONTROL_FD, REPORT_RESTORED, 0, 0, 0, 0, scratch_page(plan)->marks_ns);
	for (;;) {
		copy_request.request.passed.count = 0;
		receive_request(&copy_request.stub_request, &copy_request.request.passed);
		copy_request.request.plan = copy_request.request.passed.first + PASSED_PLAN;
		copy_request.request.requested_ns = realtime_ns();
		copy_request.request.control = CONTROL_FD;
		/* A placeholder: the pager adds the copy's userfaultfd to the queue of the container's stub. */
		copy_request.request.userfaultfd_queue = CONTROL_FD;
		long error = fork_copy(plan, &copy_request);
		if (error < 0)
			close_passed_fds(&copy_request.request.passed);
		send_report(CONTROL_FD, error < 0 ? REPORT_FAILED : REPORT_READY, STEP_FORK_INTERMEDIATE, error, 0);
	}
}

/* Runs in the copy: waits until the intermediate has ended, so that the stub is the copy's parent, and then unmaps the
 * zygote's region. */
void unmap_zygote_region(const struct plan *plan)
{
	while (CALL0(getppid) != 1)
		CALL0(sched_yield);
	check(plan, STEP_UNMAP_ZYGOTE, CALL2(munmap, plan->zygote_region.start, plan->zygote_region.bytes), 0);
}
