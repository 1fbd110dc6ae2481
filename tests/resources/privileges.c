/* Privilege flags of a task: securebits, no_new_privs, dumpable, personality, umask; and a thread with fewer
 * privileges and its own securebits and personality. */
#include "resource.h"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/personality.h>
#include <sys/prctl.h>

#define BITS (SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS)

static pthread_t thread;
#define THREADS_BITS (BITS & ~SECBIT_KEEP_CAPS)
#define THREADS_PERSONALITY UNAME26

static volatile int is_ready, go_on;

static int set_capabilities(uint32_t effective) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = effective, .permitted = effective}, {0}};
    return (int)syscall(SYS_capset, &header, data);
}

static void *give_up_more(void *unused) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    REQUIRE(syscall(SYS_setresuid, 4711, 4711, 4711) == 0 && set_capabilities(1u << CAP_CHOWN) == 0);
    REQUIRE(prctl(PR_SET_KEEPCAPS, 0) == 0 && personality(THREADS_PERSONALITY) >= 0);
    is_ready = 1;
    while (!go_on) usleep(1000);
    REQUIRE(syscall(SYS_capget, &header, data) == 0 && data[0].permitted == 1u << CAP_CHOWN, "%x", data[0].permitted);
    REQUIRE(syscall(SYS_getuid) == 4711);
    REQUIRE(prctl(PR_GET_SECUREBITS) == THREADS_BITS, "%x", prctl(PR_GET_SECUREBITS));
    REQUIRE(personality(0xffffffff) == THREADS_PERSONALITY, "%x", personality(0xffffffff));
    return unused;
}

static void set_up(void) {
    umask(0123);
    REQUIRE(prctl(PR_SET_SECUREBITS, BITS) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    REQUIRE(personality(ADDR_NO_RANDOMIZE | UNAME26) >= 0);
    REQUIRE(pthread_create(&thread, NULL, give_up_more, NULL) == 0 && COMES_TRUE(is_ready));
    REQUIRE(prctl(PR_SET_DUMPABLE, 0) == 0);
}

static void check(void) {
    REQUIRE(prctl(PR_GET_SECUREBITS) == BITS, "%x", prctl(PR_GET_SECUREBITS));
    REQUIRE(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && prctl(PR_GET_DUMPABLE) == 0, "dumpable %d", prctl(PR_GET_DUMPABLE));
    REQUIRE(personality(0xffffffff) == (ADDR_NO_RANDOMIZE | UNAME26), "%x", personality(0xffffffff));
    REQUIRE(umask(0) == 0123 && getuid() == 0);
    go_on = 1;
    REQUIRE(pthread_join(thread, NULL) == 0);
}
