/* Pipes without a reader: the size, the bytes that were not read, and the room that is left, show when a reader opens the pipe
 * again. Also a pipe that is not full, but has fewer free buffers than its bytes need. */
#include "resource.h"

#include <sys/ioctl.h>

#define PAGE 4096

static int unread, parts[2];
static char record[3000];

static void set_up(void) {
    int ends[2];
    REQUIRE(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 2 * PAGE) == 2 * PAGE && write(ends[1], "left", 4) == 4);
    unread = ends[1];
    close(ends[0]);
    REQUIRE(pipe2(parts, O_NONBLOCK) == 0);
    for (int i = 0; i < 6; i++) REQUIRE(write(parts[1], record, sizeof record) == sizeof record);
}

static int open_again(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", unread);
    return open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
}

static void check(void) {
    char found[8];
    int bytes = 0;
    struct pollfd polled = {.fd = unread, .events = POLLOUT};
    REQUIRE(poll(&polled, 1, 0) == 1 && polled.revents == (POLLOUT | POLLERR), "events %x", polled.revents);
    REQUIRE(fcntl(unread, F_GETPIPE_SZ) == 2 * PAGE && ioctl(unread, FIONREAD, &bytes) == 0 && bytes == 4);
    int reader = open_again();
    REQUIRE(reader >= 0 && read(reader, found, sizeof found) == 4 && memcmp(found, "left", 4) == 0);
    for (int i = 0; i < 10; i++) REQUIRE(write(parts[1], record, sizeof record) == sizeof record, "record %d", i);
    REQUIRE(write(parts[1], record, sizeof record) == -1 && errno == EAGAIN, "the pipe has more buffers");
}
