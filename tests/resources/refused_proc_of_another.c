/* A file of /proc that shows a process which does not descend from this one: a child's container lacks that process. Not
 * carried. */
#include "resource.h"

static int file;

static void set_up(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", getppid());
    REQUIRE((file = open(path, O_RDONLY)) >= 0);
}

static void check(void) {
    char text[64], wanted[16];
    snprintf(wanted, sizeof wanted, "%d (", getppid());
    REQUIRE(pread(file, text, sizeof text, 0) > 0 && strncmp(text, wanted, strlen(wanted)) == 0);
}
