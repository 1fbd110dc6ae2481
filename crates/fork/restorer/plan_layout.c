/* Prints the layout of plan.h's structures as Rust constants. build.rs runs it. src/restore/plan_layout.rs compares its
 * structures with these constants at compile time. */
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
	SIZE("SPECIAL", plan_special_mapping);
	SIZE("FILE", plan_file);
	SIZE("EAGER", plan_eager_bytes);
	SIZE("DESCRIPTOR", plan_file_descriptor);
	SIZE("EPOLL", plan_epoll_entry);
	SIZE("ACTION", plan_signal_action);
	SIZE("LIMIT", plan_resource_limit);
	SIZE("CREDENTIALS", plan_credentials);
	SIZE("THREAD", plan_thread);
	SIZE("SYSCALL", plan_syscall);
	SIZE("CHILD", plan_child);
	SIZE("REQUEST", stub_request);
	SIZE("REPORT", stub_report);
	OFFSET("PLAN_FLAGS", plan, flags);
	OFFSET("PLAN_MAPPINGS", plan, mappings);
	OFFSET("PLAN_MM", plan, mm);
	OFFSET("PLAN_AUXV", plan, auxv);
	OFFSET("THREAD_FUTEX_WORDS", plan_thread, futex_words);
	OFFSET("THREAD_TID", plan_thread, tid);
	OFFSET("THREAD_NAME", plan_thread, name);
	OFFSET("CREDENTIALS_SECUREBITS", plan_credentials, securebits);
	OFFSET("DESCRIPTOR_OFFSET", plan_file_descriptor, offset);
	OFFSET("SYSCALL_STEP", plan_syscall, step);
	OFFSET("PLAN_SYSCALLS_BEFORE_START", plan, syscalls_before_start);
	OFFSET("MAPPING_FLAGS", plan_mapping, flags);
	OFFSET("PLAN_CHILDREN", plan, children);
	OFFSET("PLAN_LOCKED_RANGES", plan, locked_ranges);
	OFFSET("PLAN_ZYGOTE_REGION", plan, zygote_region);
	OFFSET("PLAN_CONFINEMENT_FILTERS", plan, confinement_filters);
	OFFSET("CHILD_NAME", plan_child, name);
	OFFSET("REPORT_PROCESS_INDEX", stub_report, process_index);
	OFFSET("REPORT_REALTIME", stub_report, realtime_ns);
	OFFSET("REPORT_MARKS", stub_report, marks_ns);
	printf("pub(super) const MARK_COUNT: usize = %d;\n", MARK_COUNT);
	return 0;
}
