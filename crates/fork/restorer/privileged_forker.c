/* The privileged forker: forks the child of a container whose pid 1 is in its own user namespace and has no
 * capabilities. It is a stub outside of this container, with the node's capabilities, and ends after the fork. The
 * child restores itself with the node's capabilities, and drops them before it creates its threads. */
#include "restorer.h"

/*   privileged forker ── fork(set_tid) ──▶ intermediate, in the container's pid namespace: mounts its /proc
 *                                            │ fork(set_tid)
 *                                            ├──────────────────────────────▶ child: fork.c, restore.c
 *                                            ends: the kernel reparents the child to pid 1, which reaps it */

/* Returns whether this process may mount. In a user namespace, pid 1 has no capabilities, because it was executed
 * before the namespace had an id mapping. */
int has_sys_admin(void)
{
	struct k_capability_header header = { K_CAPABILITY_VERSION_3, 0 };
	struct k_capability_data data[2];
	return CALL2(capget, &header, data) == 0 && (data[0].effective >> K_CAP_SYS_ADMIN & 1);
}

static __attribute__((noreturn)) void run_forker_intermediate(const struct stub_request *stub_request,
							      struct restore_request *request)
{
	mount_proc();
	unshare_time_namespace(stub_request);
	long child = fork_with_pid(stub_request->pid, K_SIGCHLD, 0, -1);
	if (child < 0)
		fail(STEP_FORK, child, stub_request->pid);
	if (child > 0)
		exit_process(0);
	/* Wait until the intermediate has ended: then pid 1 is the child's parent. */
	while (CALL0(getppid) != 1)
		CALL0(sched_yield);
	become_child(request, 0);
}

/* Forks the child through an intermediate, and ends. When the child is restored, or has died, the daemon sends a wait
 * request to the container's pid 1. */
__attribute__((noreturn)) void fork_via_intermediate(const struct stub_request *stub_request,
						     struct restore_request *request)
{
	struct passed_fds *passed = &request->passed;
	request->userfaultfd_queue = passed->first + (i32)--passed->count;
	long error = CALL2(setns, passed->first + PASSED_FORKER_INIT, K_CLONE_NEWPID);
	if (error < 0)
		fail(STEP_ENTER_CONTAINER, error, 1);
	long intermediate = fork_with_pid(stub_request->intermediate_pid, K_SIGCHLD, 0, -1);
	if (intermediate == 0)
		run_forker_intermediate(stub_request, request);
	if (intermediate < 0)
		fail(STEP_FORK_INTERMEDIATE, intermediate, stub_request->intermediate_pid);
	do
		error = CALL4(wait4, intermediate, 0, 0, 0);
	while (error == -K_EINTR);
	exit_process(0);
}

/* Enters the container's user namespace, if it has one. Afterwards, the process has no capability of the node. Threads
 * can still be created with given ids, because the user namespace also owns the pid namespace. */
void enter_user_namespace(const struct plan *plan)
{
	if (plan->user_namespace != 0)
		check(plan, STEP_ENTER_USER_NAMESPACE,
		      CALL2(setns, plan->fd_base + plan->user_namespace, K_CLONE_NEWUSER), 0);
}
