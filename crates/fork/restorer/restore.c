/* Builds the child's address space, descriptors and threads from a plan, and enters it by rt_sigreturn(2).
 *
 * The code runs from a copy inside the plan's region, which lies in a hole of both the stub's map and the child's. It has
 * no data that can be written, no relocations and no C library. The order of the steps matters; each says why. */
#include "restorer.h"

struct scratch {
	u32 ready; /* threads that stand before their last step */
	u32 go;	   /* set when all may leave */
	u32 inside; /* threads that still use the part of the region that goes */
};

/* What a thread of the child gets from the leader. */
struct start {
	const struct plan *plan;
	const struct plan_thread *thread;
};

static inline const void *at(const struct plan *plan, u32 offset)
{
	return (const char *)plan + offset;
}

static inline struct scratch *scratch_of(const struct plan *plan)
{
	return (struct scratch *)(plan->region_start + plan->scratch_offset);
}

static inline int control_of(const struct plan *plan)
{
	return (int)plan->fd_base + CHILD_CONTROL;
}

static __attribute__((noreturn)) void fail(const struct plan *plan, enum step step, long error, u32 detail)
{
	send_report(control_of(plan), REPORT_FAILED, step, error, detail);
	for (;;)
		CALL1(exit_group, 127);
}

static inline long check(const struct plan *plan, enum step step, long result, u32 detail)
{
	if (result < 0)
		fail(plan, step, result, detail);
	return result;
}

/* ---- address space ---- */

/* The kernel's own mappings wait in the parking area: where they come from and where they go may overlap anything. */
static void park_special(const struct plan *plan)
{
	const struct plan_special *special = at(plan, plan->specials.offset);
	u64 place = plan->region_start + plan->parking_offset;
	for (u32 i = 0; i < plan->specials.count; i++) {
		check(plan, STEP_PARK_SPECIAL,
		      CALL5(mremap, special[i].from, special[i].bytes, special[i].bytes,
			    K_MREMAP_MAYMOVE | K_MREMAP_FIXED, place),
		      i);
		place += special[i].bytes;
	}
}

static void place_special(const struct plan *plan)
{
	const struct plan_special *special = at(plan, plan->specials.offset);
	u64 place = plan->region_start + plan->parking_offset;
	for (u32 i = 0; i < plan->specials.count; i++) {
		check(plan, STEP_PLACE_SPECIAL,
		      CALL5(mremap, place, special[i].bytes, special[i].bytes, K_MREMAP_MAYMOVE | K_MREMAP_FIXED,
			    special[i].to),
		      i);
		place += special[i].bytes;
	}
}

static void unmap_stub(const struct plan *plan)
{
	u64 user_space_end = 0x7ffffffff000ull;
	u64 region_end = plan->region_start + plan->region_bytes;
	check(plan, STEP_UNMAP_STUB, CALL2(munmap, 0, plan->region_start), 0);
	check(plan, STEP_UNMAP_STUB, CALL2(munmap, region_end, user_space_end - region_end), 1);
}

static void advise(const struct plan *plan, const struct plan_mapping *mapping, u32 index)
{
	static const u8 advice_of[][2] = {
		{ MAPPING_HUGE_PAGE, K_MADV_HUGEPAGE },
		{ MAPPING_NO_HUGE_PAGE, K_MADV_NOHUGEPAGE },
		{ MAPPING_WIPE_ON_FORK, K_MADV_WIPEONFORK },
		{ MAPPING_DONT_DUMP, K_MADV_DONTDUMP },
	};
	for (u32 i = 0; i < sizeof advice_of / sizeof advice_of[0]; i++)
		if (mapping->flags & advice_of[i][0])
			check(plan, STEP_ADVISE, CALL3(madvise, mapping->start, mapping->bytes, advice_of[i][1]),
			      index);
	/* Locked on fault: pages come one by one from the pager, as anywhere else. */
	if (mapping->flags & MAPPING_LOCKED)
		check(plan, STEP_ADVISE, CALL3(mlock2, mapping->start, mapping->bytes, K_MLOCK_ONFAULT), index);
}

