/* Pins the calling thread to its processor while it is captured. The daemon's thread then runs there, too, and both
 * switch to each other in 3 us, where waking another processor takes 15 us or more. The clone is forked there, too. */
#define _GNU_SOURCE

#include "library.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How many processors the kernel may ever have, which are numbered from 0; 0 where it does not say. */
static int possible_processors(void) {
    static int count = -1;
    if (count >= 0) return count;
    char list[64];
    int fd = open("/sys/devices/system/cpu/possible", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, list, sizeof list - 1);
    if (fd >= 0) close(fd);
    list[length > 0 ? length : 0] = 0;
    /* `0-7`; of a list with holes there are fewer than the last number says, and no thread may use so many. */
    const char *last = strrchr(list, '-');
    return count = length > 0 ? atoi(last ? last + 1 : list) + 1 : 0;
}

uint64_t processor_pin(void) {
    cpu_set_t before, only;
    int current = sched_getcpu();
    if (current < 0 || current >= CPU_SETSIZE || sched_getaffinity(0, sizeof before, &before) < 0) return 0;
    /* Who may use all has not chosen; what another one has chosen could not be told from what it is given. */
    if (CPU_COUNT(&before) != possible_processors()) return 0;
    CPU_ZERO(&only);
    CPU_SET(current, &only);
    return sched_setaffinity(0, sizeof only, &only) < 0 ? 0 : (uint64_t)syscall(SYS_gettid);
}

void processor_unpin(uint64_t thread_id) {
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    if (thread_id) sched_setaffinity(0, sizeof all, &all);
}
