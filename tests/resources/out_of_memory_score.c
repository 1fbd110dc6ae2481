/* The OOM score adjustment. A child is killed before other processes of its container, and it can be forked again. */
#include "resource.h"

static void set_up(void) {
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    REQUIRE(file >= 0 && write(file, "950", 3) == 3 && close(file) == 0);
}

static void check(void) {
    char line[32];
    REQUIRE(read_line("/proc/self/oom_score_adj", "", line, sizeof line) && atoi(line) == 950, "%s", line);
}