static void map_one(const struct plan *plan, const struct plan_mapping *mapping, u32 index, int file)
{
	u32 flags = K_MAP_FIXED_NOREPLACE | (mapping->flags & MAPPING_SHARED ? K_MAP_SHARED : K_MAP_PRIVATE);
	if (mapping->kind == MAPPING_ANONYMOUS)
		flags |= K_MAP_ANONYMOUS;
	if (mapping->kind == MAPPING_PASSED)
		file = (int)(plan->fd_base + mapping->source);
	if (mapping->flags & MAPPING_GROWS_DOWN)
		flags |= K_MAP_GROWSDOWN;
	if (mapping->flags & MAPPING_NO_RESERVE)
		flags |= K_MAP_NORESERVE;
	long place = CALL6(mmap, mapping->start, mapping->bytes, mapping->protection, flags, file, mapping->offset);
	if (place != (long)mapping->start)
		fail(plan, STEP_MAP, place < 0 ? place : -K_EINVAL, index);
	if (mapping->flags & ~(MAPPING_SHARED | MAPPING_GROWS_DOWN | MAPPING_NO_RESERVE))
		advise(plan, mapping, index);
}

/* Mappings that name files come sorted by file, so that each file is opened once and one descriptor suffices. */
static void map_all(const struct plan *plan)
{
	const struct plan_mapping *mapping = at(plan, plan->mappings.offset);
	const struct plan_file *files = at(plan, plan->files.offset);
	u32 opened = ~0u;
	int file = -1;

	for (u32 i = 0; i < plan->mappings.count; i++) {
		if (mapping[i].kind == MAPPING_FILE && mapping[i].source != opened) {
			if (file >= 0)
				CALL1(close, file);
			opened = mapping[i].source;
			file = (int)check(plan, STEP_OPEN_MAPPED_FILE,
					  CALL3(open, at(plan, files[opened].path), files[opened].flags, 0), opened);
		}
		map_one(plan, &mapping[i], i, file);
	}
	if (file >= 0)
		CALL1(close, file);
}

/* Before the areas are registered: neither a call nor a fault a page. */
static void fill_eager(const struct plan *plan)
{
	const struct plan_eager *eager = at(plan, plan->eager.offset);
	for (u32 i = 0; i < plan->eager.count; i++)
		copy_bytes((void *)eager[i].address, at(plan, eager[i].offset), eager[i].bytes);
}

static void send_descriptor(const struct plan *plan, int socket, int descriptor)
{
	struct {
		struct k_cmsghdr header;
		i32 fd;
		i32 pad;
	} control = { { sizeof(struct k_cmsghdr) + sizeof(i32), K_SOL_SOCKET, K_SCM_RIGHTS }, descriptor, 0 };
	char word = 'u';
	struct k_iovec vector = { &word, 1 };
	struct k_msghdr message = { 0, 0, &vector, 1, &control, sizeof control, 0 };
	check(plan, STEP_SEND_USERFAULTFD, CALL3(sendmsg, socket, &message, K_MSG_NOSIGNAL), 0);
}

/* The pager need not have received the descriptor when this returns: while it is on its way a fault simply waits. */
static void hand_to_pager(const struct plan *plan)
{
	const struct plan_range *range = at(plan, plan->registered.offset);
	struct k_uffdio_api api = { K_UFFD_API,
				    K_UFFD_FEATURE_EVENT_FORK | K_UFFD_FEATURE_EVENT_REMAP |
					    K_UFFD_FEATURE_EVENT_REMOVE | K_UFFD_FEATURE_EVENT_UNMAP,
				    0 };
	if (plan->registered.count == 0)
		return;
	int uffd = (int)check(plan, STEP_USERFAULTFD, CALL1(userfaultfd, K_O_CLOEXEC | K_O_NONBLOCK), 0);
	check(plan, STEP_USERFAULTFD, CALL3(ioctl, uffd, K_UFFDIO_API, &api), 1);
	for (u32 i = 0; i < plan->registered.count; i++) {
		struct k_uffdio_register area = { range[i].start, range[i].bytes, K_UFFDIO_REGISTER_MODE_MISSING, 0 };
		check(plan, STEP_REGISTER, CALL3(ioctl, uffd, K_UFFDIO_REGISTER, &area), i);
	}
	send_descriptor(plan, (int)plan->fd_base + PASSED_PAGER, uffd);
	CALL1(close, uffd);
}

