/* The child of a container with users of its own. pid 1 of that is in a user namespace from birth and has no rights; so a stub
 * beside it, which has the node's, is asked for the child:
 *
 *   bearer ── fork(set_tid) ──▶ midwife, in the container's pid namespace: mounts its /proc
 *                                 │ fork(set_tid)
 *                                 ├──────────────────────────────▶ child: fork.c, restore.c
 *                                 ends: the child is now pid 1's, which reaps it
 *
 * The child restores itself with the node's rights, and gives them up when all but its threads is there. */
#include "restorer.h"

/* Whether pid 1 may mount in its container. In a user namespace it was executed before that had numbers: so it has no rights. */
int has_rights(void)
{
	struct k_capability_header header = { K_CAPABILITY_VERSION_3, 0 };
	struct k_capability_data data[2];
	return CALL2(capget, &header, data) == 0 && (data[0].effective >> K_CAP_SYS_ADMIN & 1);
}

static __attribute__((noreturn)) void deliver(const struct stub_request *asked, struct request *request)
{
	mount_proc();
	set_time(asked);
	long child = fork_with(asked->pid, K_SIGCHLD, 0, -1);
	if (child < 0)
		fail(STEP_FORK, child, asked->pid);
	if (child > 0)
		leave(0);
	/* Until she has ended it is hers. */
	while (CALL0(getppid) != 1)
		CALL0(sched_yield);
	become_child(request, 0);
}

/* Has the child born, and ends: when the child stands the daemon has pid 1 wait for it. What could not be done has been told. */
__attribute__((noreturn)) void bear_beside(const struct stub_request *asked, struct request *request)
{
	struct passed_set *passed = &request->passed;
	request->keep = passed->first + (i32)--passed->count;
	long error = CALL2(setns, passed->first + PASSED_FIRST, K_CLONE_NEWPID);
	if (error < 0)
		fail(STEP_ENTER_CONTAINER, error, 1);
	long midwife = fork_with(asked->midwife, K_SIGCHLD, 0, -1);
	if (midwife == 0)
		deliver(asked, request);
	if (midwife < 0)
		fail(STEP_MIDWIFE, midwife, asked->midwife);
	do
		error = CALL4(wait4, midwife, 0, 0, 0);
	while (error == -K_EINTR);
	leave(0);
}

/* The last of what takes the node's rights, but for threads' numbers: the pid namespace is of this user namespace, too. */
void enter_users(const struct plan *plan)
{
	if (plan->users != 0)
		check(plan, STEP_ENTER_USERS, CALL2(setns, plan->fd_base + plan->users, K_CLONE_NEWUSER), 0);
}
