/* pid 1 of a lean container. It waits in the pool, already in all namespaces and its control group; on request it forks
 * the child, with the pid that it must have; then it reaps, and leaves the child's wait status in a file.
 *
 * It needs no daemon once the child runs. How a process becomes the child: restore.c. */
#include "restorer.h"

/* The daemon's socket, as the container's builder leaves it. */
#define CONTROL_FD 3

struct passed_set {
	u32 count;
	i32 fds[PASSED_MAX];
};

static __attribute__((noreturn)) void leave(int status)
{
	for (;;)
		CALL1(exit_group, status);
}

static __attribute__((noreturn)) void fail(enum step step, long error, u32 detail)
{
	send_report(CONTROL_FD, REPORT_FAILED, step, error, detail);
	leave(1);
}

/* One message with its descriptors. Gives its length; 0 when the daemon is gone. */
static long receive(void *into, u64 bytes, struct passed_set *passed)
{
	struct {
		struct k_cmsghdr header;
		i32 fds[253];
	} control;
	struct k_iovec vector = { into, bytes };
	struct k_msghdr message = { 0, 0, &vector, 1, &control, sizeof control, 0 };
	long received;

	do
		received = CALL3(recvmsg, CONTROL_FD, &message, K_MSG_CMSG_CLOEXEC);
	while (received == -K_EINTR);
	if (received <= 0 || message.control_bytes < sizeof control.header)
		return received;
	if (control.header.level != K_SOL_SOCKET || control.header.type != K_SCM_RIGHTS)
		return -K_EINVAL;
	u64 count = (control.header.bytes - sizeof control.header) / sizeof(i32);
	if (passed->count + count > PASSED_MAX)
		return -K_EINVAL;
	for (u64 i = 0; i < count; i++)
		passed->fds[passed->count++] = control.fds[i];
	return received;
}

static void receive_request(struct stub_request *request, struct passed_set *passed)
{
	long received = receive(request, sizeof *request, passed);
	if (received == 0)
		leave(0);
	if (received != sizeof *request || request->magic != REQUEST_MAGIC ||
	    request->time_offsets_bytes > sizeof request->time_offsets || request->passed_count < PASSED_OWN)
		fail(STEP_RECEIVE, received < 0 ? received : -K_EINVAL, 0);
	while (passed->count < request->passed_count) {
		u32 word;
		received = receive(&word, sizeof word, passed);
		if (received <= 0)
			fail(STEP_RECEIVE, received, passed->count);
	}
}

/* Children to come are born in a new time namespace, whose clocks go on from the parent's (time_namespaces(7)). */
static void set_time(const struct stub_request *request)
{
	if (request->time_offsets_bytes == 0)
		return;
	long error = CALL1(unshare, K_CLONE_NEWTIME);
	if (error < 0)
		fail(STEP_TIME_NAMESPACE, error, 0);
	long file = CALL3(open, "/proc/self/timens_offsets", K_O_WRONLY | K_O_CLOEXEC, 0);
	if (file < 0)
		fail(STEP_TIME_NAMESPACE, file, 1);
	long written = CALL3(write, file, request->time_offsets, request->time_offsets_bytes);
	if (written != (long)request->time_offsets_bytes)
		fail(STEP_TIME_NAMESPACE, written, 2);
	CALL1(close, file);
}

/* Moves farfork's descriptors above all that the child will have, and closes the rest. */
static void move_descriptors(const struct passed_set *passed, int keep, u32 fd_base)
{
	for (u32 i = 0; i < passed->count; i++) {
		long moved = CALL3(fcntl, passed->fds[i], K_F_DUPFD_CLOEXEC, fd_base + i);
		if (moved != fd_base + i)
			fail(STEP_MOVE_DESCRIPTORS, moved, i);
	}
	/* The plan is mapped and the status file is the stub's: their places are taken. */
	long control = CALL3(dup3, CONTROL_FD, fd_base + CHILD_CONTROL, K_O_CLOEXEC);
	if (control < 0)
		fail(STEP_MOVE_DESCRIPTORS, control, CHILD_CONTROL);
	long moved = CALL3(dup3, keep, fd_base + CHILD_KEEP, K_O_CLOEXEC);
	if (moved < 0)
		fail(STEP_MOVE_DESCRIPTORS, moved, CHILD_KEEP);
	CALL3(close_range, 0, fd_base - 1, 0);
	CALL3(close_range, fd_base + passed->count, ~0u, 0);
}

