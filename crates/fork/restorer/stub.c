/* The stub: pid 1 of a lean container. It waits in the pool, already in its namespaces and its cgroup. On request it
 * forks the child with the wanted pid, or waits for a child that a zygote or a privileged forker forked. Then it reaps
 * processes, and writes the child's wait status to a file. It needs no daemon once the child runs. Outside of
 * containers, the same program becomes a zygote or a privileged forker. fork.c and restore.c turn the forked process
 * into the child. */
#include "restorer.h"

/* Closes the descriptors that the child has inherited, except the control socket and these two, which get the numbers
 * after it.
 *
 * `queue` is the userfaultfd queue, a socket that is connected to itself. The child sends its userfaultfd into the
 * queue; the pager adds the userfaultfds of processes that the child forks. The stub holds the queue open and reads
 * nothing. A message in the queue keeps a userfaultfd open even if all other holders are killed: without any holder,
 * missing pages would read as zeroes. The daemon creates the socket outside of the container's network namespace, in
 * which its name would be visible. If pager, keeper and holder are dead, the daemon copies the socket from the stub
 * (pidfd_getfd(2)). */
static void keep_stub_fds(int status_file, int queue)
{
	int top = (status_file > queue ? status_file : queue) + STUB_FDS;
	CALL3(dup3, status_file, top, K_O_CLOEXEC);
	CALL3(dup3, queue, top + 1, K_O_CLOEXEC);
	CALL3(dup3, top, STATUS_FD, K_O_CLOEXEC);
	CALL3(dup3, top + 1, USERFAULTFD_QUEUE_FD, K_O_CLOEXEC);
	CALL3(close_range, STUB_FDS, ~0u, 0);
}

void mount_proc(void)
{
	long error = CALL5(mount, "proc", "/proc", "proc", 0xe /* nosuid, nodev, noexec */, 0);
	if (error < 0)
		fail(STEP_MOUNT_PROC, error, 0);
}

/* Reaps processes, including orphans, until the child has ended. The container ends with the child. If there is no
 * child, because a privileged forker was killed before it forked one, the stub exits without a report. */
static __attribute__((noreturn)) void reap_until_exit(long child)
{
	i32 status = 0;
	long ended;
	do
		ended = CALL4(wait4, -1, &status, 0, 0);
	while (ended != child && (ended > 0 || ended == -K_EINTR));
	if (ended != child)
		exit_process(1);
	CALL4(pwrite64, STATUS_FD, &status, sizeof status, 0);
	send_report(CONTROL_FD, REPORT_CHILD_ENDED, 0, 0, (u32)status);
	exit_process(0);
}

/* Forks the child, then reaps processes until it has ended. */
static __attribute__((noreturn)) void fork_child(const struct stub_request *stub_request,
						 struct restore_request *request)
{
	unshare_time_namespace(stub_request);
	request->userfaultfd_queue = request->passed.first + (i32)--request->passed.count;
	long child = fork_with_pid(stub_request->pid, K_SIGCHLD, 0, -1);
	if (child == 0) {
		if (stub_request->pid == 1)
			mount_proc();
		become_child(request, 0);
	}
	if (child < 0)
		fail(STEP_FORK, child, stub_request->pid);
	keep_stub_fds(request->passed.first + PASSED_STATUS, request->userfaultfd_queue);
	reap_until_exit(child);
}

/* Enters another network namespace in place of its container's, for itself and its future children. Then sends
 * REPORT_READY. */
static void enter_network(const struct passed_fds *passed)
{
	long error = CALL2(setns, passed->first + NETWORK_PASSED_NAMESPACE, K_CLONE_NEWNET);
	if (error < 0)
		fail(STEP_ENTER_NETWORK, error, 0);
	close_passed_fds(passed);
	send_report(CONTROL_FD, REPORT_READY, 0, 0, 0);
}

__attribute__((noreturn, used, visibility("hidden"))) void stub(void)
{
	struct stub_request stub_request;
	struct restore_request request;
	u64 all_signals = ~0ull;
	struct k_rlimit limit;

	request.passed.count = 0;
	request.control = CONTROL_FD;
	CALL4(rt_sigprocmask, K_SIG_SETMASK, &all_signals, 0, sizeof all_signals);
	if (CALL4(prlimit64, 0, K_RLIMIT_NOFILE, 0, &limit) == 0) {
		limit.soft = limit.hard;
		CALL4(prlimit64, 0, K_RLIMIT_NOFILE, &limit, 0);
	}
	join_new_session_keyring();
	if (CALL0(getpid) == 1 && has_sys_admin())
		mount_proc();
	send_report(CONTROL_FD, REPORT_READY, 0, 0, 0);

	receive_request(&stub_request, &request.passed);
	if (stub_request.magic == NETWORK_MAGIC) {
		enter_network(&request.passed);
		request.passed.count = 0;
		send_report(CONTROL_FD, REPORT_READY, 0, 0, 0);
		receive_request(&stub_request, &request.passed);
	}
	request.plan = request.passed.first + PASSED_PLAN;
	request.requested_ns = realtime_ns();
	if (stub_request.magic == WAIT_MAGIC) {
		/* The child was reparented to this process before the daemon sent this request, and may have ended
		 * since. */
		const i32 first = request.passed.first;
		keep_stub_fds(first + WAIT_PASSED_STATUS, first + WAIT_PASSED_QUEUE);
		reap_until_exit(stub_request.pid);
	}
	if (stub_request.intermediate_pid != 0)
		fork_via_intermediate(&stub_request, &request);
	if (stub_request.pid == 0) {
		request.userfaultfd_queue = CONTROL_FD; /* register_userfaultfd() replaces it */
		become_child(&request, 0);
	}
	fork_child(&stub_request, &request);
}

__asm__(".text\n"
	".globl _start\n"
	".hidden _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call stub\n"
	"	ud2\n");