/* prctl(2), PR_SET_MM_MAP. The executable can be set without CAP_SYS_RESOURCE once nothing of the old one is mapped. */
static void set_mm(const struct plan *plan)
{
	struct {
		u64 addresses[11];
		const void *auxv;
		u32 auxv_bytes;
		u32 exe;
	} map;
	for (u32 i = 0; i < 11; i++)
		map.addresses[i] = plan->mm[i];
	map.auxv = at(plan, plan->auxv.offset);
	map.auxv_bytes = plan->auxv.count * 8;
	map.exe = (u32)check(plan, STEP_OPEN_EXECUTABLE, CALL3(open, at(plan, plan->exe), K_O_RDONLY | K_O_CLOEXEC, 0), 0);
	check(plan, STEP_SET_MM, CALL5(prctl, K_PR_SET_MM, K_PR_SET_MM_MAP, &map, sizeof map, 0), 0);
	CALL1(close, map.exe);
}

/* ---- files ---- */

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
	default:
		move_to(plan, (int)(plan->fd_base + wanted->source), wanted);
		return;
	}
	move_to(plan, file, wanted);
	if ((u32)file != wanted->number)
		CALL1(close, file);
}

static void open_descriptors(const struct plan *plan)
{
	const struct plan_descriptor *wanted = at(plan, plan->descriptors.offset);
	const struct plan_epoll *watch = at(plan, plan->epolls.offset);
	for (u32 i = 0; i < plan->descriptors.count; i++)
		open_descriptor(plan, &wanted[i]);
	/* After all that they watch. */
	for (u32 i = 0; i < plan->epolls.count; i++) {
		struct k_epoll_event event = { watch[i].events, watch[i].data };
		check(plan, STEP_EPOLL,
		      CALL4(epoll_ctl, watch[i].epoll, K_EPOLL_CTL_ADD, watch[i].target, &event), watch[i].target);
	}
}

/* ---- the process ---- */

static void set_process(const struct plan *plan)
{
	const struct plan_action *action = at(plan, plan->actions.offset);
	check(plan, STEP_CHANGE_DIRECTORY, CALL1(chdir, at(plan, plan->cwd)), 0);
	CALL1(umask, plan->umask);
	CALL1(personality, plan->personality);
	if (plan->flags & PLAN_SESSION_LEADER)
		check(plan, STEP_SESSION, CALL0(setsid), 0);
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
		check(plan, STEP_LIMIT, CALL4(prlimit64, 0, limits[i].resource, 0, &now), (u32)limits[i].resource);
		if (CALL4(prlimit64, 0, limits[i].resource, &wanted, 0) == 0)
			continue;
		wanted.hard = wanted.hard < now.hard ? wanted.hard : now.hard;
		wanted.soft = wanted.soft < wanted.hard ? wanted.soft : wanted.hard;
		check(plan, STEP_LIMIT, CALL4(prlimit64, 0, limits[i].resource, &wanted, 0), (u32)limits[i].resource);
	}
}

/* ---- threads ---- */

static void set_capabilities(const struct plan *plan, const struct plan_credentials *wanted)
{
	struct k_capability_header header = { K_CAPABILITY_VERSION_3, 0 };
	struct k_capability_data data[2];
	for (u32 word = 0; word < 2; word++) {
		data[word].effective = (u32)(wanted->effective >> (32 * word));
		data[word].permitted = (u32)(wanted->permitted >> (32 * word));
		data[word].inheritable = (u32)(wanted->inheritable >> (32 * word));
	}
	check(plan, STEP_CREDENTIALS, CALL2(capset, &header, data), 4);
	for (u32 bit = 0; bit < 64; bit++)
		if (wanted->ambient >> bit & 1)
			check(plan, STEP_CREDENTIALS,
			      CALL5(prctl, K_PR_CAP_AMBIENT, K_PR_CAP_AMBIENT_RAISE, bit, 0, 0), 5);
}

