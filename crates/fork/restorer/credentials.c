/* Sets a thread's credentials and capabilities (credentials(7), capabilities(7)), in the restorer. threads.c calls it for
 * each thread. */
#include "restorer.h"

enum { CAPABILITY_WORDS = 2, CAPABILITY_BITS = 64 };

/* Sets the inheritable set, with all permitted capabilities effective. The kernel adds no capability to the inheritable set that
 * the bounding set lacks. */
static void set_inheritable(const struct plan *plan, const struct plan_credentials *wanted)
{
	struct k_capability_header header = { K_CAPABILITY_VERSION_3, 0 };
	struct k_capability_data data[CAPABILITY_WORDS];
	check(plan, STEP_CREDENTIALS, CALL2(capget, &header, data), 4);
	for (u32 word = 0; word < CAPABILITY_WORDS; word++) {
		data[word].effective = data[word].permitted;
		data[word].inheritable = (u32)(wanted->inheritable >> (32 * word));
	}
	check(plan, STEP_CREDENTIALS, CALL2(capset, &header, data), 4);
}

/* Raises the ambient set. The kernel requires each capability in the permitted and the inheritable set, and clears it again if
 * it leaves one of them. A lock (SECBIT_NO_CAP_AMBIENT_RAISE) must not be set yet. */
static void raise_ambient(const struct plan *plan, const struct plan_credentials *wanted)
{
	for (u32 bit = 0; bit < CAPABILITY_BITS; bit++)
		if (wanted->ambient >> bit & 1)
			check(plan, STEP_CREDENTIALS,
			      CALL5(prctl, K_PR_CAP_AMBIENT, K_PR_CAP_AMBIENT_RAISE, bit, 0, 0), 5);
}

static void drop_bounding(const struct plan *plan, const struct plan_credentials *wanted)
{
	for (u32 bit = 0; bit < CAPABILITY_BITS; bit++)
		if (!(wanted->bounding >> bit & 1) && CALL5(prctl, K_PR_CAPBSET_READ, bit, 0, 0, 0) == 1)
			check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_CAPBSET_DROP, bit, 0, 0, 0), 0);
}

/* Drops all other capabilities. */
static void set_capabilities(const struct plan *plan, const struct plan_credentials *wanted)
{
	struct k_capability_header header = { K_CAPABILITY_VERSION_3, 0 };
	struct k_capability_data data[CAPABILITY_WORDS];
	for (u32 word = 0; word < CAPABILITY_WORDS; word++) {
		data[word].effective = (u32)(wanted->effective >> (32 * word));
		data[word].permitted = (u32)(wanted->permitted >> (32 * word));
		data[word].inheritable = (u32)(wanted->inheritable >> (32 * word));
	}
	check(plan, STEP_CREDENTIALS, CALL2(capset, &header, data), 4);
}

/* Sets the credentials in this order, because each step needs privileges that a later step drops:
 *
 *  ids ─ inheritable set ─ ambient set ─ bounding set ─ securebits ─ effective and permitted set ─ no_new_privs
 */
void set_credentials(const struct plan *plan, u32 index)
{
	if (index == CREDENTIALS_UNCHANGED)
		return;
	const struct plan_credentials *wanted =
		(const struct plan_credentials *)plan_pointer(plan, plan->credentials.offset) + index;
	/* A change of ids must not change the capabilities. */
	check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_SET_SECUREBITS, K_SECBIT_NO_SETUID_FIXUP, 0, 0, 0), 1);
	check(plan, STEP_CREDENTIALS, CALL2(setgroups, wanted->groups.count, plan_pointer(plan, wanted->groups.offset)), 2);
	check(plan, STEP_CREDENTIALS, CALL3(setresgid, wanted->gids[0], wanted->gids[1], wanted->gids[2]), 2);
	CALL1(setfsgid, wanted->gids[3]);
	check(plan, STEP_CREDENTIALS, CALL3(setresuid, wanted->uids[0], wanted->uids[1], wanted->uids[2]), 3);
	CALL1(setfsuid, wanted->uids[3]);
	set_inheritable(plan, wanted);
	raise_ambient(plan, wanted);
	drop_bounding(plan, wanted);
	check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_SET_SECUREBITS, wanted->securebits, 0, 0, 0), 1);
	set_capabilities(plan, wanted);
	if (wanted->no_new_privileges)
		check(plan, STEP_CREDENTIALS, CALL5(prctl, K_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 6);
}
