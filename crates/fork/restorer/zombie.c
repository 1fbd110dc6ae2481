/* Processes that have ended: they are forked, and end again as they did. */
#include "restorer.h"

#define CORE_PATH_BYTES 64

static char *append(char *at, const char *text)
{
	while ((*at = *text++))
		at++;
	return at;
}

static char *append_number(char *at, u32 number)
{
	char digits[11];
	char *digit = digits + sizeof digits - 1;
	*digit = 0;
	do
		*--digit = (char)('0' + number % 10);
	while (number /= 10);
	return append(at, digit);
}

/* A directory of its own for a process's core. */
static char *append_core_directory(char *at, u32 pid)
{
	return append_number(append(at, "/dev/shm/.farfork-core-"), pid);
}

/* Only who has left a core has ended with one, as wait(2) tells: one is left, of the little that the process has, in a directory of
 * its own. Whether that can be. */
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

/* Nobody has asked for them. They are called `core`, or that with the process's number. */
void remove_cores(const struct plan *plan)
{
	const struct plan_kin *kin = at(plan, plan->kin.offset);
	for (u32 i = 0; i < plan->kin.count; i++) {
		char path[CORE_PATH_BYTES];
		char *end = append_core_directory(path, kin[i].pid), *name;
		if (!(kin[i].flags & KIN_CORE))
			continue;
		name = append(end, "/core");
		CALL1(unlink, path);
		append_number(append(name, "."), kin[i].pid);
		CALL1(unlink, path);
		*end = 0;
		CALL1(rmdir, path);
	}
}

/* Ends as the one did whose place it has. Its group may be another's, who must be born. */
void become_zombie(const struct plan_kin *kin, int gate_file, u32 process_count)
{
	u64 none = 0;
	if (kin->flags & KIN_SESSION_LEADER)
		CALL0(setsid);
	else if (kin->flags & KIN_GROUP_LEADER)
		CALL2(setpgid, 0, 0);
	if (kin->group != 0 && process_count > 1) {
		long gate = CALL6(mmap, 0, sizeof(struct gate), K_PROT_READ | K_PROT_WRITE, K_MAP_SHARED, gate_file, 0);
		if (gate > 0)
			wait_for(&((struct gate *)gate)->born, process_count);
	}
	if (kin->group != 0)
		CALL2(setpgid, 0, kin->group);
	CALL5(prctl, K_PR_SET_NAME, kin->name, 0, 0, 0);
	/* Else no core is written once more. */
	CALL5(prctl, K_PR_SET_DUMPABLE, kin->flags & KIN_CORE ? prepare_core(kin->pid) : 0, 0, 0, 0);
	CALL4(rt_sigprocmask, K_SIG_SETMASK, &none, 0, sizeof none);
	if (kin->status & 0x7f)
		CALL2(kill, kin->pid, kin->status & 0x7f);
	for (;;)
		CALL1(exit_group, kin->status >> 8 & 0xff);
}
