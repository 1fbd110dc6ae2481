/* Forks the processes of a child's tree, and jumps to the restorer in each child's region. Sets pid and time namespace,
 * moves farfork's descriptors above those of the child, and forks each process's own children. Children are forked
 * before the address space changes, because each builds its own from the stub's. */
#include "restorer.h"

/* Gives this process and its future children a new session keyring. The daemon's keyring may hold keys of the user who
 * started it, and keys that other children add. Without keyctl(2) (ENOSYS, EPERM), no process can use keys. */
void join_new_session_keyring(void)
{
	long error = CALL2(keyctl, K_KEYCTL_JOIN_SESSION_KEYRING, 0);
	if (error < 0 && error != -K_ENOSYS && error != -K_EPERM)
		fail(STEP_SESSION_KEYRING, error, 0);
}

/* Makes future children start in a new time namespace (time_namespaces(7)), whose clocks continue from those of the
 * captured parent. */
void unshare_time_namespace(const struct stub_request *request)
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

/* Moves farfork's descriptors above all numbers that a process of the tree will use, and closes the rest. Future
 * children inherit these numbers. The plan file gets the number after them, because children still read their plans
 * from it. The first created file reuses this number. */
static void move_descriptors(struct restore_request *request, u32 fd_base)
{
	struct passed_fds *passed = &request->passed;
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
	/* The child does not use the status file and the first plan descriptor: the control socket and the queue take
	 * these slots. */
	long control = CALL3(dup3, CONTROL_FD, fd_base + RESTORER_SLOT_CONTROL, K_O_CLOEXEC);
	if (control < 0)
		fail(STEP_MOVE_DESCRIPTORS, control, RESTORER_SLOT_CONTROL);
	long queue = CALL3(dup3, request->userfaultfd_queue, fd_base + RESTORER_SLOT_QUEUE, K_O_CLOEXEC);
	if (queue < 0)
		fail(STEP_MOVE_DESCRIPTORS, queue, RESTORER_SLOT_QUEUE);
	request->control = (int)control;
	CALL3(close_range, 0, fd_base - 1, 0);
	CALL3(close_range, plan + 1, ~0u, 0);
}

/* Forks a child with the pid `pid_wanted`. `shared`: CLONE_* flags of resources that the child shares with the caller.
 * `cgroup`: the child's cgroup, or -1. A child with pid 1 gets its own pid namespace, because the container's pid 1 is
 * the stub, and a mount namespace for its /proc. */
long fork_with_pid(u32 pid_wanted, u32 exit_signal, u64 shared, int cgroup)
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

/* Returns the CLONE_* flags of the resources that a child shares with its parent. Processes that share a working
 * directory all set it to the same value, after all forks. */
u64 clone_sharing_flags(const struct plan_child *child)
{
	return (child->flags & CHILD_SHARES_DIRECTORY ? K_CLONE_FS : 0) |
	       (child->flags & CHILD_SHARES_FILES ? K_CLONE_FILES : 0) |
	       (child->flags & CHILD_SHARES_MEMORY ? K_CLONE_VM : 0) |
	       (child->flags & CHILD_SHARES_HANDLERS ? K_CLONE_SIGHAND : 0);
}

/* Reads one child of a process from the plan file. Does not map the plan: the address space must stay a copy of the
 * stub's until all children that inherit it are forked. */
static struct plan_child read_plan_child(const struct restore_request *request, u64 plan_file_offset,
					 const struct plan *head, u32 index)
{
	struct plan_child child;
	long bytes_read = CALL4(pread64, request->plan, &child, sizeof child,
			 plan_file_offset + head->children.offset + index * sizeof child);
	if (bytes_read != sizeof child)
		fail_on(request->control, STEP_MAP_PLAN, bytes_read < 0 ? bytes_read : -K_EINVAL, 2);
	return child;
}

/* Forks one child. Returns its pid; 0 in the child. */
static long fork_plan_child(const struct restore_request *request, const struct plan_child *child)
{
	long pid = fork_with_pid(child->pid, child->exit_signal, clone_sharing_flags(child), -1);
	if (pid < 0)
		fail_on(request->control, STEP_FORK, pid, child->pid);
	return pid;
}

/* In a process that becomes a zombie: begins the session that it led, and forks the other processes of that session.
 * When the zombie ends, they are reparented to its parent, as they were in the original. */
static void fork_reparented_children(struct restore_request *request, u64 plan_file_offset, const struct plan *head,
				     u32 leader)
{
	CALL0(setsid);
	for (u32 i = 0; i < head->children.count; i++) {
		struct plan_child child = read_plan_child(request, plan_file_offset, head, i);
		if ((child.flags & CHILD_REPARENTED) && child.group_or_session == leader &&
		    fork_plan_child(request, &child) == 0)
			become_child(request, child.plan_offset);
	}
}

