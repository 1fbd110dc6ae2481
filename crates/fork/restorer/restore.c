/* The restorer: builds the child's address space, descriptors and threads from a plan, and enters the child by
 * rt_sigreturn(2). The code runs from a copy in the plan's region, which is in a hole of both the stub's memory map and
 * the child's. It has no writable data, no relocations and no C library. The order of the steps matters; comments give
 * the reasons. */
#include "restorer.h"

static void set_process_attributes(const struct plan *plan)
{
	const struct plan_signal_action *action = plan_pointer(plan, plan->signal_actions.offset);
	check(plan, STEP_CHANGE_DIRECTORY, CALL1(chdir, plan_pointer(plan, plan->cwd)), 0);
	CALL1(umask, plan->umask);
	CALL1(personality, plan->personality);
	for (u32 i = 0; i < plan->signal_actions.count; i++)
		check(plan, STEP_SIGNAL_ACTION,
		      CALL4(rt_sigaction, action[i].signal, &action[i].handler, 0, sizeof(u64)), (u32)action[i].signal);
}

/* Sets the resource limits. Raising a hard limit needs CAP_SYS_RESOURCE; without this capability, the node's hard limit
 * applies. */
static void set_limits(const struct plan *plan)
{
	const struct plan_resource_limit *limits = plan_pointer(plan, plan->resource_limits.offset);
	for (u32 i = 0; i < plan->resource_limits.count; i++) {
		struct k_rlimit now, wanted = { limits[i].soft, limits[i].hard };
		if (CALL4(prlimit64, 0, limits[i].resource, &wanted, 0) == 0)
			continue;
		check(plan, STEP_LIMIT, CALL4(prlimit64, 0, limits[i].resource, 0, &now), (u32)limits[i].resource);
		wanted.hard = wanted.hard < now.hard ? wanted.hard : now.hard;
		wanted.soft = wanted.soft < wanted.hard ? wanted.soft : wanted.hard;
		check(plan, STEP_LIMIT, CALL4(prlimit64, 0, limits[i].resource, &wanted, 0), (u32)limits[i].resource);
	}
}

/* Installs farfork's own filter in all threads of the process, which are waiting. This precedes the start of any
 * process of the tree, which could otherwise see a process without the filter. The filter allows every system call of
 * the rest of the restore. */
static void install_confinement(const struct plan *plan)
{
	const struct plan_seccomp_filter *filter = (const struct plan_seccomp_filter *)plan->confinement_filters;
	for (; filter && filter->operation; filter++)
		check(plan, STEP_CONFINEMENT, CALL3(seccomp, filter->operation, filter->flags, filter->program), 0);
}

static void report_restored(const struct plan *plan)
{
	send_report_with_marks(control_fd(plan), REPORT_RESTORED, 0, 0, 0, 0, scratch_page(plan)->marks_ns);
}

/* A paused child is complete, and waits here for a command. If the daemon ends, the child fails. */
static void wait_unpause(const struct plan *plan)
{
	u32 command;
	long received;
	do
		received = CALL6(recvfrom, control_fd(plan), &command, sizeof command, 0, 0, 0);
	while (received == -K_EINTR);
	if (received <= 0)
		fail_restore(plan, STEP_UNPAUSE, received, 0);
	if (command == COMMAND_START_AND_REPORT)
		report_restored(plan);
}

/* Builds the whole address space, also for a zygote. */
static void build_address_space(const struct plan *plan)
{
	stage_special_mappings(plan);
	unmap_stub(plan);
	/* The first process creates the shared memory that the others attach. */
	if (plan->process_index == 0)
		run_syscalls(plan, plan->syscalls_before_mappings);
	wait_barrier(plan, &barrier_page(plan)->shared_memory_ready, plan->address_space_count);
	if (plan->process_index != 0)
		run_syscalls(plan, plan->syscalls_before_mappings);
	map_all_mappings(plan);
	install_guards(plan);
	lock_ranges(plan);
	copy_eager_bytes(plan);
	set_mark(plan, MARK_MAPPED);
	register_userfaultfd(plan);
	set_mark(plan, MARK_REGISTERED);
	place_special_mappings(plan);
	set_mm(plan);
}

/* Maps the memory that a zygote's copy does not inherit. */
static void complete_copy_address_space(const struct plan *plan)
{
	unmap_zygote_region(plan);
	run_syscalls(plan, plan->syscalls_before_mappings);
	map_all_mappings(plan);
	install_guards(plan);
	lock_ranges(plan);
	set_mark(plan, MARK_MAPPED);
	set_mark(plan, MARK_REGISTERED);
}

void restore(const struct plan *plan)
{
	const struct plan_thread *leader = plan_pointer(plan, plan->threads.offset);
	struct thread_scratch *scratch = scratch_page(plan);

	set_mark(plan, MARK_RESTORER_ENTERED);
	if (plan->flags & PLAN_SHARES_MEMORY)
		start_shared_memory_process(plan);
	else if (plan->flags & PLAN_ZYGOTE_COPY)
		complete_copy_address_space(plan);
	else
		build_address_space(plan);
	if (plan->flags & PLAN_ZYGOTE)
		run_zygote(plan);
	fork_shared_memory_children(plan);
	join_group_and_wait_zombies(plan);
	set_process_attributes(plan);
	run_syscalls(plan, plan->syscalls_before_files);
	open_descriptors(plan);
	set_mark(plan, MARK_FILES_OPENED);
	run_syscalls(plan, plan->syscalls_after_paths);
	enter_user_namespace(plan);

	scratch->threads_inside = plan->threads.count;
	start_threads(plan);
	become_leader(plan, leader);
	futex_wait_until(&scratch->threads_ready, plan->threads.count - 1);
	/* Set the attribute after all threads have changed their credentials, which resets it. */
	CALL5(prctl, K_PR_SET_DUMPABLE, plan->dumpable, 0, 0, 0);
	run_syscalls(plan, plan->syscalls_before_start);
	/* Before the leader has its pending signals: the call discards those of this thread, too. */
	consume_child_events(plan);
	queue_pending_signals(plan, leader->pending_signals, leader->tid);
	queue_pending_signals(plan, plan->pending_signals, 0);
	set_limits(plan);
	install_confinement(plan);
	if (plan->process_index == 0) {
		if (plan->process_count > 1)
			wait_tree_ready(plan);
		/* The whole tree is restored. */
		report_restored(plan);
		if (plan->flags & PLAN_PAUSED)
			wait_unpause(plan);
	}
	wait_tree_start(plan);
	__atomic_store_n(&scratch->start, 1, __ATOMIC_RELEASE);
	CALL3(futex, &scratch->start, K_FUTEX_WAKE, plan->threads.count);
	enter_thread(plan, leader);
}
