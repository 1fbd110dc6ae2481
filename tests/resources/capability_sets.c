/* Capability sets of threads that no program can reach in another order: an inheritable capability that the bounding set
 * lacks, an ambient capability that may not be raised any more, and an ambient capability without a bounding set. */
#include "resource.h"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>

#define AMBIENT CAP_NET_BIND_SERVICE
#define DROPPED CAP_SYS_NICE
#define KINDS 5

struct sets {
    struct __user_cap_data_struct data[2];
    int bounding[2], ambient, securebits;
};

static struct sets before[KINDS];
static pthread_t threads[KINDS];
static volatile int ready, go_on;

static void get(struct sets *sets) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    memset(sets, 0, sizeof *sets);
    REQUIRE(syscall(SYS_capget, &header, sets->data) == 0);
    sets->bounding[0] = prctl(PR_CAPBSET_READ, AMBIENT), sets->bounding[1] = prctl(PR_CAPBSET_READ, DROPPED);
    sets->ambient = prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, AMBIENT, 0, 0);
    sets->securebits = prctl(PR_GET_SECUREBITS);
}

static void make_inheritable(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    REQUIRE(syscall(SYS_capget, &header, data) == 0);
    for (int word = 0; word < 2; word++) data[word].inheritable = data[word].permitted;
    REQUIRE(syscall(SYS_capset, &header, data) == 0);
}

static void *hold(void *argument) {
    struct sets now;
    long kind = (long)argument;
    make_inheritable();
    if (kind != 0) REQUIRE(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, AMBIENT, 0, 0) == 0);
    if (kind != 1 && kind != 2) REQUIRE(prctl(PR_CAPBSET_DROP, DROPPED, 0, 0, 0) == 0);
    if (kind == 1) REQUIRE(prctl(PR_SET_SECUREBITS, SECBIT_NO_CAP_AMBIENT_RAISE) == 0);
    if (kind == 2) {
        REQUIRE(prctl(PR_SET_SECUREBITS, SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED) == 0);
    }
    if (kind == 3) {
        for (int bit = 0; bit <= CAP_LAST_CAP; bit++) prctl(PR_CAPBSET_DROP, bit, 0, 0, 0);
        REQUIRE(prctl(PR_SET_SECUREBITS, SECBIT_KEEP_CAPS) == 0 && syscall(SYS_setresuid, 4711, 4711, 4711) == 0);
    }
    if (kind == 4) REQUIRE(syscall(SYS_setresuid, 4711, 4711, 4711) == 0);
    get(&before[kind]);
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    while (!go_on) usleep(1000);
    get(&now);
    REQUIRE(memcmp(&now, &before[kind], sizeof now) == 0, "thread %ld: %x %x, ambient %d, securebits %x", kind,
            now.data[0].permitted, now.data[0].inheritable, now.ambient, now.securebits);
    return NULL;
}

static void set_up(void) {
    for (long kind = 0; kind < KINDS; kind++) REQUIRE(pthread_create(&threads[kind], NULL, hold, (void *)kind) == 0);
    REQUIRE(COMES_TRUE(ready == KINDS));
    /* The first thread has what its threads may lack, as a process after setpriv(1). */
    make_inheritable();
    REQUIRE(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, AMBIENT, 0, 0) == 0);
    REQUIRE(prctl(PR_CAPBSET_DROP, DROPPED, 0, 0, 0) == 0);
    REQUIRE(prctl(PR_SET_SECUREBITS, SECBIT_NO_CAP_AMBIENT_RAISE) == 0);
}

static void check(void) {
    struct sets now;
    get(&now);
    REQUIRE((now.data[0].inheritable >> DROPPED & 1) == 1 && now.bounding[1] == 0 && now.ambient == 1);
    REQUIRE(now.securebits == SECBIT_NO_CAP_AMBIENT_RAISE);
    go_on = 1;
    for (int kind = 0; kind < KINDS; kind++) REQUIRE(pthread_join(threads[kind], NULL) == 0);
}
