/* Creates the child's threads. Each sets its own attributes and enters the child through its signal frame. Only the
 * code of enter_thread() stays mapped in the child, so it must fit in the first page of the code. */
#include "restorer.h"

/* The leader's arguments to a new thread. */
struct thread_start {
	const struct plan *plan;
	const struct plan_thread *thread;
};

static void set_scheduling(const struct plan *plan, const struct plan_thread *thread)
{
	struct k_sched_param parameter = { (i32)thread->priority };
	if (thread->policy != 0 && thread->sched_attr == 0)
		check(plan, STEP_SCHEDULING, CALL3(sched_setscheduler, 0, thread->policy, &parameter), thread->tid);
	/* Also set a nice value of 0: the inherited one may differ. */
	check(plan, STEP_SCHEDULING, CALL3(setpriority, 0, 0, thread->nice), thread->tid);
	if (thread->sched_attr != 0)
		check(plan, STEP_SCHEDULING, CALL3(sched_setattr, 0, plan_pointer(plan, thread->sched_attr), 0),
		      thread->tid);
}

/* Queues the pending signals again. All signals stay blocked until the thread enters its frame. A process may queue any
 * siginfo to itself, including sender and code. */
void queue_pending_signals(const struct plan *plan, struct plan_span pending_signals, u32 tid)
{
	const struct plan_thread *leader = plan_pointer(plan, plan->threads.offset);
	const char *info = plan_pointer(plan, pending_signals.offset);
	for (u32 i = 0; i < pending_signals.count; i++, info += SIGINFO_BYTES) {
		i32 signal = *(const i32 *)info;
		check(plan, STEP_PENDING_SIGNAL,
		      tid != 0 ? CALL4(rt_tgsigqueueinfo, leader->tid, tid, signal, info)
			       : CALL3(rt_sigqueueinfo, leader->tid, signal, info),
		      (u32)signal);
	}
}

/* Fails if this node's CPU is not vulnerable, or if the node chose the mitigation for all threads. */
static void disable_speculation(u32 kind, u32 how)
{
	if (how != 0)
		CALL5(prctl, K_PR_SET_SPECULATION_CTRL, kind, how, 0, 0);
}

/* Makes the pager install the pages of a range. */
static long populate(u64 address, u64 bytes)
{
	u64 start = address & ~(PAGE_BYTES - 1);
	return CALL3(madvise, start, address + bytes - start, K_MADV_POPULATE_READ);
}

/* Installs the futex words of the call that the thread repeats (src/futex_words.rs). A word that cannot be read
 * is ignored here: the thread's call fails then, as in the parent. */
static void populate_futex_words(const struct plan_futex_words *futex)
{
	const struct k_futex_waitv *vector = (const struct k_futex_waitv *)futex->vector;
	for (u32 i = 0; i < 2; i++)
		if (futex->words[i] != 0)
			populate(futex->words[i], sizeof(u32));
	if (futex->vector_entries == 0 || populate(futex->vector, futex->vector_entries * sizeof *vector) != 0)
		return;
	for (u64 i = 0; i < futex->vector_entries; i++)
		populate(vector[i].address, sizeof(u32));
}

/* Loads the segment selectors, of the local descriptor table for example. fs and gs also get the base of their segment,
 * which must be the thread's. */
static void load_selectors(const struct plan *plan, const struct plan_thread *thread)
{
	u32 ds = thread->selectors[0], es = thread->selectors[1], fs = thread->selectors[2], gs = thread->selectors[3];
	u64 base = 0;
	if (ds != 0)
		__asm__ volatile("mov %0, %%ds" : : "r"(ds));
	if (es != 0)
		__asm__ volatile("mov %0, %%es" : : "r"(es));
	if (fs != 0) {
		__asm__ volatile("mov %0, %%fs" : : "r"(fs));
		CALL2(arch_prctl, K_ARCH_GET_FS, &base);
		check(plan, STEP_TLS, base == thread->fs_base ? 0 : -K_EINVAL, thread->tid);
	}
	if (gs != 0) {
		__asm__ volatile("mov %0, %%gs" : : "r"(gs));
		CALL2(arch_prctl, K_ARCH_GET_GS, &base);
		check(plan, STEP_TLS, base == thread->gs_base ? 0 : -K_EINVAL, thread->tid);
	}
}