/* Privileges go last and in this order: each step needs those that a later one takes away. */
static void set_credentials(const struct plan *plan, u32 index)
{
	if (index == CREDENTIALS_AS_THEY_ARE)
		return;
	const struct plan_credentials *wanted =
		(const struct plan_credentials *)at(plan, plan->credentials.offset) + index;
	for (u32 bit = 0; bit < 64; bit++)
		if (!(wanted->bounding >> bit & 1) && CALL5(prctl, K_PR_CAPBSET_READ, bit, 0, 0, 0) == 1)
			check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_CAPBSET_DROP, bit, 0, 0, 0), 0);
	/* Changing ids must not touch the capabilities yet. */
	check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_SET_SECUREBITS, K_SECBIT_NO_SETUID_FIXUP, 0, 0, 0), 1);
	check(plan, STEP_CREDENTIALS, CALL2(setgroups, wanted->groups.count, at(plan, wanted->groups.offset)), 2);
	check(plan, STEP_CREDENTIALS, CALL3(setresgid, wanted->gids[0], wanted->gids[1], wanted->gids[2]), 2);
	CALL1(setfsgid, wanted->gids[3]);
	check(plan, STEP_CREDENTIALS, CALL3(setresuid, wanted->uids[0], wanted->uids[1], wanted->uids[2]), 3);
	CALL1(setfsuid, wanted->uids[3]);
	check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_SET_SECUREBITS, wanted->securebits, 0, 0, 0), 1);
	set_capabilities(plan, wanted);
	if (wanted->no_new_privileges)
		check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 6);
}

static void set_scheduling(const struct plan *plan, const struct plan_thread *thread)
{
	struct k_sched_param parameter = { (i32)thread->priority };
	if (thread->policy != 0)
		check(plan, STEP_SCHEDULING, CALL3(sched_setscheduler, 0, thread->policy, &parameter), thread->tid);
	if (thread->nice != 0)
		check(plan, STEP_SCHEDULING, CALL3(setpriority, 0, 0, thread->nice), thread->tid);
}

/* Signals that were pending are pending again: all are blocked until the thread enters its own mask. One may send to
 * itself what it likes, sender and code included. */
static void raise_pending(const struct plan *plan, struct plan_span pending, u32 tid)
{
	const struct plan_thread *leader = at(plan, plan->threads.offset);
	const char *info = at(plan, pending.offset);
	for (u32 i = 0; i < pending.count; i++, info += SIGINFO_BYTES) {
		i32 signal = *(const i32 *)info;
		check(plan, STEP_PENDING_SIGNAL,
		      tid != 0 ? CALL4(rt_tgsigqueueinfo, leader->tid, tid, signal, info)
			       : CALL3(rt_sigqueueinfo, leader->tid, signal, info),
		      (u32)signal);
	}
}

/* What each thread does for itself. */
static void set_thread(const struct plan *plan, const struct plan_thread *thread)
{
	if (thread->gs_base != 0)
		check(plan, STEP_TLS, CALL2(arch_prctl, K_ARCH_SET_GS, thread->gs_base), thread->tid);
	if (thread->robust_list != 0)
		check(plan, STEP_ROBUST_LIST, CALL2(set_robust_list, thread->robust_list, thread->robust_list_bytes),
		      thread->tid);
	if (thread->rseq != 0)
		check(plan, STEP_RSEQ,
		      CALL4(rseq, thread->rseq, thread->rseq_bytes, 0, thread->rseq_signature), thread->tid);
	CALL5(prctl, K_PR_SET_NAME, thread->name, 0, 0, 0);
	CALL5(prctl, K_PR_SET_TIMERSLACK, thread->timer_slack_ns, 0, 0, 0);
	set_scheduling(plan, thread);
	set_credentials(plan, thread->credentials);
	/* Behind the credentials, which clear it. */
	if (thread->parent_death_signal != 0)
		CALL5(prctl, K_PR_SET_PDEATHSIG, thread->parent_death_signal, 0, 0, 0);
	raise_pending(plan, thread->pending, thread->tid);
}

/* Enters the thread through its signal frame. Whoever is last takes the plan, the stacks and this page's neighbours away;
 * after the count nothing but registers is used, for the stack may be gone. */
static __attribute__((noreturn)) void enter(const struct plan *plan, const struct plan_thread *thread)
{
	u64 gone = plan->region_start + plan->keep_bytes;
	u64 gone_bytes = plan->region_bytes - plan->keep_bytes;
	register u64 frame __asm__("r12") = thread->frame + 8; /* behind the return address, as a handler's ret leaves it */
	register u32 *inside __asm__("r13") = &scratch_of(plan)->inside;
	__asm__ volatile("mov %[frame], %%rsp\n\t"
			 "lock decl (%[inside])\n\t"
			 "jnz 1f\n\t"
			 "mov %[munmap], %%eax\n\t"
			 "syscall\n"
			 "1:\n\t"
			 "mov %[sigreturn], %%eax\n\t"
			 "syscall\n\t"
			 "ud2"
			 :
			 : [frame] "r"(frame), [inside] "r"(inside), "D"(gone), "S"(gone_bytes),
			   [munmap] "i"(__NR_munmap), [sigreturn] "i"(__NR_rt_sigreturn)
			 : "rax", "rcx", "r11", "memory");
	__builtin_unreachable();
}

