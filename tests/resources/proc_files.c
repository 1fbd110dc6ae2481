/* Open files of /proc: they show the process that has them open, and change it. */
#include "resource.h"

#include <sys/prctl.h>

static int status, maps, memory, slack, mounts, host_name;
static volatile int word = 4711;

static void set_up(void) {
    status = open("/proc/self/status", O_RDONLY), maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    memory = open("/proc/self/mem", O_RDWR), slack = open("/proc/self/timerslack_ns", O_RDWR);
    mounts = open("/proc/self/mountinfo", O_RDONLY), host_name = open("/proc/sys/kernel/hostname", O_RDONLY);
    char line[64];
    REQUIRE(status >= 0 && maps >= 0 && read(status, line, sizeof line) == sizeof line);
    REQUIRE(memory >= 0 && slack >= 0 && mounts >= 0 && host_name >= 0);
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
    int value = 0;
    REQUIRE(pread(memory, &value, sizeof value, (off_t)(uintptr_t)&word) == sizeof value && value == 4711);
    value = 4712;
    REQUIRE(pwrite(memory, &value, sizeof value, (off_t)(uintptr_t)&word) == sizeof value && word == 4712);
    REQUIRE(write(slack, "70000", 5) == 5 && prctl(PR_GET_TIMERSLACK) == 70000);
    REQUIRE(pread(mounts, text, sizeof text, 0) > 0 && pread(host_name, text, sizeof text, 0) > 0);
    /* No mount of the child was made or removed since its file was opened. Other programs change those of the parent. */
    struct pollfd polled = {.fd = mounts, .events = POLLPRI};
    int is_reported = poll(&polled, 1, 0) != 0 && polled.revents & POLLERR;
    REQUIRE(!is_child || !is_reported, "the file reports a change of mounts");
}