/* Settings that a node may lack: NUMA nodes, and privileges for I/O priorities. */
static void set_resource_preferences(const struct plan *plan, const struct plan_thread *thread)
{
	if (thread->io_priority != 0)
		CALL3(ioprio_set, K_IOPRIO_WHO_PROCESS, 0, thread->io_priority);
	if (thread->mce_kill != K_PR_MCE_KILL_DEFAULT)
		CALL5(prctl, K_PR_MCE_KILL, K_PR_MCE_KILL_SET, thread->mce_kill, 0, 0);
	if (thread->is_io_flusher)
		CALL5(prctl, K_PR_SET_IO_FLUSHER, 1, 0, 0, 0);
	if (thread->memory_policy != 0) {
		const struct plan_memory_policy *policy = plan_pointer(plan, thread->memory_policy);
		CALL3(set_mempolicy, policy->mode, policy->node_count ? policy->nodes : 0, policy->node_count);
	}
}

static void set_thread_attributes(const struct plan *plan, const struct plan_thread *thread)
{
	if (thread->gs_base != 0)
		check(plan, STEP_TLS, CALL2(arch_prctl, K_ARCH_SET_GS, thread->gs_base), thread->tid);
	load_selectors(plan, thread);
	if (thread->robust_list != 0)
		check(plan, STEP_ROBUST_LIST, CALL2(set_robust_list, thread->robust_list, thread->robust_list_bytes),
		      thread->tid);
	if (thread->rseq != 0)
		check(plan, STEP_RSEQ,
		      CALL4(rseq, thread->rseq, thread->rseq_bytes, 0, thread->rseq_signature), thread->tid);
	populate_futex_words(&thread->futex_words);
	CALL5(prctl, K_PR_SET_NAME, thread->name, 0, 0, 0);
	CALL5(prctl, K_PR_SET_TIMERSLACK, thread->timer_slack_ns, 0, 0, 0);
	CALL1(personality, thread->personality);
	if (thread->forbids_tsc)
		CALL5(prctl, K_PR_SET_TSC, K_PR_TSC_SIGSEGV, 0, 0, 0);
	disable_speculation(K_PR_SPEC_STORE_BYPASS, thread->store_bypass);
	disable_speculation(K_PR_SPEC_INDIRECT_BRANCH, thread->indirect_branch);
	set_scheduling(plan, thread);
	set_resource_preferences(plan, thread);
	set_credentials(plan, thread->credentials);
	/* Set after the credentials: a change of credentials clears it. */
	if (thread->parent_death_signal != 0)
		CALL5(prctl, K_PR_SET_PDEATHSIG, thread->parent_death_signal, 0, 0, 0);
}

/* Enters the thread through its signal frame.
 *
 * The last thread unmaps the plan, the stacks and all other code, which would otherwise stay in every child. After a
 * thread has decremented threads_inside, it uses only what stays mapped: registers, the filters, and this code in the
 * first page. It installs its own seccomp filters just before its last system call, and then Syscall User Dispatch, whose
 * selector allows that call. If a call fails, the child ends here (ud2).
 *
 * If there are filters for all threads, every other thread increments waiting_threads and sleeps. The leader waits for
 * the count. It requeues the sleepers to a second futex until it has requeued all. A requeued thread sleeps, so it is
 * not about to make a futex call that a filter might forbid. The leader installs the filters for all threads and wakes
 * them. If the filters forbid the wake-up, the other threads poll instead of sleeping.
 *
 *   other   ── count ── sleep ─────┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄──────▶ own filters ── frame
 *   leader  ───────── counted? ── all requeued? ── install for all ── wake ── own filters ── frame */
