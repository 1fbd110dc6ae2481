/*
 * A library for LD_PRELOAD: the real-time clock of the process is CLOCK_AHEAD_SECONDS ahead, as that of another machine
 * may be. Time namespaces (time_namespaces(7)) do not change this clock.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	const char *seconds = getenv("CLOCK_AHEAD_SECONDS");
	long result = syscall(SYS_clock_gettime, clock, now);

	if (result == 0 && seconds && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += atol(seconds);
	return (int)result;
}