static void wait_for(u32 *word, u32 wanted)
{
	for (;;) {
		u32 seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		if (seen == wanted)
			return;
		CALL4(futex, word, K_FUTEX_WAIT, seen, 0);
	}
}

static __attribute__((noreturn, used)) void run_thread(struct start *start)
{
	const struct plan *plan = start->plan;
	const struct plan_thread *thread = start->thread;
	struct scratch *scratch = scratch_of(plan);

	set_thread(plan, thread);
	if (__atomic_add_fetch(&scratch->ready, 1, __ATOMIC_RELEASE) == plan->threads.count - 1)
		CALL3(futex, &scratch->ready, K_FUTEX_WAKE, 1);
	wait_for(&scratch->go, 1);
	enter(plan, thread);
}

/* The new thread takes its argument from a register that the call keeps: it has no stack frame yet. */
static long start_thread(struct k_clone_args *args, struct start *start)
{
	register struct start *argument __asm__("r12") = start;
	register void (*entry)(struct start *) __asm__("r13") = (void (*)(struct start *))run_thread;
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

static void start_threads(const struct plan *plan)
{
	const struct plan_thread *thread = at(plan, plan->threads.offset);
	for (u32 i = 1; i < plan->threads.count; i++) {
		struct k_clone_args args;
		i32 tid = (i32)thread[i].tid;
		struct start *start = (struct start *)(thread[i].stack_top - sizeof *start);
		start->plan = plan;
		start->thread = &thread[i];
		clear_bytes(&args, sizeof args);
		args.flags = K_CLONE_VM | K_CLONE_FS | K_CLONE_FILES | K_CLONE_SIGHAND | K_CLONE_THREAD |
			     K_CLONE_SYSVSEM | K_CLONE_SETTLS | K_CLONE_CHILD_CLEARTID;
		args.tls = thread[i].fs_base;
		args.child_tid = thread[i].clear_child_tid;
		args.stack = thread[i].stack_top - THREAD_STACK_BYTES;
		args.stack_size = THREAD_STACK_BYTES - 64; /* `start` stands above */
		args.set_tid = (u64)&tid;
		args.set_tid_size = 1;
		check(plan, STEP_THREAD, start_thread(&args, start), thread[i].tid);
	}
}

/* The leader's last words: all is built. A paused child waits here, complete, for a word; if the daemon ends, so does it. */
static void report_restored(const struct plan *plan)
{
	send_report(control_of(plan), REPORT_RESTORED, 0, 0, 0);
	if (plan->flags & PLAN_PAUSED) {
		u32 word;
		long received;
		do
			received = CALL6(recvfrom, control_of(plan), &word, sizeof word, 0, 0, 0);
		while (received == -K_EINTR);
		if (received <= 0)
			fail(plan, STEP_UNPAUSE, received, 0);
	}
	CALL3(close_range, plan->fd_base, ~0u, 0);
}

static void become_leader(const struct plan *plan, const struct plan_thread *leader)
{
	check(plan, STEP_TLS, CALL2(arch_prctl, K_ARCH_SET_FS, leader->fs_base), leader->tid);
	CALL1(set_tid_address, leader->clear_child_tid);
	set_thread(plan, leader);
	raise_pending(plan, plan->pending, 0);
	CALL5(prctl, K_PR_SET_DUMPABLE, plan->dumpable, 0, 0, 0);
}

void restore(const struct plan *plan)
{
	const struct plan_thread *leader = at(plan, plan->threads.offset);
	struct scratch *scratch = scratch_of(plan);

	park_special(plan);
	unmap_stub(plan);
	map_all(plan);
	fill_eager(plan);
	hand_to_pager(plan);
	place_special(plan);
	set_mm(plan);
	set_process(plan);
	open_descriptors(plan);

	scratch->inside = plan->threads.count;
	start_threads(plan);
	become_leader(plan, leader);
	wait_for(&scratch->ready, plan->threads.count - 1);
	set_limits(plan);
	report_restored(plan);
	__atomic_store_n(&scratch->go, 1, __ATOMIC_RELEASE);
	CALL3(futex, &scratch->go, K_FUTEX_WAKE, plan->threads.count);
	enter(plan, leader);
}