/* What all that is forked needs. */
struct request {
	struct passed_set passed;
	int keep;
	u64 requested_ns;
};

static __attribute__((noreturn)) void become_child(const struct request *request, u64 plan_at);

/* Who is to be pid 1, as the stub is here, is so in a pid namespace inside the container's, and has a /proc that shows it. */
static long fork_with(u32 pid_wanted, u32 exit_signal)
{
	i32 pid = (i32)pid_wanted;
	struct k_clone_args args;
	clear_bytes(&args, sizeof args);
	args.flags = pid_wanted == 1 ? K_CLONE_NEWPID | K_CLONE_NEWNS : 0;
	args.exit_signal = exit_signal;
	args.set_tid = (u64)&pid;
	args.set_tid_size = 1;
	return CALL2(clone3, &args, sizeof args);
}

/* Forks one child, which goes its own way. */
static void bear(const struct request *request, const struct plan *head, const struct plan_kin *kin)
{
	long child = fork_with(kin->pid, kin->exit_signal);
	if (child < 0)
		fail(STEP_FORK, child, kin->pid);
	if (child != 0)
		return;
	if (kin->flags & KIN_ZOMBIE)
		become_zombie(kin, request->passed.fds[head->gate], head->process_count);
	become_child(request, kin->plan_at);
}

/* Begins session and group, and forks the children, those that are of the old session before. All is read from the file: the
 * address space is still a copy of the stub's, and stays so until no child is to have it. */
static void bear_all(const struct request *request, u64 plan_at, const struct plan *head)
{
	for (u32 after = 0; after < 2; after++) {
		for (u32 i = 0; i < head->kin.count; i++) {
			struct plan_kin kin;
			long got = CALL4(pread64, request->passed.fds[PASSED_PLAN], &kin, sizeof kin,
					 plan_at + head->kin.offset + i * sizeof kin);
			if (got != sizeof kin)
				fail(STEP_MAP_PLAN, got < 0 ? got : -K_EINVAL, 2);
			if ((kin.flags & KIN_AFTER_SESSION ? 1 : 0) == after)
				bear(request, head, &kin);
		}
		if (after)
			break;
		long error = 0;
		if (head->flags & PLAN_SESSION_LEADER)
			error = CALL0(setsid);
		else if (head->flags & PLAN_GROUP_LEADER)
			error = CALL2(setpgid, 0, 0);
		if (error < 0)
			fail(STEP_SESSION, error, 0);
	}
}

/* In the fork: maps the region, copies the code there, and goes on in the copy. */
static __attribute__((noreturn)) void become_child(const struct request *request, u64 plan_at)
{
	const struct passed_set *passed = &request->passed;
	struct plan head;
	u64 born_ns = realtime_ns();
	long got = CALL4(pread64, passed->fds[PASSED_PLAN], &head, sizeof head, plan_at);
	if (got != sizeof head || head.magic != PLAN_MAGIC)
		fail(STEP_MAP_PLAN, got < 0 ? got : -K_EINVAL, 0);
	bear_all(request, plan_at, &head);

	long region = CALL6(mmap, head.region_start, head.region_bytes, K_PROT_READ | K_PROT_WRITE,
			    K_MAP_PRIVATE | K_MAP_ANONYMOUS | K_MAP_FIXED_NOREPLACE, -1, 0);
	if (region != (long)head.region_start)
		fail(STEP_MAP_REGION, region, 0);
	long plan = CALL6(mmap, head.region_start + head.plan_offset, head.plan_bytes, K_PROT_READ | K_PROT_WRITE,
			  K_MAP_PRIVATE | K_MAP_FIXED, passed->fds[PASSED_PLAN], plan_at);
	if (plan != (long)(head.region_start + head.plan_offset))
		fail(STEP_MAP_PLAN, plan, 1);
	if (head.process_count > 1) {
		long gate = CALL6(mmap, head.region_start + head.gate_offset, sizeof(struct gate),
				  K_PROT_READ | K_PROT_WRITE, K_MAP_SHARED | K_MAP_FIXED, passed->fds[head.gate], 0);
		if (gate < 0)
			fail(STEP_MEET, gate, 0);
	}
	copy_bytes((void *)region, image_start, image_end - image_start);
	copy_bytes((void *)(region + head.code_bytes), (void *)(plan + head.frames),
		   head.keep_bytes - head.code_bytes);
	long error = CALL3(mprotect, region, head.code_bytes, K_PROT_READ | K_PROT_EXEC);
	if (error < 0)
		fail(STEP_PROTECT_CODE, error, 0);
	move_descriptors(passed, request->keep, head.fd_base);
	scratch_of(&head)->marks_ns[MARK_REQUEST] = request->requested_ns;
	scratch_of(&head)->marks_ns[MARK_BORN] = born_ns;

	u64 entry = (u64)region + ((u64)restore - (u64)image_start);
	u64 stack_top = (u64)region + head.leader_stack_offset + LEADER_STACK_BYTES;
	__asm__ volatile("mov %0, %%rsp\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "call *%1\n\t"
			 "ud2"
			 :
			 : "r"(stack_top), "r"(entry), "D"(plan)
			 : "memory");
	__builtin_unreachable();
}

