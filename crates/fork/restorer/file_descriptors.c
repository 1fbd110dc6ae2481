/* Opens the child's file descriptors and places them at their numbers, in the restorer. Files without a path are
 * created by the daemon or by syscalls.c. */
#include "restorer.h"

static void place_descriptor(const struct plan *plan, int from, const struct plan_file_descriptor *wanted)
{
	u32 flags = wanted->close_on_exec ? K_O_CLOEXEC : 0;
	if ((u32)from == wanted->number) /* opened in place; dup3 would refuse */
		check(plan, STEP_PLACE_DESCRIPTOR, CALL3(fcntl, from, 2 /* F_SETFD */, wanted->close_on_exec),
		      wanted->number);
	else
		check(plan, STEP_PLACE_DESCRIPTOR, CALL3(dup3, from, wanted->number, flags), wanted->number);
}

/* Opens or places one descriptor. Descriptors are in ascending order, so the lowest free number is at most the wanted
 * one: a new file never gets a number that a later descriptor needs. */
static void open_descriptor(const struct plan *plan, const struct plan_file_descriptor *wanted)
{
	int file;
	switch (wanted->kind) {
	case DESCRIPTOR_OPEN:
		file = (int)check(plan, STEP_OPEN_FILE, CALL3(open, plan_pointer(plan, wanted->source), wanted->flags, 0),
				  wanted->number);
		if (wanted->offset != 0)
			check(plan, STEP_SEEK, CALL3(lseek, file, wanted->offset, K_SEEK_SET), wanted->number);
		break;
	case DESCRIPTOR_EPOLL:
		file = (int)check(plan, STEP_EPOLL, CALL1(epoll_create1, 0), wanted->number);
		break;
	case DESCRIPTOR_DUPLICATE:
		place_descriptor(plan, (int)wanted->source, wanted);
		return;
	case DESCRIPTOR_FROM_PROCESS:
		return;
	default:
		place_descriptor(plan, (int)(plan->fd_base + wanted->source), wanted);
		return;
	}
	place_descriptor(plan, file, wanted);
	if ((u32)file != wanted->number)
		CALL1(close, file);
}

/* Copies an open file from another process of the tree, so that both share the file offset. The pidfd of that process
 * is moved above all wanted numbers. */
static void copy_descriptor(const struct plan *plan, const struct plan_file_descriptor *wanted)
{
	long pidfd = check(plan, STEP_COPY_DESCRIPTOR, CALL2(pidfd_open, wanted->source, 0), wanted->number);
	long high_pidfd = check(plan, STEP_COPY_DESCRIPTOR, CALL3(fcntl, pidfd, K_F_DUPFD_CLOEXEC, plan->fd_base),
			   wanted->number);
	CALL1(close, pidfd);
	int file = (int)check(plan, STEP_COPY_DESCRIPTOR, CALL3(pidfd_getfd, high_pidfd, wanted->flags, 0), wanted->number);
	CALL1(close, high_pidfd);
	place_descriptor(plan, file, wanted);
	if ((u32)file != wanted->number)
		CALL1(close, file);
}

/* Whether a registration with EPOLLONESHOT has reported its event. The kernel has then cleared all of its events, also EPOLLERR
 * and EPOLLHUP, which every other registration has. */
static int is_disabled(const struct plan_epoll_entry *watch)
{
	return (watch->events & K_EPOLLONESHOT) && !(watch->events & (K_EPOLLERR | K_EPOLLHUP));
}

/* Adds a disabled registration. The kernel disables one only when it reports an event. So this registers for all events, and
 * takes the one of a file that is ready, as a socket is for writing. A file that is not ready gets a registration that reports
 * EPOLLERR and EPOLLHUP, because epoll_ctl(2) cannot leave these out. The instance must have no enabled registration yet. */
static void add_disabled(const struct plan *plan, const struct plan_epoll_entry *watch)
{
	struct k_epoll_event event = { watch->events | K_EPOLL_ALL_EVENTS, watch->data }, taken;
	check(plan, STEP_EPOLL, CALL4(epoll_ctl, watch->epoll, K_EPOLL_CTL_ADD, watch->target, &event), watch->target);
	if (CALL4(epoll_wait, watch->epoll, &taken, 1, 0) == 1)
		return;
	event.events = watch->events;
	check(plan, STEP_EPOLL, CALL4(epoll_ctl, watch->epoll, K_EPOLL_CTL_MOD, watch->target, &event), watch->target);
}

/* Adds an epoll entry. A file that is not open at its registered number gets this number while it is added: an entry
 * keeps the number, and lasts as long as a duplicate of the file is open. */
static void add_epoll_entry(const struct plan *plan, const struct plan_epoll_entry *watch)
{
	struct k_epoll_event event = { watch->events, watch->data };
	u32 target = watch->target;
	long other_file = -1, other_flags = 0;
	if (watch->source != target) {
		other_file = CALL3(fcntl, target, K_F_DUPFD_CLOEXEC, plan->fd_base);
		other_flags = CALL3(fcntl, target, 1 /* F_GETFD */, 0);
		check(plan, STEP_EPOLL, CALL3(dup3, watch->source, target, K_O_CLOEXEC), target);
	}
	if (is_disabled(watch))
		add_disabled(plan, watch);
	else
		check(plan, STEP_EPOLL, CALL4(epoll_ctl, watch->epoll, K_EPOLL_CTL_ADD, target, &event), target);
	if (watch->source == target)
		return;
	if (other_file < 0) {
		CALL1(close, target);
		return;
	}
	check(plan, STEP_EPOLL, CALL3(dup3, other_file, target, other_flags ? K_O_CLOEXEC : 0), target);
	CALL1(close, other_file);
}

void open_descriptors(const struct plan *plan)
{
	const struct plan_file_descriptor *wanted = plan_pointer(plan, plan->file_descriptors.offset);
	const struct plan_epoll_entry *watch = plan_pointer(plan, plan->epolls.offset);
	for (u32 i = 0; i < plan->file_descriptors.count; i++)
		open_descriptor(plan, &wanted[i]);
	wait_barrier(plan, &barrier_page(plan)->files_opened, plan->process_count);
	for (u32 i = 0; i < plan->file_descriptors.count; i++)
		if (wanted[i].kind == DESCRIPTOR_FROM_PROCESS)
			copy_descriptor(plan, &wanted[i]);
	wait_barrier(plan, &barrier_page(plan)->files_copied, plan->process_count);
	/* Epoll entries are added after the files that they watch; disabled ones first. */
	for (u32 disabled = 2; disabled-- > 0;)
		for (u32 i = 0; i < plan->epolls.count; i++)
			if (is_disabled(&watch[i]) == (int)disabled)
				add_epoll_entry(plan, &watch[i]);
}
