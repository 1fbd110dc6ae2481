/* What the stub and the restorer share. */
#pragma once

#include "plan.h"

/* Bounds of the code and its constants, from the linker script. */
extern char image_start[] __attribute__((visibility("hidden")));
extern char image_end[] __attribute__((visibility("hidden")));

/* Turns the calling process, a fork of the stub, into the child. Runs in the copy of the code inside the region. */
__attribute__((noreturn, visibility("hidden"))) void restore(const struct plan *plan);

static inline u64 realtime_ns(void)
{
	struct k_timespec now = { 0, 0 };
	CALL2(clock_gettime, K_CLOCK_REALTIME, &now);
	return (u64)now.seconds * 1000000000ull + (u64)now.nanoseconds;
}

static inline void send_report(int socket, u32 kind, u32 step, long error, u32 detail)
{
	struct report report = { kind, (i32)-error, step, detail, realtime_ns() };
	CALL6(sendto, socket, &report, sizeof report, K_MSG_NOSIGNAL, 0, 0);
}
