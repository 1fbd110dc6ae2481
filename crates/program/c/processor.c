/* Pins the calling thread to its CPU while it is captured. A thread of the daemon then runs on the same CPU, and a switch
** between the two threads takes 3 us. Waking another CPU takes 15 us or more. The template is also forked on this CPU. */
#define _GNU_SOURCE

#include "library.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int processor_count_list(const char *list) {
    int count = 0;
    while (*list && *list != '\n') {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (end == list || first < 0) return 0;
        if (*end == '-') {
            const char *second = end + 1;
            last = strtol(second, &end, 10);
            if (end == second || last < first) return 0;
        }
        count += (int)(last - first) + 1;
        list = *end == ',' ? end + 1 : end;
        if (list == end && *end && *end != '\n') return 0;
    }
    return count;
}

/* Returns the number of possible CPUs, or 0 if the kernel does not report it. */
static int possible_processors(void) {
    static int count = -1;
    if (count >= 0) return count;
    char list[256];
    int fd = open("/sys/devices/system/cpu/possible", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, list, sizeof list);
    if (fd >= 0) close(fd);
    /* The kernel ends the list with a newline. Without it, the list is incomplete. */
    if (length <= 0 || list[length - 1] != '\n') return count = 0;
    list[length - 1] = 0;
    return count = processor_count_list(list);
}

uint64_t processor_pin(void) {
    cpu_set_t before, only;
    int current = sched_getcpu();
    if (current < 0 || current >= CPU_SETSIZE || sched_getaffinity(0, sizeof before, &before) < 0) return 0;
    /* Pin only a thread that may use all CPUs. Another affinity could not be restored without storing it. */
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
