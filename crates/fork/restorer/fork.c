/* From a process of the stub's program to the restorer inside the child's region: birth with its number, time, descriptors out
 * of the way, the children that it forks itself. */
#include "restorer.h"

/* What is forked from here on has a session keyring of its own: the daemon's may hold keys of whoever started it, and all that
 * children of others add. Where no calls for keys are allowed, or there are none, they are to nobody. */
void leave_keys(void)
{
	long error = CALL2(keyctl, K_KEYCTL_JOIN_SESSION_KEYRING, 0);
	if (error < 0 && error != -K_ENOSYS && error != -K_EPERM)
		fail(STEP_KEYS, error, 0);
}

/* Children to come are born in a new time namespace, whose clocks go on from the parent's (time_namespaces(7)). */
void set_time(const struct stub_request *request)
{
	if (request->time_offsets_bytes == 0)
		return;
	long error = CALL1(unshare, K_CLONE_NEWTIME);
	if (error < 0)
		fail(STEP_TIME_NAMESPACE, error, 0);
	long file = CALL3(open, "/proc/self/timens_offsets", K_O_WRONLY | K_O_CLOEXEC, 0);
	if (file < 0)
		fail(STEP_TIME_NAMESPACE, file, 1);
	long written = CALL3(write, file, request->time_offsets, request->time_offsets_bytes);
	if (written != (long)request->time_offsets_bytes)
		fail(STEP_TIME_NAMESPACE, written, 2);
	CALL1(close, file);
}

/* Moves farfork's descriptors above all that any process of the tree will have, and closes the rest: who is forked from here on is
 * born with them there. The plan comes behind the others, as long as children are to find theirs in it: what is made later, when
 * all have, takes its place. */
static void move_descriptors(struct request *request, u32 fd_base)
{
	struct passed_set *passed = &request->passed;
	for (u32 i = 0; i < passed->count; i++) {
		long moved = CALL3(fcntl, passed->first + (i32)i, K_F_DUPFD_CLOEXEC, fd_base + i);
		if (moved != fd_base + i)
			fail(STEP_MOVE_DESCRIPTORS, moved, i);
	}
	passed->first = (i32)fd_base;
	long plan = CALL3(dup3, fd_base + PASSED_PLAN, fd_base + passed->count, K_O_CLOEXEC);
	if (plan < 0)
		fail(STEP_MOVE_DESCRIPTORS, plan, passed->count);
	request->plan = (int)plan;
	/* The status file is the stub's: its place is taken, as the plan's was. */
	long control = CALL3(dup3, CONTROL_FD, fd_base + CHILD_CONTROL, K_O_CLOEXEC);
	if (control < 0)
		fail(STEP_MOVE_DESCRIPTORS, control, CHILD_CONTROL);
	long keep = CALL3(dup3, request->keep, fd_base + CHILD_KEEP, K_O_CLOEXEC);
	if (keep < 0)
		fail(STEP_MOVE_DESCRIPTORS, keep, CHILD_KEEP);
	request->control = (int)control;
	CALL3(close_range, 0, fd_base - 1, 0);
	CALL3(close_range, plan + 1, ~0u, 0);
}

/* `shared`: flags of what it has in common with the caller. `cgroup`: to be born in, or -1. Who is to be pid 1, as the stub is here, is so in a pid namespace inside the container's, and
 * has a /proc that shows it. */
long fork_with(u32 pid_wanted, u32 exit_signal, u64 shared, int cgroup)
{
	i32 pid = (i32)pid_wanted;
	struct k_clone_args args;
	clear_bytes(&args, sizeof args);
	args.flags = shared | (pid_wanted == 1 ? K_CLONE_NEWPID | K_CLONE_NEWNS : 0);
	args.exit_signal = exit_signal;
	if (cgroup >= 0) {
		args.flags |= K_CLONE_INTO_CGROUP;
		args.cgroup = (u64)cgroup;
	}
	args.set_tid = (u64)&pid;
	args.set_tid_size = 1;
	return CALL2(clone3, &args, sizeof args);
}

/* What a child has in common with its parent from birth. A directory is set by each of those who have it, to the same, when all are born. */
u64 shared_flags(const struct plan_kin *kin)
{
	return (kin->flags & KIN_SAME_DIRECTORY ? K_CLONE_FS : 0) | (kin->flags & KIN_SAME_FILES ? K_CLONE_FILES : 0) |
	       (kin->flags & KIN_SAME_MEMORY ? K_CLONE_VM : 0) | (kin->flags & KIN_SAME_HANDLERS ? K_CLONE_SIGHAND : 0);
}

/* A child that a process is to have. All is read from the file: the address space is still a copy of the stub's, and stays so until no
 * child is to have it. */
static struct plan_kin read_kin(const struct request *request, u64 plan_at, const struct plan *head, u32 index)
{
	struct plan_kin kin;
	long got = CALL4(pread64, request->plan, &kin, sizeof kin,
			 plan_at + head->kin.offset + index * sizeof kin);
	if (got != sizeof kin)
		fail_at(request->control, STEP_MAP_PLAN, got < 0 ? got : -K_EINVAL, 2);
	return kin;
}

/* Forks one child, which goes its own way. Gives its id; 0 in the child. */
static long bear(const struct request *request, const struct plan_kin *kin)
{
	long child = fork_with(kin->pid, kin->exit_signal, shared_flags(kin), -1);
	if (child < 0)
		fail_at(request->control, STEP_FORK, child, kin->pid);
	return child;
}

/* Who has ended led a session, and others inherited that: it begins it again, and has them. When it ends they are its parent's, as they
 * were before. */
