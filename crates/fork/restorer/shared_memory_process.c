/* Processes of a tree that share their parent's address space (clone(2), CLONE_VM). The parent forks them when it has
 * built the memory, because they share it. Each has its own region in this memory. After the barrier processes_forked,
 * they continue like other processes. */
#include "restorer.h"

/*   parent ── session ─ forks ─ memory ─┬─ all forked ── files, threads ── start
 *                                       └▶ child ── session ─┬─ all forked ── files, threads ── start
 *                                                            └▶ child that shares its memory ── … */

static void fork_shared_memory_child(const struct plan *plan, const struct plan_child *child)
{
	struct plan head;
	struct k_clone_args args;
	i32 pid = (i32)child->pid;
	long bytes_read = CALL4(pread64, plan->plan_file, &head, sizeof head, child->plan_offset);
	if (bytes_read != sizeof head || head.magic != PLAN_MAGIC)
		fail_restore(plan, STEP_MAP_PLAN, bytes_read < 0 ? bytes_read : -K_EINVAL, child->pid);
	const struct plan *child_plan = map_region(&head, child->plan_offset, (int)plan->plan_file, control_fd(plan));
	clear_bytes(&args, sizeof args);
	args.flags = clone_sharing_flags(child);
	args.exit_signal = child->exit_signal;
	args.stack = head.region_start + head.leader_stack_offset;
	args.stack_size = LEADER_STACK_BYTES;
	args.set_tid = (u64)&pid;
	args.set_tid_size = 1;
	check(plan, STEP_FORK, start_task(&args, (void (*)(void *))restorer_entry(&head), (void *)child_plan),
	      child->pid);
}

void fork_shared_memory_children(const struct plan *plan)
{
	const struct plan_child *children = plan_pointer(plan, plan->children.offset);
	for (u32 i = 0; i < plan->children.count; i++)
		if (children[i].flags & CHILD_SHARES_MEMORY)
			fork_shared_memory_child(plan, &children[i]);
}

/* The first steps of a process that shares its parent's memory. Other processes take these steps before they build
 * their memory. */
void start_shared_memory_process(const struct plan *plan)
{
	if (plan->flags & PLAN_SUBREAPER)
		CALL5(prctl, K_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	begin_session(plan, control_fd(plan));
	register_userfaultfd(plan);
}
