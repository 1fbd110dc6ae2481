/* Builds the child's address space, descriptors and threads from a plan, and enters it by rt_sigreturn(2).
 *
 * The code runs from a copy inside the plan's region, which lies in a hole of both the stub's map and the child's. It has
 * no data that can be written, no relocations and no C library. The order of the steps matters; each says why. */
#include "restorer.h"

static void set_process(const struct plan *plan)
{
	const struct plan_action *action = at(plan, plan->actions.offset);
	check(plan, STEP_CHANGE_DIRECTORY, CALL1(chdir, at(plan, plan->cwd)), 0);
	CALL1(umask, plan->umask);
	CALL1(personality, plan->personality);
	for (u32 i = 0; i < plan->actions.count; i++)
		check(plan, STEP_SIGNAL_ACTION,
		      CALL4(rt_sigaction, action[i].signal, &action[i].handler, 0, sizeof(u64)), (u32)action[i].signal);
}

/* A limit may be lowered by anyone; to raise it again needs CAP_SYS_RESOURCE: then the node's own hard limit stands. */
static void set_limits(const struct plan *plan)
{
	const struct plan_limit *limits = at(plan, plan->limits.offset);
	for (u32 i = 0; i < plan->limits.count; i++) {
		struct k_rlimit now, wanted = { limits[i].soft, limits[i].hard };
		if (CALL4(prlimit64, 0, limits[i].resource, &wanted, 0) == 0)
			continue;
		check(plan, STEP_LIMIT, CALL4(prlimit64, 0, limits[i].resource, 0, &now), (u32)limits[i].resource);
		wanted.hard = wanted.hard < now.hard ? wanted.hard : now.hard;
		wanted.soft = wanted.soft < wanted.hard ? wanted.soft : wanted.hard;
		check(plan, STEP_LIMIT, CALL4(prlimit64, 0, limits[i].resource, &wanted, 0), (u32)limits[i].resource);
	}
}

static void report_restored(const struct plan *plan)
{
	send_marked(control_of(plan), REPORT_RESTORED, 0, 0, 0, 0, scratch_of(plan)->marks_ns);
}

/* A paused child waits here, complete, for a word; if the daemon ends, so does it. */
static void await_word(const struct plan *plan)
{
	u32 word;
	long received;
	do
		received = CALL6(recvfrom, control_of(plan), &word, sizeof word, 0, 0, 0);
	while (received == -K_EINTR);
	if (received <= 0)
		give_up(plan, STEP_UNPAUSE, received, 0);
	if (word == WORD_GO_AND_TELL)
		report_restored(plan);
}

/* All that a zygote has too. */
static void build_memory(const struct plan *plan)
{
	park_special(plan);
	unmap_stub(plan);
	/* Others attach what the first one has made. */
	if (plan->process == 0)
		make_calls(plan, plan->calls_before_maps);
	meet(plan, &gate_of(plan)->named, plan->spaces);
	if (plan->process != 0)
		make_calls(plan, plan->calls_before_maps);
	map_all(plan);
	guard_all(plan);
	lock_all(plan);
	fill_eager(plan);
	mark(plan, MARK_MAPPED);
	hand_to_pager(plan);
	mark(plan, MARK_REGISTERED);
	place_special(plan);
	set_mm(plan);
}

/* What of its memory a copy of a zygote does not share with others. */
static void complete_memory(const struct plan *plan)
{
	leave_zygote(plan);
	make_calls(plan, plan->calls_before_maps);
	map_all(plan);
	guard_all(plan);
	lock_all(plan);
	mark(plan, MARK_MAPPED);
	mark(plan, MARK_REGISTERED);
}

void restore(const struct plan *plan)
{
	const struct plan_thread *leader = at(plan, plan->threads.offset);
	struct scratch *scratch = scratch_of(plan);

	mark(plan, MARK_ENTERED);
	if (plan->flags & PLAN_SAME_MEMORY)
		begin_sharing(plan);
	else if (plan->flags & PLAN_COPY)
		complete_memory(plan);
	else
		build_memory(plan);
	if (plan->flags & PLAN_ZYGOTE)
		be_zygote(plan);
	bear_sharers(plan);
	join_kin(plan);
	set_process(plan);
	make_calls(plan, plan->calls_before_files);
	open_descriptors(plan);
	mark(plan, MARK_OPENED);
	make_calls(plan, plan->calls_behind_paths);
	enter_users(plan);

	scratch->inside = plan->threads.count;
	start_threads(plan);
	become_leader(plan, leader);
	wait_for(&scratch->ready, plan->threads.count - 1);
	/* Each thread that has become somebody else has changed this. */
	CALL5(prctl, K_PR_SET_DUMPABLE, plan->dumpable, 0, 0, 0);
	make_calls(plan, plan->calls_at_last);
	await_kin(plan);
	raise_pending(plan, plan->pending, 0);
	set_limits(plan);
	if (plan->process == 0) {
		if (plan->process_count > 1)
			await_all(plan);
		/* The last words of the first process's leader: all is built. */
		report_restored(plan);
		if (plan->flags & PLAN_PAUSED)
			await_word(plan);
	}
	pass_gate(plan);
	__atomic_store_n(&scratch->go, 1, __ATOMIC_RELEASE);
	CALL3(futex, &scratch->go, K_FUTEX_WAKE, plan->threads.count);
	enter(plan, leader);
}
