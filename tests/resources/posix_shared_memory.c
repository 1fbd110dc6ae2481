/* POSIX shared memory, mapped and by name. It has the contents of prepare, whatever the parent writes later. */
#include "resource.h"

static char name[64];
static volatile uint64_t *view, *own;
static int fd;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void *count_on(void *unused) {
    for (;;) {
        pthread_mutex_lock(&turn);
        view[600]++, own[0]++;
        pthread_mutex_unlock(&turn);
    }
    return unused;
}

static void remove_name(void) { shm_unlink(name); }

static void set_up(void) {
    pthread_t thread;
    snprintf(name, sizeof name, "/farfork-test-%d", getpid());
    at_end(remove_name);
    fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    REQUIRE(fd >= 0 && ftruncate(fd, 2 * PAGE_BYTES) == 0);
    view = (volatile uint64_t *)mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    own = (volatile uint64_t *)map_private(PAGE_BYTES, PROT_READ | PROT_WRITE);
    strcpy((char *)view, "shared");
    REQUIRE(pthread_create(&thread, NULL, count_on, NULL) == 0);
}

static void check(void) {
    pthread_mutex_lock(&turn);
    uint64_t shared = view[600], private = own[0];
    int again = shm_open(name, O_RDWR, 0);
    REQUIRE(again >= 0, "no shared memory has the name");
    REQUIRE(shared == private, "%lu became %lu", private, shared);
    REQUIRE(strcmp((const char *)view, "shared") == 0 && pwrite(again, "anew", 4, 0) == 4 && memcmp((const char *)view, "anewed", 6) == 0);
}
