/* Host names. A child sees the names of its node. If it changes them, only the child sees the change.
 * usage: host_names
 */
#include "../forked.h"

#include <sys/utsname.h>

static void read_line(const char *path, char line[128]) {
    memset(line, 0, 128);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    REQUIRE(read(fd, line, 127) >= 0);
    close(fd);
}

int main(void) {
    struct utsname parents, childs;
    char machine[2][128], boot[2][128];
    REQUIRE(uname(&parents) == 0);
    read_line("/etc/machine-id", machine[0]);
    read_line("/proc/sys/kernel/random/boot_id", boot[0]);

    char payload[PAYLOAD_BYTES_MAX];
    remember_pid_namespace();
    ready(0);
    await_fork(payload);
    require_container();

    /* Nodes of one machine have the same names. */
    REQUIRE(uname(&childs) == 0);
    REQUIRE(strcmp(childs.nodename, parents.nodename) == 0, "%s", childs.nodename);
    read_line("/etc/machine-id", machine[1]);
    read_line("/proc/sys/kernel/random/boot_id", boot[1]);
    REQUIRE(strcmp(machine[0], machine[1]) == 0 && strcmp(boot[0], boot[1]) == 0 && boot[0][0]);
    REQUIRE(sethostname("of-a-child", 10) == 0 && uname(&childs) == 0);
    REQUIRE(strcmp(childs.nodename, "of-a-child") == 0);
    finish(payload, 0);
}
