/* System V shared memory: attached twice, with its key and id. Later writes of the parent do not change it. */
#include "resource.h"

#include <sys/shm.h>

static int id;
static volatile uint64_t *view, *own_count;
static const char *second;

static void *count_on(void *unused) {
    for (;;) view[600] = ++*own_count;
    return unused;
}

static void set_up(void) {
    pthread_t thread;
    id = shmget(0x46460000 + (getpid() & 0xffff), 3 * PAGE_BYTES, IPC_CREAT | IPC_EXCL | 0640);
    REQUIRE(id >= 0);
    view = (volatile uint64_t *)shmat(id, NULL, 0), second = (const char *)shmat(id, NULL, SHM_RDONLY);
    REQUIRE(view != (void *)-1 && second != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    own_count = (volatile uint64_t *)map_private(PAGE_BYTES, PROT_READ | PROT_WRITE);
    strcpy((char *)view, "shared");
    REQUIRE(pthread_create(&thread, NULL, count_on, NULL) == 0);
}

static void check(void) {
    struct shmid_ds status;
    REQUIRE(strcmp(second, "shared") == 0, "%s", second);
    uint64_t before = view[600], own = *own_count;
    REQUIRE(own - before < 1000000 || before <= own, "%lu and %lu", before, own);
    REQUIRE(shmctl(id, IPC_STAT, &status) == 0 && status.shm_nattch == 2 && status.shm_segsz == 3 * PAGE_BYTES);
}
