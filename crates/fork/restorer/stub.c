/* pid 1 of a lean container. It waits in the pool, already in all namespaces and its control group; on request it forks
 * the child, with the pid that it must have, or takes one on that a zygote has forked; then it reaps, and leaves the child's
 * wait status in a file. Outside of containers, the same program becomes a zygote.
 *
 * It needs no daemon once the child runs. How a process becomes the child: fork.c, restore.c. */
#include "restorer.h"

/* Closes what the child has by now, but the control socket and these two, which have the numbers behind it from now on.
 *
 * `keep` is a socket that is connected to itself: the child sends its userfaultfd into it, the pager those of processes that it forks,
 * and the stub holds it and reads nothing. A message in it holds a userfaultfd open whoever else is killed: with the last one
 * closed, missing pages would read as zeroes. The daemon made it, outside of the container's network, where its name shows; and
 * takes a copy of it (pidfd_getfd(2)) where the pager and all beside it are gone. */
static void keep_only(int status_file, int keep)
{
	int top = (status_file > keep ? status_file : keep) + STUB_FDS;
	CALL3(dup3, status_file, top, K_O_CLOEXEC);
	CALL3(dup3, keep, top + 1, K_O_CLOEXEC);
	CALL3(dup3, top, STATUS_FD, K_O_CLOEXEC);
	CALL3(dup3, top + 1, KEEP_FD, K_O_CLOEXEC);
	CALL3(close_range, STUB_FDS, ~0u, 0);
}

void mount_proc(void)
{
	long error = CALL5(mount, "proc", "/proc", "proc", 0xe /* nosuid, nodev, noexec */, 0);
	if (error < 0)
		fail(STEP_MOUNT_PROC, error, 0);
}

/* Reaps all that end, orphans too, until the child has; its end is the container's. */
static __attribute__((noreturn)) void reap(long child)
{
	i32 status = 0;
	long ended;
	do
		ended = CALL4(wait4, -1, &status, 0, 0);
	while (ended != child && (ended > 0 || ended == -K_EINTR));
	CALL4(pwrite64, STATUS_FD, &status, sizeof status, 0);
	send_report(CONTROL_FD, REPORT_ENDED, 0, 0, (u32)status);
	leave(0);
}

/* Forks the child, and stays. */
static __attribute__((noreturn)) void bear_child(const struct stub_request *asked, struct request *request)
{
	set_time(asked);
	request->keep = request->passed.first + (i32)--request->passed.count;
	long child = fork_with(asked->pid, K_SIGCHLD, 0, -1);
	if (child == 0) {
		if (asked->pid == 1)
			mount_proc();
		become_child(request, 0);
	}
	if (child < 0)
		fail(STEP_FORK, child, asked->pid);
	keep_only(request->passed.first + PASSED_STATUS, request->keep);
	reap(child);
}

/* The network of others in its container's place: what it forks is born there. It says when it is there. */
static void enter_network(const struct passed_set *passed)
{
	long error = CALL2(setns, passed->first + NETWORK_PASSED, K_CLONE_NEWNET);
	if (error < 0)
		fail(STEP_ENTER_NETWORK, error, 0);
	close_passed(passed);
	send_report(CONTROL_FD, REPORT_READY, 0, 0, 0);
}

__attribute__((noreturn, used, visibility("hidden"))) void stub(void)
{
	struct stub_request asked;
	struct request request;
	u64 all_signals = ~0ull;
	struct k_rlimit limit;

	request.passed.count = 0;
	request.control = CONTROL_FD;
	CALL4(rt_sigprocmask, K_SIG_SETMASK, &all_signals, 0, sizeof all_signals);
	if (CALL4(prlimit64, 0, K_RLIMIT_NOFILE, 0, &limit) == 0) {
		limit.soft = limit.hard;
		CALL4(prlimit64, 0, K_RLIMIT_NOFILE, &limit, 0);
	}
	leave_keys();
	if (CALL0(getpid) == 1 && has_rights())
		mount_proc();
	send_report(CONTROL_FD, REPORT_READY, 0, 0, 0);

	receive_request(&asked, &request.passed);
	if (asked.magic == NETWORK_MAGIC) {
		enter_network(&request.passed);
		request.passed.count = 0;
		send_report(CONTROL_FD, REPORT_READY, 0, 0, 0);
		receive_request(&asked, &request.passed);
	}
	request.plan = request.passed.first + PASSED_PLAN;
	request.requested_ns = realtime_ns();
	if (asked.magic == AWAIT_MAGIC) {
		/* It is ours since before anybody was told that it stands; it may have ended since. */
		const i32 first = request.passed.first;
		keep_only(first + AWAITED_STATUS, first + AWAITED_KEEP);
		reap(asked.pid);
	}
	if (asked.midwife != 0)
		bear_beside(&asked, &request);
	if (asked.pid == 0) {
		request.keep = CONTROL_FD; /* it takes its own place later */
		become_child(&request, 0);
	}
	bear_child(&asked, &request);
}

__asm__(".text\n"
	".globl _start\n"
	".hidden _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call stub\n"
	"	ud2\n");
