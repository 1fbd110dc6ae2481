/* Processes that have their parent's address space (clone(2), CLONE_VM): they are born when that has been built, each with a region of its
 * own in it, and go their ways like others from where all are born.
 *
 *   parent ── session ─ forks ─ memory ─┬─ born ── files, threads ── go
 *                                       └▶ sharer ── session ─┬─ born ── files, threads ── go
 *                                                             └▶ sharer's sharer ── …
 */
#include "restorer.h"

static void bear_sharer(const struct plan *plan, const struct plan_kin *kin)
{
	struct plan head;
	struct k_clone_args args;
	i32 pid = (i32)kin->pid;
	long got = CALL4(pread64, plan->plan_file, &head, sizeof head, kin->plan_at);
	if (got != sizeof head || head.magic != PLAN_MAGIC)
		give_up(plan, STEP_MAP_PLAN, got < 0 ? got : -K_EINVAL, kin->pid);
	const struct plan *own = map_region(&head, kin->plan_at, (int)plan->plan_file, control_of(plan));
	clear_bytes(&args, sizeof args);
	args.flags = shared_flags(kin);
	args.exit_signal = kin->exit_signal;
	args.stack = head.region_start + head.leader_stack_offset;
	args.stack_size = LEADER_STACK_BYTES;
	args.set_tid = (u64)&pid;
	args.set_tid_size = 1;
	check(plan, STEP_FORK, start_task(&args, (void (*)(void *))entry_of(&head), (void *)own), kin->pid);
}

void bear_sharers(const struct plan *plan)
{
	const struct plan_kin *kin = at(plan, plan->kin.offset);
	for (u32 i = 0; i < plan->kin.count; i++)
		if (kin[i].flags & KIN_SAME_MEMORY)
			bear_sharer(plan, &kin[i]);
}

/* In one of them: what others do before they build their memory. */
void begin_sharing(const struct plan *plan)
{
	if (plan->flags & PLAN_SUBREAPER)
		CALL5(prctl, K_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	begin_session(plan, control_of(plan));
	hand_to_pager(plan);
}