static void fork_and_run_child(struct restore_request *request, u64 plan_file_offset, const struct plan *head,
			       const struct plan_child *child)
{
	long pid = fork_plan_child(request, child);
	if (pid != 0) {
		/* The zombie also creates its group itself. Created here, the group exists before others join it. */
		if ((child->flags & CHILD_ZOMBIE) && (child->flags & CHILD_GROUP_LEADER) &&
		    !(child->flags & CHILD_SESSION_LEADER))
			CALL2(setpgid, pid, pid);
		return;
	}
	if (!(child->flags & CHILD_ZOMBIE))
		become_child(request, child->plan_offset);
	if (child->flags & CHILD_SESSION_LEADER)
		fork_reparented_children(request, plan_file_offset, head, child->pid);
	become_zombie(child, request->passed.first + (i32)head->barrier_fd, head->process_count);
}

/* Begins session and group, and sets the controlling terminal. Children that belong to this session are forked later,
 * because they can only inherit it. */
void begin_session(const struct plan *head, int control)
{
	long error = 0;
	if (head->flags & PLAN_SESSION_LEADER)
		error = CALL0(setsid);
	else if (head->flags & PLAN_GROUP_LEADER)
		error = CALL2(setpgid, 0, 0);
	if (error < 0)
		fail_on(control, STEP_SESSION, error, 0);
	if (head->controlling_terminal != 0)
		error = CALL3(ioctl, head->fd_base + head->controlling_terminal, K_TIOCSCTTY, 0);
	if (error < 0)
		fail_on(control, STEP_TERMINAL, error, 0);
}

/* Forks the children that stay in the old session, begins session and group, then forks the other children. Sets the
 * subreaper attribute first, before there can be orphans. */
static void fork_children(struct restore_request *request, u64 plan_file_offset, const struct plan *head)
{
	if (head->flags & PLAN_SUBREAPER)
		CALL5(prctl, K_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	for (u32 after = 0; after < 2; after++) {
		for (u32 i = 0; i < head->children.count; i++) {
			struct plan_child child = read_plan_child(request, plan_file_offset, head, i);
			if (!(child.flags & (CHILD_REPARENTED | CHILD_SHARES_MEMORY)) &&
			    (child.flags & CHILD_AFTER_SESSION ? 1 : 0) == after)
				fork_and_run_child(request, plan_file_offset, head, &child);
		}
		if (!after)
			begin_session(head, request->control);
	}
}

/* Maps the region of a plan and copies the code into it. Returns the address of the plan in the region. */
const struct plan *map_region(const struct plan *head, u64 plan_file_offset, int plan_file, int control)
{
	long region = CALL6(mmap, head->region_start, head->region_bytes, K_PROT_READ | K_PROT_WRITE,
			    K_MAP_PRIVATE | K_MAP_ANONYMOUS | K_MAP_FIXED_NOREPLACE, -1, 0);
	if (region != (long)head->region_start)
		fail_on(control, STEP_MAP_REGION, region, 0);
	long plan = CALL6(mmap, head->region_start + head->plan_offset, head->plan_bytes, K_PROT_READ | K_PROT_WRITE,
			  K_MAP_PRIVATE | K_MAP_FIXED, plan_file, plan_file_offset);
	if (plan != (long)(head->region_start + head->plan_offset))
		fail_on(control, STEP_MAP_PLAN, plan, 1);
	if (head->process_count > 1) {
		long barrier = CALL6(mmap, head->region_start + head->barrier_offset, sizeof(struct tree_barrier),
				     K_PROT_READ | K_PROT_WRITE, K_MAP_SHARED | K_MAP_FIXED,
				     head->fd_base + head->barrier_fd, 0);
		if (barrier < 0)
			fail_on(control, STEP_TREE_BARRIER, barrier, 0);
	}
	copy_bytes((void *)region, image_start, image_end - image_start);
	copy_bytes((void *)(region + head->code_bytes), (void *)(plan + head->frames),
		   head->retained_bytes - head->code_bytes);
	long error = CALL3(mprotect, region, head->code_bytes, K_PROT_READ | K_PROT_EXEC);
	if (error < 0)
		fail_on(control, STEP_PROTECT_CODE, error, 0);
	return (const struct plan *)plan;
}

/* In a new process: forks its own children, maps the region, copies the code to the region, and continues in the
 * copy. */
void become_child(struct restore_request *request, u64 plan_file_offset)
{
	struct plan head;
	u64 forked_ns = realtime_ns();
	long bytes_read = CALL4(pread64, request->plan, &head, sizeof head, plan_file_offset);
	if (bytes_read != sizeof head || head.magic != PLAN_MAGIC)
		fail_on(request->control, STEP_MAP_PLAN, bytes_read < 0 ? bytes_read : -K_EINVAL, 0);
	if (head.process_index == 0)
		move_descriptors(request, head.fd_base);
	fork_children(request, plan_file_offset, &head);
	const struct plan *plan = map_region(&head, plan_file_offset, request->plan, request->control);
	scratch_page(&head)->marks_ns[MARK_REQUEST] = request->requested_ns;
	scratch_page(&head)->marks_ns[MARK_FORKED] = forked_ns;

	u64 entry = restorer_entry(&head);
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