__attribute__((section(".text.retained"), noinline)) void enter_thread(const struct plan *plan,
								       const struct plan_thread *thread)
{
	u64 unmapped = plan->region_start + plan->retained_bytes;
	u64 unmapped_bytes = plan->region_bytes - plan->retained_bytes;
	register u64 code __asm__("r8") = plan->region_start + RETAINED_CODE_BYTES;
	register u64 code_bytes __asm__("r9") = plan->code_bytes - RETAINED_CODE_BYTES;
	register u64 frame __asm__("r12") = thread->frame + 8; /* above the return address, as after a handler's ret */
	register u32 *inside __asm__("r13") = &scratch_page(plan)->threads_inside;
	register u64 filter __asm__("r14") = thread->filters;
	register u64 common __asm__("r15") = thread->common_filters;
	register u64 is_leader __asm__("rbx") = thread == plan_pointer(plan, plan->threads.offset);
	__asm__ volatile("mov %[frame], %%rsp\n\t"
			 "lock decl (%[inside])\n\t"
			 "jnz 1f\n\t"
			 "mov %[munmap], %%eax\n\t"
			 "syscall\n\t"
			 "mov %[code], %%rdi\n\t"
			 "mov %[code_bytes], %%rsi\n\t"
			 "mov %[munmap], %%eax\n\t"
			 "syscall\n"
			 "1:\n\t"
			 "test %[common], %[common]\n\t"
			 "jz 7f\n\t"
			 "test %[is_leader], %[is_leader]\n\t"
			 "jnz 3f\n\t"
			 /* Another thread. */
			 "lock incl (%[common])\n"
			 "2:\n\t"
			 "cmpl $0, 4(%[common])\n\t"
			 "jne 7f\n\t"
			 "pause\n\t"
			 "cmpl $0, 16(%[common])\n\t"
			 "je 2b\n\t"
			 "lea 4(%[common]), %%rdi\n\t"
			 "mov %[wait], %%esi\n\t"
			 "xor %%edx, %%edx\n\t"
			 "xor %%r10d, %%r10d\n\t"
			 "mov %[futex], %%eax\n\t"
			 "syscall\n\t"
			 "jmp 2b\n"
			 /* The leader. */
			 "3:\n\t"
			 "mov 12(%[common]), %%ecx\n\t"
			 "cmp %%ecx, (%[common])\n\t"
			 "je 4f\n\t"
			 "mov %[yield], %%eax\n\t"
			 "syscall\n\t"
			 "jmp 3b\n"
			 "4:\n\t"
			 "xor %%ebx, %%ebx\n\t"
			 "cmpl $0, 16(%[common])\n\t"
			 "je 6f\n"
			 "5:\n\t"
			 "lea 4(%[common]), %%rdi\n\t"
			 "mov %[requeue], %%esi\n\t"
			 "xor %%edx, %%edx\n\t"
			 "mov %[all], %%r10d\n\t"
			 "lea 8(%[common]), %%r8\n\t"
			 "xor %%r9d, %%r9d\n\t"
			 "mov %[futex], %%eax\n\t"
			 "syscall\n\t"
			 "test %%eax, %%eax\n\t"
			 "js 8f\n\t"
			 "add %%eax, %%ebx\n\t"
			 "cmp 12(%[common]), %%ebx\n\t"
			 "jae 6f\n\t"
			 "mov %[yield], %%eax\n\t"
			 "syscall\n\t"
			 "jmp 5b\n"
			 "6:\n\t"
			 "lea 24(%[common]), %[inside]\n"
			 "9:\n\t"
			 "mov (%[inside]), %%rdi\n\t"
			 "test %%rdi, %%rdi\n\t"
			 "jz 9f\n\t"
			 "mov 8(%[inside]), %%rsi\n\t"
			 "mov 16(%[inside]), %%rdx\n\t"
			 "mov %[seccomp], %%eax\n\t"
			 "syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 8f\n\t"
			 "add $24, %[inside]\n\t"
			 "jmp 9b\n"
			 "9:\n\t"
			 "movl $1, 4(%[common])\n\t"
			 "cmpl $0, 16(%[common])\n\t"
			 "je 7f\n\t"
			 "lea 8(%[common]), %%rdi\n\t"
			 "mov %[wake], %%esi\n\t"
			 "mov %[all], %%edx\n\t"
			 "xor %%r10d, %%r10d\n\t"
			 "xor %%r8d, %%r8d\n\t"
			 "xor %%r9d, %%r9d\n\t"
			 "mov %[futex], %%eax\n\t"
			 "syscall\n"
			 /* Each thread. */
			 "7:\n\t"
			 "test %[filter], %[filter]\n\t"
			 "jz 9f\n"
			 "7:\n\t"
			 "mov (%[filter]), %%rdi\n\t"
			 "test %%rdi, %%rdi\n\t"
			 "jz 9f\n\t"
			 "mov 8(%[filter]), %%rsi\n\t"
			 "mov 16(%[filter]), %%rdx\n\t"
			 "mov %[seccomp], %%eax\n\t"
			 "syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 8f\n\t"
			 "add $24, %[filter]\n\t"
			 "jmp 7b\n"
			 "9:\n\t"
			 "test %[filter], %[filter]\n\t"
			 "jz 9f\n\t"
			 "mov 8(%[filter]), %[inside]\n\t"
			 "test %[inside], %[inside]\n\t"
			 "jz 9f\n\t"
			 "mov %[dispatch], %%edi\n\t"
			 "mov (%[inside]), %%rsi\n\t"
			 "mov 8(%[inside]), %%rdx\n\t"
			 "mov 16(%[inside]), %%r10\n\t"
			 "mov 24(%[inside]), %%r8\n\t"
			 "mov %[prctl], %%eax\n\t"
			 "syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 8f\n"
			 "9:\n\t"
			 "mov %[sigreturn], %%eax\n\t"
			 "syscall\n"
			 "8:\n\t"
			 "ud2"
			 : [filter] "+r"(filter), "+D"(unmapped), "+S"(unmapped_bytes), [inside] "+r"(inside),
			   [is_leader] "+r"(is_leader)
			 : [frame] "r"(frame), [common] "r"(common), [code] "r"(code),
			   [code_bytes] "r"(code_bytes), [munmap] "i"(__NR_munmap),
			   [sigreturn] "i"(__NR_rt_sigreturn), [seccomp] "i"(__NR_seccomp), [futex] "i"(__NR_futex),
			   [yield] "i"(__NR_sched_yield), [wait] "i"(K_FUTEX_WAIT | K_FUTEX_PRIVATE),
			   [wake] "i"(K_FUTEX_WAKE | K_FUTEX_PRIVATE),
			   [requeue] "i"(K_FUTEX_CMP_REQUEUE | K_FUTEX_PRIVATE), [all] "i"(K_FUTEX_ALL),
			   [prctl] "i"(__NR_prctl), [dispatch] "i"(K_PR_SET_SYSCALL_USER_DISPATCH)
			 : "rax", "rcx", "rdx", "r10", "r11", "memory");
	__builtin_unreachable();
}