/* A pair of sockets: into one the child sends its userfaultfd, the other stays with the stub and is never read. The message
 * in it holds the userfaultfd open for as long as the container lives, whoever of its holders is killed: with the last one
 * closed, missing pages would read as zeroes. */
static void make_keep(i32 keep[2])
{
	long error = CALL4(socketpair, K_AF_UNIX, K_SOCK_SEQPACKET | K_O_CLOEXEC, 0, keep);
	if (error < 0)
		fail(STEP_KEEP_USERFAULTFD, error, 0);
}

/* Closes what the child has by now, but the control socket and these two. Gives the status file's new number. */
static int keep_only(int status_file, int keep)
{
	const int first = CONTROL_FD + 1;
	int top = (status_file > keep ? status_file : keep) + 1;
	CALL3(dup3, status_file, top, K_O_CLOEXEC);
	CALL3(dup3, keep, top + 1, K_O_CLOEXEC);
	CALL3(close_range, first, top - 1, 0);
	CALL3(close_range, top + 2, ~0u, 0);
	return top;
}

static void mount_proc(void)
{
	long error = CALL5(mount, "proc", "/proc", "proc", 0xe /* nosuid, nodev, noexec */, 0);
	if (error < 0)
		fail(STEP_MOUNT_PROC, error, 0);
}

/* Reaps all that end, orphans too, until the child has; its end is the container's. */
static __attribute__((noreturn)) void reap(long child, int status_file)
{
	i32 status = 0;
	long ended;
	do
		ended = CALL4(wait4, -1, &status, 0, 0);
	while (ended != child && (ended > 0 || ended == -K_EINTR));
	CALL4(pwrite64, status_file, &status, sizeof status, 0);
	send_report(CONTROL_FD, REPORT_ENDED, 0, 0, (u32)status);
	leave(0);
}

__attribute__((noreturn, used, visibility("hidden"))) void stub(void)
{
	struct stub_request asked;
	struct request request;
	i32 keep[2];
	u64 all_signals = ~0ull;
	struct k_rlimit limit;

	request.passed.count = 0;
	CALL4(rt_sigprocmask, K_SIG_SETMASK, &all_signals, 0, sizeof all_signals);
	if (CALL4(prlimit64, 0, K_RLIMIT_NOFILE, 0, &limit) == 0) {
		limit.soft = limit.hard;
		CALL4(prlimit64, 0, K_RLIMIT_NOFILE, &limit, 0);
	}
	mount_proc();
	send_report(CONTROL_FD, REPORT_READY, 0, 0, 0);

	receive_request(&asked, &request.passed);
	request.requested_ns = realtime_ns();
	set_time(&asked);
	make_keep(keep);
	request.keep = keep[1];
	long child = fork_with(asked.pid, K_SIGCHLD);
	if (child == 0) {
		if (asked.pid == 1)
			mount_proc();
		become_child(&request, 0);
	}
	if (child < 0)
		fail(STEP_FORK, child, asked.pid);
	int status_file = keep_only(request.passed.fds[PASSED_STATUS], keep[0]);
	reap(child, status_file);
}

__asm__(".text\n"
	".globl _start\n"
	".hidden _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call stub\n"
	"	ud2\n");
