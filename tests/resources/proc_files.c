/* Open files of /proc: they show the process that has them open. */
#include "resource.h"

static int status, maps;

static void set_up(void) {
    status = open("/proc/self/status", O_RDONLY), maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    char line[64];
    REQUIRE(status >= 0 && maps >= 0 && read(status, line, sizeof line) == sizeof line);
}

static void check(void) {
    char text[8192], wanted[64];
    REQUIRE(lseek(status, 0, SEEK_CUR) == 64);
    ssize_t length = pread(status, text, sizeof text - 1, 0);
    REQUIRE(length > 0);
    text[length] = 0;
    snprintf(wanted, sizeof wanted, "\nPid:\t%d\n", getpid());
    REQUIRE(strstr(text, wanted), "the file shows another process: %s", text);
    REQUIRE(read(maps, text, 64) == 64 && strchr(text, '-'));
}
