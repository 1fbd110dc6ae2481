/* Zombies of a tree: forked like other processes, then ended with the recorded wait status.
 * fork.c calls become_zombie() instead of the restorer; the parent then calls remove_cores(). */
#include "restorer.h"

#define CORE_PATH_BYTES 64

static char *append_text(char *end, const char *text)
{
	while ((*end = *text++))
		end++;
	return end;
}

static char *append_number(char *end, u32 number)
{
	char digits[11];
	char *digit = digits + sizeof digits - 1;
	*digit = 0;
	do
		*--digit = (char)('0' + number % 10);
	while (number /= 10);
	return append_text(end, digit);
}

/* Appends the path of the directory for one process's core. */
static char *append_core_directory(char *end, u32 pid)
{
	return append_number(append_text(end, "/dev/shm/.farfork-core-"), pid);
}

/* Allows the process to dump a core into a separate directory: the kernel sets the core flag of a wait status only if a
 * core was written. The core is small, because the process has little memory. Returns whether a core can be written. */
static int prepare_core(u32 pid)
{
	char directory[CORE_PATH_BYTES];
	struct k_rlimit limit;
	append_core_directory(directory, pid);
	if (CALL2(mkdir, directory, 0700) < 0 || CALL1(chdir, directory) < 0)
		return 0;
	if (CALL4(prlimit64, 0, K_RLIMIT_CORE, 0, &limit) < 0)
		return 0;
	limit.soft = limit.hard;
	return CALL4(prlimit64, 0, K_RLIMIT_CORE, &limit, 0) == 0;
}

/* Removes the cores of zombies, which the program does not expect. Their name is `core` or `core.<pid>`. */
void remove_cores(const struct plan *plan)
{
	const struct plan_child *children = plan_pointer(plan, plan->children.offset);
	for (u32 i = 0; i < plan->children.count; i++) {
		char path[CORE_PATH_BYTES];
		char *end = append_core_directory(path, children[i].pid), *name;
		if (!(children[i].flags & CHILD_CORE_DUMPED))
			continue;
		name = append_text(end, "/core");
		CALL1(unlink, path);
		append_number(append_text(name, "."), children[i].pid);
		CALL1(unlink, path);
		*end = 0;
		CALL1(rmdir, path);
	}
}

/* Ends with the zombie's wait status. If another process leads its group, first waits until all processes are
 * forked. */
void become_zombie(const struct plan_child *child, int barrier_fd, u32 process_count)
{
	u64 none = 0;
	if (child->flags & CHILD_SESSION_LEADER)
		CALL0(setsid);
	else if (child->flags & CHILD_GROUP_LEADER)
		CALL2(setpgid, 0, 0);
	if (child->group_or_session != 0 && process_count > 1) {
		long barrier = CALL6(mmap, 0, sizeof(struct tree_barrier), K_PROT_READ | K_PROT_WRITE,
				     K_MAP_SHARED, barrier_fd, 0);
		if (barrier > 0)
			futex_wait_until(&((struct tree_barrier *)barrier)->processes_forked, process_count);
	}
	if (child->group_or_session != 0)
		CALL2(setpgid, 0, child->group_or_session);
	CALL5(prctl, K_PR_SET_NAME, child->name, 0, 0, 0);
	/* Not dumpable unless the original left a core. */
	CALL5(prctl, K_PR_SET_DUMPABLE, child->flags & CHILD_CORE_DUMPED ? prepare_core(child->pid) : 0, 0, 0, 0);
	CALL4(rt_sigprocmask, K_SIG_SETMASK, &none, 0, sizeof none);
	if (child->status & 0x7f)
		CALL2(kill, child->pid, child->status & 0x7f);
	for (;;)
		CALL1(exit_group, child->status >> 8 & 0xff);
}
