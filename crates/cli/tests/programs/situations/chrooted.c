/* A process with its own root (chroot(2)). It uses files inside this root, even if the node has other files with the
 * same names. Inside the root, the payload has no path, and is only an open descriptor.
 * usage: chrooted DIRECTORY
 */
#include "../forked.h"

#include <sys/stat.h>

#define PAYLOAD_FD 1000

static const char name[] = "/etc/passwd", text[] = "of inside";

static int says_text(int fd) {
    char found[sizeof text] = {0};
    return fd >= 0 && pread(fd, found, sizeof found, 0) == sizeof found && strcmp(found, text) == 0;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: chrooted DIRECTORY");
    REQUIRE(chdir(arguments[1]) == 0 && mkdir("etc", 0700) == 0 && chroot(".") == 0);
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && write(fd, text, sizeof text) == sizeof text);

    char payload[PAYLOAD_BYTES_MAX] = {0}, now[PAYLOAD_BYTES_MAX];
    ready(0);
    while (read(PAYLOAD_FD, payload, sizeof payload - 1) < 0) {
        say("tick %llu", (unsigned long long)monotonic_us());
        usleep(TICK_NS / 1000);
    }

    REQUIRE(says_text(fd) && says_text(open(name, O_RDONLY | O_CLOEXEC)));
    REQUIRE(getcwd(now, sizeof now) && strcmp(now, "/") == 0, "%s", now);
    REQUIRE(access("/proc", F_OK) != 0 && access("/../proc", F_OK) != 0);
    finish(payload, 0);
}
