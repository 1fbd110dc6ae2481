/* Receives the daemon's requests in a stub or zygote, and reports failures.
 * Every failure here ends the process. */
#include "restorer.h"

__attribute__((noreturn)) void exit_process(int status)
{
	for (;;)
		CALL1(exit_group, status);
}

__attribute__((noreturn)) void fail_on(int control, enum step step, long error, u32 detail)
{
	send_report(control, REPORT_FAILED, step, error, detail);
	exit_process(1);
}

__attribute__((noreturn)) void fail(enum step step, long error, u32 detail)
{
	fail_on(CONTROL_FD, step, error, detail);
}

/* Receives one message with its descriptors. Returns its length; 0 if the daemon has closed its end. */
static long receive_message(void *into, u64 bytes, struct passed_fds *passed)
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
	if (received > 0 && (message.flags & K_MSG_CTRUNC))
		return -K_EMFILE;
	if (received <= 0 || message.control_bytes < sizeof control.header)
		return received;
	if (control.header.level != K_SOL_SOCKET || control.header.type != K_SCM_RIGHTS)
		return -K_EINVAL;
	u64 count = (control.header.bytes - sizeof control.header) / sizeof(i32);
	if (passed->count == 0)
		passed->first = control.fds[0];
	for (u64 i = 0; i < count; i++)
		if (control.fds[i] != passed->first + (i32)passed->count++)
			return -K_EINVAL;
	return received;
}

void close_passed_fds(const struct passed_fds *passed)
{
	if (passed->count > 0)
		CALL3(close_range, passed->first, passed->first + passed->count - 1, 0);
}

/* Raises RLIMIT_NOFILE for the process that forks the child, and for the child until it sets its own limit. */
static void raise_file_limit(u32 fd_limit)
{
	struct k_rlimit limit;
	long error = CALL4(prlimit64, 0, K_RLIMIT_NOFILE, 0, &limit);
	if (error == 0 && limit.soft < fd_limit) {
		limit.soft = fd_limit;
		if (limit.hard < fd_limit)
			limit.hard = fd_limit;
		error = CALL4(prlimit64, 0, K_RLIMIT_NOFILE, &limit, 0);
	}
	if (error < 0)
		fail(STEP_RAISE_FILE_LIMIT, error, fd_limit);
}

/* Returns the minimum number of descriptors of a request; 0 for an unknown magic number. */
static u32 reserved_fd_count(u32 magic)
{
	switch (magic) {
	case REQUEST_MAGIC:
		return PASSED_RESERVED_COUNT;
	case WAIT_MAGIC:
		return WAIT_PASSED_COUNT;
	case NETWORK_MAGIC:
		return NETWORK_PASSED_COUNT;
	default:
		return 0;
	}
}

void receive_request(struct stub_request *request, struct passed_fds *passed)
{
	long received = receive_message(request, sizeof *request, passed);
	if (received == 0)
		exit_process(0);
	u32 reserved = reserved_fd_count(request->magic);
	if (received != sizeof *request || reserved == 0 ||
	    request->time_offsets_bytes > sizeof request->time_offsets || request->passed_count < reserved)
		fail(STEP_RECEIVE, received < 0 ? received : -K_EINVAL, 0);
	raise_file_limit(request->fd_limit);
	while (passed->count < request->passed_count) {
		u32 body;
		received = receive_message(&body, sizeof body, passed);
		if (received <= 0)
			fail(STEP_RECEIVE, received, passed->count);
	}
}