void futex_wait_until(u32 *futex, u32 wanted)
{
	for (;;) {
		u32 seen = __atomic_load_n(futex, __ATOMIC_ACQUIRE);
		if (seen == wanted)
			return;
		CALL4(futex, futex, K_FUTEX_WAIT, seen, 0);
	}
}

static __attribute__((noreturn)) void run_thread(void *argument)
{
	const struct thread_start *start = argument;
	const struct plan *plan = start->plan;
	const struct plan_thread *thread = start->thread;
	struct thread_scratch *scratch = scratch_page(plan);

	set_thread_attributes(plan, thread);
	queue_pending_signals(plan, thread->pending_signals, thread->tid);
	if (__atomic_add_fetch(&scratch->threads_ready, 1, __ATOMIC_RELEASE) == plan->threads.count - 1)
		CALL3(futex, &scratch->threads_ready, K_FUTEX_WAKE, 1);
	futex_wait_until(&scratch->start, 1);
	enter_thread(plan, thread);
}

/* Clones a task that calls run(run_argument). The new task has an empty stack, so both values are in registers that the
 * system call preserves. */
long start_task(struct k_clone_args *args, void (*run)(void *), void *run_argument)
{
	register void *argument __asm__("r12") = run_argument;
	register void (*entry)(void *) __asm__("r13") = run;
	long result;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %[argument], %%rdi\n\t"
			 "call *%[entry]\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(result)
			 : "a"(__NR_clone3), "D"(args), "S"(sizeof *args), [argument] "r"(argument), [entry] "r"(entry)
			 : "rcx", "r11", "memory");
	return result;
}

void start_threads(const struct plan *plan)
{
	const struct plan_thread *thread = plan_pointer(plan, plan->threads.offset);
	for (u32 i = 1; i < plan->threads.count; i++) {
		struct k_clone_args args;
		i32 tid = (i32)thread[i].tid;
		struct thread_start *start = (struct thread_start *)(thread[i].stack_top - sizeof *start);
		start->plan = plan;
		start->thread = &thread[i];
		clear_bytes(&args, sizeof args);
		args.flags = K_CLONE_VM | K_CLONE_FS | K_CLONE_FILES | K_CLONE_SIGHAND | K_CLONE_THREAD |
			     K_CLONE_SYSVSEM | K_CLONE_SETTLS | K_CLONE_CHILD_CLEARTID;
		args.tls = thread[i].fs_base;
		args.child_tid = thread[i].clear_child_tid;
		args.stack = thread[i].stack_top - THREAD_STACK_BYTES;
		args.stack_size = THREAD_STACK_BYTES - 64; /* `start` is above */
		args.set_tid = (u64)&tid;
		args.set_tid_size = 1;
		check(plan, STEP_THREAD, start_task(&args, run_thread, start), thread[i].tid);
	}
}

void become_leader(const struct plan *plan, const struct plan_thread *leader)
{
	check(plan, STEP_TLS, CALL2(arch_prctl, K_ARCH_SET_FS, leader->fs_base), leader->tid);
	CALL1(set_tid_address, leader->clear_child_tid);
	set_thread_attributes(plan, leader);
}
