/* A context for asynchronous I/O (io_setup(2)), whose ring the kernel has mapped: not carried. */
#include "resource.h"

#include <linux/aio_abi.h>

static aio_context_t context;

static void set_up(void) { REQUIRE(syscall(SYS_io_setup, 8, &context) == 0); }

static void check(void) {
    struct io_event event;
    struct timespec at_once = {0};
    REQUIRE(syscall(SYS_io_getevents, context, 0L, 1L, &event, &at_once) == 0);
}
