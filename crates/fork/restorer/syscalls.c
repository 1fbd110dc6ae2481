/* System calls that make a child's resources, one after the other. What they are for, src/restore/calls/ says. */
#include "restorer.h"

void make_calls(const struct plan *plan, struct plan_span calls)
{
	const struct plan_call *call = at(plan, calls.offset);
	for (u32 i = 0; i < calls.count; i++, call++) {
		long given[6];
		for (u32 n = 0; n < 6; n++)
			given[n] = (long)(call->arguments[n] + (call->pointers >> n & 1 ? (u64)plan : 0));
		long result = call6(call->number, given[0], given[1], given[2], given[3], given[4], given[5]);
		int is_right = call->expected == CALL_ANY_RESULT ? result >= 0 : result == (long)call->expected;
		if (!is_right && call->expected != CALL_MAY_FAIL)
			give_up(plan, call->step, result < 0 ? result : -K_EINVAL, call->object);
	}
}
