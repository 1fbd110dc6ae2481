/* A map of bpf(2): not carried. */
#include "resource.h"

#include <linux/bpf.h>

static int fd;

static void set_up(void) {
    union bpf_attr wanted = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1};
    fd = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &wanted, sizeof wanted);
    REQUIRE(fd >= 0);
}

static void check(void) { REQUIRE(fcntl(fd, F_GETFD) == FD_CLOEXEC); }
