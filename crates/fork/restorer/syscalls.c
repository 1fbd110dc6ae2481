/* Runs the plan's system calls, which create or set the child's resources, in order.
 * src/restore/syscalls/ compiles the lists and documents the calls. */
#include "restorer.h"

void run_syscalls(const struct plan *plan, struct plan_span syscalls)
{
	const struct plan_syscall *syscall = plan_pointer(plan, syscalls.offset);
	for (u32 i = 0; i < syscalls.count; i++, syscall++) {
		long arguments[6];
		for (u32 n = 0; n < 6; n++)
			arguments[n] = (long)(syscall->arguments[n] + (syscall->pointer_mask >> n & 1 ? (u64)plan : 0));
		long result = call6(syscall->number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
				    arguments[5]);
		int is_right = syscall->expected == SYSCALL_ANY_RESULT ? result >= 0 : result == (long)syscall->expected;
		if (!is_right && syscall->expected != SYSCALL_MAY_FAIL)
			fail_restore(plan, syscall->step, result < 0 ? result : -K_EINVAL, syscall->object);
	}
}
