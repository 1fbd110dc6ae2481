/* How a stub, and what it becomes, hears what the daemon asks, and gives up. */
#include "restorer.h"

__attribute__((noreturn)) void leave(int status)
{
	for (;;)
		CALL1(exit_group, status);
}

__attribute__((noreturn)) void fail_at(int control, enum step step, long error, u32 detail)
{
	send_report(control, REPORT_FAILED, step, error, detail);
	leave(1);
}

__attribute__((noreturn)) void fail(enum step step, long error, u32 detail)
{
	fail_at(CONTROL_FD, step, error, detail);
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

void close_passed(const struct passed_set *passed)
{
	if (passed->count > 0)
		CALL3(close_range, passed->first, passed->first + passed->count - 1, 0);
}

/* The limit on descriptors that whoever forks the child needs, and the child until it has its own. */
static void make_room(u32 descriptors)
{
	struct k_rlimit limit;
	long error = CALL4(prlimit64, 0, K_RLIMIT_NOFILE, 0, &limit);
	if (error == 0 && limit.soft < descriptors) {
		limit.soft = descriptors;
		if (limit.hard < descriptors)
			limit.hard = descriptors;
		error = CALL4(prlimit64, 0, K_RLIMIT_NOFILE, &limit, 0);
	}
	if (error < 0)
		fail(STEP_MAKE_ROOM, error, descriptors);
}

/* How many descriptors at least come with a message; 0: it is none of ours. */
static u32 own_of(u32 magic)
{
	switch (magic) {
	case REQUEST_MAGIC:
		return PASSED_OWN;
	case AWAIT_MAGIC:
		return AWAITED_OWN;
	case NETWORK_MAGIC:
		return NETWORK_OWN;
	default:
		return 0;
	}
}

void receive_request(struct stub_request *request, struct passed_set *passed)
{
	long received = receive(request, sizeof *request, passed);
	if (received == 0)
		leave(0);
	u32 own = own_of(request->magic);
	if (received != sizeof *request || own == 0 ||
	    request->time_offsets_bytes > sizeof request->time_offsets || request->passed_count < own)
		fail(STEP_RECEIVE, received < 0 ? received : -K_EINVAL, 0);
	make_room(request->descriptors);
	while (passed->count < request->passed_count) {
		u32 word;
		received = receive(&word, sizeof word, passed);
		if (received <= 0)
			fail(STEP_RECEIVE, received, passed->count);
	}
}