static void bear_heirs(struct request *request, u64 plan_at, const struct plan *head, u32 leader)
{
	CALL0(setsid);
	for (u32 i = 0; i < head->kin.count; i++) {
		struct plan_kin kin = read_kin(request, plan_at, head, i);
		if ((kin.flags & KIN_HEIR) && kin.group == leader && bear(request, &kin) == 0)
			become_child(request, kin.plan_at);
	}
}

static void bear_and_leave(struct request *request, u64 plan_at, const struct plan *head, const struct plan_kin *kin)
{
	long child = bear(request, kin);
	if (child != 0) {
		/* It does so itself, but others must not come before it has. */
		if ((kin->flags & KIN_ZOMBIE) && (kin->flags & KIN_GROUP_LEADER) && !(kin->flags & KIN_SESSION_LEADER))
			CALL2(setpgid, child, child);
		return;
	}
	if (!(kin->flags & KIN_ZOMBIE))
		become_child(request, kin->plan_at);
	if (kin->flags & KIN_SESSION_LEADER)
		bear_heirs(request, plan_at, head, kin->pid);
	become_zombie(kin, request->passed.first + (i32)head->gate, head->process_count);
}

/* Its session and group, and the terminal that controls it: that before those are born who are to have it, too, as there is no other
 * way to one. */
void begin_session(const struct plan *head, int control)
{
	long error = 0;
	if (head->flags & PLAN_SESSION_LEADER)
		error = CALL0(setsid);
	else if (head->flags & PLAN_GROUP_LEADER)
		error = CALL2(setpgid, 0, 0);
	if (error < 0)
		fail_at(control, STEP_SESSION, error, 0);
	if (head->terminal != 0)
		error = CALL3(ioctl, head->fd_base + head->terminal, K_TIOCSCTTY, 0);
	if (error < 0)
		fail_at(control, STEP_TERMINAL, error, 0);
}

/* Begins session and group, and forks the children, those that are of the old session before. Who is to be the parent of orphans is so
 * before there can be any. */
static void bear_all(struct request *request, u64 plan_at, const struct plan *head)
{
	if (head->flags & PLAN_SUBREAPER)
		CALL5(prctl, K_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	for (u32 after = 0; after < 2; after++) {
		for (u32 i = 0; i < head->kin.count; i++) {
			struct plan_kin kin = read_kin(request, plan_at, head, i);
			if (!(kin.flags & (KIN_HEIR | KIN_SAME_MEMORY)) && (kin.flags & KIN_AFTER_SESSION ? 1 : 0) == after)
				bear_and_leave(request, plan_at, head, &kin);
		}
		if (!after)
			begin_session(head, request->control);
	}
}

/* Maps the region of a plan, and copies the code there. Gives where the plan stands in it. */
const struct plan *map_region(const struct plan *head, u64 plan_at, int plan_file, int control)
{
	long region = CALL6(mmap, head->region_start, head->region_bytes, K_PROT_READ | K_PROT_WRITE,
			    K_MAP_PRIVATE | K_MAP_ANONYMOUS | K_MAP_FIXED_NOREPLACE, -1, 0);
	if (region != (long)head->region_start)
		fail_at(control, STEP_MAP_REGION, region, 0);
	long plan = CALL6(mmap, head->region_start + head->plan_offset, head->plan_bytes, K_PROT_READ | K_PROT_WRITE,
			  K_MAP_PRIVATE | K_MAP_FIXED, plan_file, plan_at);
	if (plan != (long)(head->region_start + head->plan_offset))
		fail_at(control, STEP_MAP_PLAN, plan, 1);
	if (head->process_count > 1) {
		long gate = CALL6(mmap, head->region_start + head->gate_offset, sizeof(struct gate),
				  K_PROT_READ | K_PROT_WRITE, K_MAP_SHARED | K_MAP_FIXED, head->fd_base + head->gate, 0);
		if (gate < 0)
			fail_at(control, STEP_MEET, gate, 0);
	}
	copy_bytes((void *)region, image_start, image_end - image_start);
	copy_bytes((void *)(region + head->code_bytes), (void *)(plan + head->frames),
		   head->keep_bytes - head->code_bytes);
	long error = CALL3(mprotect, region, head->code_bytes, K_PROT_READ | K_PROT_EXEC);
	if (error < 0)
		fail_at(control, STEP_PROTECT_CODE, error, 0);
	return (const struct plan *)plan;
}

/* In the fork: maps the region, copies the code there, and goes on in the copy. */
void become_child(struct request *request, u64 plan_at)
{
	struct plan head;
	u64 born_ns = realtime_ns();
	long got = CALL4(pread64, request->plan, &head, sizeof head, plan_at);
	if (got != sizeof head || head.magic != PLAN_MAGIC)
		fail_at(request->control, STEP_MAP_PLAN, got < 0 ? got : -K_EINVAL, 0);
	if (head.process == 0)
		move_descriptors(request, head.fd_base);
	bear_all(request, plan_at, &head);
	const struct plan *plan = map_region(&head, plan_at, request->plan, request->control);
	scratch_of(&head)->marks_ns[MARK_REQUEST] = request->requested_ns;
	scratch_of(&head)->marks_ns[MARK_BORN] = born_ns;

	u64 entry = entry_of(&head);
	u64 stack_top = head.region_start + head.leader_stack_offset + LEADER_STACK_BYTES;
	__asm__ volatile("mov %0, %%rsp\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "call *%1\n\t"
			 "ud2"
			 :
			 : "r"(stack_top), "r"(entry), "D"(plan)
			 : "memory");
	__builtin_unreachable();
}
