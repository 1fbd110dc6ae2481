/* Prints the layout of the structures that Rust mirrors, as Rust constants; build.rs runs it, src/restore/layout.rs holds
 * its own against them when it is compiled. */
#include "plan.h"

#include <stdio.h>

#define SIZE(name, type) printf("pub(super) const %s_BYTES: usize = %zu;\n", name, sizeof(struct type))
#define OFFSET(name, type, field) \
	printf("pub(super) const %s: usize = %zu;\n", name, offsetof(struct type, field))

int main(void)
{
	printf("pub(super) const PROCESSES_MAX: usize = %d;\n", PROCESSES_MAX);
	SIZE("PLAN", plan);
	SIZE("MAPPING", plan_mapping);
	SIZE("RANGE", plan_range);
	SIZE("SPECIAL", plan_special);
	SIZE("FILE", plan_file);
	SIZE("EAGER", plan_eager);
	SIZE("DESCRIPTOR", plan_descriptor);
	SIZE("EPOLL", plan_epoll);
	SIZE("ACTION", plan_action);
	SIZE("LIMIT", plan_limit);
	SIZE("CREDENTIALS", plan_credentials);
	SIZE("THREAD", plan_thread);
	SIZE("CALL", plan_call);
	SIZE("KIN", plan_kin);
	SIZE("REQUEST", stub_request);
	SIZE("REPORT", report);
	OFFSET("PLAN_FLAGS", plan, flags);
	OFFSET("PLAN_MAPPINGS", plan, mappings);
	OFFSET("PLAN_MM", plan, mm);
	OFFSET("PLAN_AUXV", plan, auxv);
	OFFSET("THREAD_TID", plan_thread, tid);
	OFFSET("THREAD_NAME", plan_thread, name);
	OFFSET("CREDENTIALS_SECUREBITS", plan_credentials, securebits);
	OFFSET("DESCRIPTOR_OFFSET", plan_descriptor, offset);
	OFFSET("CALL_STEP", plan_call, step);
	OFFSET("PLAN_CALLS", plan, calls_at_last);
	OFFSET("MAPPING_FLAGS", plan_mapping, flags);
	OFFSET("PLAN_KIN", plan, kin);
	OFFSET("PLAN_LOCKED", plan, locked);
	OFFSET("PLAN_ZYGOTE_AT", plan, zygote);
	OFFSET("KIN_NAME", plan_kin, name);
	OFFSET("REPORT_PROCESS", report, process);
	OFFSET("REPORT_REALTIME", report, realtime_ns);
	OFFSET("REPORT_MARKS", report, marks_ns);
	printf("pub(super) const MARK_COUNT: usize = %d;\n", MARK_COUNT);
	return 0;
}
