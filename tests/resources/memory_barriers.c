/* Registrations for membarrier(2). Commands that need a registration work at once. */
#include "resource.h"

#include <linux/membarrier.h>

static long barrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

static void set_up(void) {
    REQUIRE(barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 && barrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0);
    REQUIRE(barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) == 0);
}

static void check(void) {
    REQUIRE(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0, "not registered");
    REQUIRE(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE) == 0, "not registered for cores");
    REQUIRE(barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ) == -1 && errno == EPERM, "registered for more commands");
}
