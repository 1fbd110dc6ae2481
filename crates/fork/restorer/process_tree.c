/* How the processes of a tree find together: they meet at the gate, join groups, and hear of each other's ends and stops. */
#include "restorer.h"

/* Between two looks at the children: nobody else tells of the end of one that the others wait for. */
#define LOOK_INTERVAL_NS 10000000

/* What waitid(2) tells, as far as it is read. */
struct told {
	i32 signal, error, code, padding, pid, uid, status;
	char rest[SIGINFO_BYTES - 7 * sizeof(i32)];
};

/* A child that is to live has ended, and the tree will never be complete. Where it said itself what it failed at, that is known
 * before. */
static __attribute__((noreturn)) void lose_kin(const struct plan *plan, const struct told *told)
{
	struct report report;
	clear_bytes(&report, sizeof report);
	report.kind = REPORT_KIN_ENDED;
	report.process = plan->process;
	report.detail = (u32)told->pid;
	report.status = told->code == K_CLD_EXITED ? (u32)told->status << 8 : (u32)told->status;
	send_words(control_of(plan), &report);
	for (;;)
		CALL1(exit_group, 127);
}

static void look_at_kin(const struct plan *plan)
{
	const struct plan_kin *kin = at(plan, plan->kin.offset);
	for (u32 i = 0; i < plan->kin.count; i++) {
		struct told told;
		clear_bytes(&told, sizeof told);
		if (kin[i].flags & KIN_ZOMBIE)
			continue;
		CALL5(waitid, K_P_PID, kin[i].pid, &told, K_WEXITED | K_WNOHANG | K_WNOWAIT | K_WALL, 0);
		if (told.pid != 0)
			lose_kin(plan, &told);
	}
}

/* Waits for other processes; sees whether children of this one still live. */
void await_others(const struct plan *plan, u32 *word, u32 wanted)
{
	struct k_timespec interval = { 0, LOOK_INTERVAL_NS };
	for (;;) {
		u32 seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		if (seen == wanted)
			return;
		if (CALL4(futex, word, K_FUTEX_WAIT, seen, &interval) == -K_ETIMEDOUT)
			look_at_kin(plan);
	}
}

/* Waits until so many processes have come here. */
void meet(const struct plan *plan, u32 *word, u32 count)
{
	if (plan->process_count == 1)
		return;
	if (__atomic_add_fetch(word, 1, __ATOMIC_ACQ_REL) == count)
		CALL3(futex, word, K_FUTEX_WAKE, K_FUTEX_ALL); /* zombies wait, too */
	await_others(plan, word, count);
}

/* Waits until something has become of all children that it is to become of. */
static void await(const struct plan *plan, u32 flag, u32 what)
{
	const struct plan_kin *kin = at(plan, plan->kin.offset);
	for (u32 i = 0; i < plan->kin.count; i++) {
		struct told told;
		long error;
		if (!(kin[i].flags & flag))
			continue;
		/* An end comes in a stop's place. */
		do
			error = CALL5(waitid, K_P_PID, kin[i].pid, &told, what | K_WEXITED | K_WNOWAIT | K_WALL, 0);
		while (error == -K_EINTR);
		check(plan, STEP_AWAIT_KIN, error, kin[i].pid);
		if (!(kin[i].flags & KIN_ZOMBIE) && told.code != K_CLD_STOPPED)
			lose_kin(plan, &told);
		if (!(what & K_WNOWAIT) && !(kin[i].flags & KIN_UNHEARD))
			CALL5(waitid, K_P_PID, kin[i].pid, &told, what | K_WALL, 0);
	}
}

/* All are born: groups have their leaders, and ids their processes. */
void join_kin(const struct plan *plan)
{
	meet(plan, &gate_of(plan)->born, plan->process_count);
	if (plan->group != 0)
		check(plan, STEP_GROUP, CALL2(setpgid, 0, plan->group), plan->group);
	/* While SIGCHLD is as it was at birth: ignored, it would have nobody become a zombie. */
	await(plan, KIN_ZOMBIE, K_WEXITED | K_WNOWAIT);
	remove_cores(plan);
}

/* Ends and stops of children are things of the past: what the kernel tells of them now is taken back. All processes have come by
 * here, and are in their groups. */
void await_kin(const struct plan *plan)
{
	const struct plan_kin *kin = at(plan, plan->kin.offset);
	u64 of_children = 1ull << (K_SIGCHLD - 1);
	struct k_timespec at_once = { 0, 0 };
	for (u32 i = 0; i < plan->kin.count; i++)
		if (kin[i].flags & KIN_FORGOTTEN)
			CALL4(wait4, kin[i].pid, 0, K_WALL, 0);
	await(plan, KIN_STOPPED, K_WSTOPPED);
	if (plan->kin.count > 0)
		while (CALL4(rt_sigtimedwait, &of_children, 0, &at_once, sizeof of_children) > 0)
			;
}

/* The first process waits until all others are complete; and need none of farfork's descriptors any more, where it may have a table
 * in common with one of them. */
void await_all(const struct plan *plan)
{
	struct gate *gate = gate_of(plan);
	await_others(plan, &gate->ready, plan->process_count - 1);
	if (plan->flags & PLAN_SHARED_FILES)
		await_others(plan, &gate->closed, plan->process_count - 1);
}

/* A process among others needs farfork's descriptors no more. Of a table that it has in common with some, the last one closes them: they
 * are the way in which the others tell what they fail at. The first process is told before it lets anybody go. */
static void close_own(const struct plan *plan)
{
	struct gate *gate = gate_of(plan);
	if (plan->table_users == 1 ||
	    __atomic_add_fetch(&gate->done[plan->table], 1, __ATOMIC_ACQ_REL) == plan->table_users)
		CALL3(close_range, plan->fd_base, ~0u, 0);
	if (plan->process != 0 && (plan->flags & PLAN_SHARED_FILES) &&
	    __atomic_add_fetch(&gate->closed, 1, __ATOMIC_ACQ_REL) == plan->process_count - 1)
		CALL3(futex, &gate->closed, K_FUTEX_WAKE, K_FUTEX_ALL);
}

/* Complete. The first process opens, and all go; one that was stopped stops here, and goes when it is continued. */
void pass_gate(const struct plan *plan)
{
	const struct plan_thread *leader = at(plan, plan->threads.offset);
	struct gate *gate = gate_of(plan);
	if (plan->process != 0) {
		if (__atomic_add_fetch(&gate->ready, 1, __ATOMIC_ACQ_REL) == plan->process_count - 1)
			CALL3(futex, &gate->ready, K_FUTEX_WAKE, K_FUTEX_ALL);
		/* Its children are looked after until they are complete, too; but a parent may be waiting for it to stop. */
		if (plan->kin.count > 0 && !(plan->flags & PLAN_STOPPED))
			await_others(plan, &gate->ready, plan->process_count - 1);
	}
	close_own(plan);
	if (plan->process_count > 1 && plan->process == 0) {
		__atomic_store_n(&gate->go, 1, __ATOMIC_RELEASE);
		CALL3(futex, &gate->go, K_FUTEX_WAKE, K_FUTEX_ALL);
	}
	if (plan->flags & PLAN_STOPPED)
		CALL2(kill, leader->tid, K_SIGSTOP);
	if (plan->process != 0)
		wait_for(&gate->go, 1);
}
