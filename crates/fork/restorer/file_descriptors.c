/* The child's file descriptors. */
#include "restorer.h"

static void move_to(const struct plan *plan, int from, const struct plan_descriptor *wanted)
{
	u32 flags = wanted->close_on_exec ? K_O_CLOEXEC : 0;
	if ((u32)from == wanted->number) /* opened in place; dup3 would refuse */
		check(plan, STEP_PLACE_DESCRIPTOR, CALL3(fcntl, from, 2 /* F_SETFD */, wanted->close_on_exec),
		      wanted->number);
	else
		check(plan, STEP_PLACE_DESCRIPTOR, CALL3(dup3, from, wanted->number, flags), wanted->number);
}

/* Descriptors come in ascending order, and the lowest free number is the one wanted or a lower one: a file that is opened
 * never lands on a number that is wanted later, but by filling it at once. */
static void open_descriptor(const struct plan *plan, const struct plan_descriptor *wanted)
{
	int file;
	switch (wanted->kind) {
	case DESCRIPTOR_OPEN:
		file = (int)check(plan, STEP_OPEN_FILE, CALL3(open, at(plan, wanted->source), wanted->flags, 0),
				  wanted->number);
		if (wanted->offset != 0)
			check(plan, STEP_SEEK, CALL3(lseek, file, wanted->offset, K_SEEK_SET), wanted->number);
		break;
	case DESCRIPTOR_EPOLL:
		file = (int)check(plan, STEP_EPOLL, CALL1(epoll_create1, 0), wanted->number);
		break;
	case DESCRIPTOR_SAME:
		move_to(plan, (int)wanted->source, wanted);
		return;
	case DESCRIPTOR_TAKEN:
		return;
	default:
		move_to(plan, (int)(plan->fd_base + wanted->source), wanted);
		return;
	}
	move_to(plan, file, wanted);
	if ((u32)file != wanted->number)
		CALL1(close, file);
}

/* An open file that another process of the tree has, so that both share its position. The process is held above all numbers
 * that are wanted. */
static void take_descriptor(const struct plan *plan, const struct plan_descriptor *wanted)
{
	long process = check(plan, STEP_TAKE_DESCRIPTOR, CALL2(pidfd_open, wanted->source, 0), wanted->number);
	long above = check(plan, STEP_TAKE_DESCRIPTOR, CALL3(fcntl, process, K_F_DUPFD_CLOEXEC, plan->fd_base),
			   wanted->number);
	CALL1(close, process);
	int file = (int)check(plan, STEP_TAKE_DESCRIPTOR, CALL3(pidfd_getfd, above, wanted->flags, 0), wanted->number);
	CALL1(close, above);
	move_to(plan, file, wanted);
	if ((u32)file != wanted->number)
		CALL1(close, file);
}

void open_descriptors(const struct plan *plan)
{
	const struct plan_descriptor *wanted = at(plan, plan->descriptors.offset);
	const struct plan_epoll *watch = at(plan, plan->epolls.offset);
	for (u32 i = 0; i < plan->descriptors.count; i++)
		open_descriptor(plan, &wanted[i]);
	meet(plan, &gate_of(plan)->opened, plan->process_count);
	for (u32 i = 0; i < plan->descriptors.count; i++)
		if (wanted[i].kind == DESCRIPTOR_TAKEN)
			take_descriptor(plan, &wanted[i]);
	meet(plan, &gate_of(plan)->taken, plan->process_count);
	/* After all that they watch. */
	for (u32 i = 0; i < plan->epolls.count; i++) {
		struct k_epoll_event event = { watch[i].events, watch[i].data };
		check(plan, STEP_EPOLL,
		      CALL4(epoll_ctl, watch[i].epoll, K_EPOLL_CTL_ADD, watch[i].target, &event), watch[i].target);
	}
}
