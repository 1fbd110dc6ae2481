/* System V shared memory in huge pages of hugetlbfs: a segment of a process and its child, and an unattached one.
 * Children get it in ordinary pages. */
#include "huge_pages.h"

#include <sys/ipc.h>
#include <sys/shm.h>

#define MAPPED_BYTES (2 * HUGE_BYTES)
#define SEGMENT_BYTES (MAPPED_BYTES - PAGE_BYTES) /* which the kernel rounds up where it is mapped */

static int id, unattached;
static volatile uint64_t *words;
static pid_t other;

static int make(void) { return (id = shmget(IPC_PRIVATE, SEGMENT_BYTES, IPC_CREAT | SHM_HUGETLB | 0600)) >= 0; }

static int make_unattached(void) {
    return (unattached = shmget(IPC_PRIVATE, PAGE_BYTES, IPC_CREAT | SHM_HUGETLB | 0600)) >= 0;
}

/* Removes the segment in the parent. In a child, it ends with its namespace. */
static void remove_unattached(void) { shmctl(unattached, IPC_RMID, NULL); }

static volatile uint64_t *attach(void) {
    volatile uint64_t *at = (volatile uint64_t *)shmat(unattached, NULL, 0);
    REQUIRE((intptr_t)at != -1);
    return at;
}

static void set_up(void) {
    with_huge_pages(make_unattached);
    at_end(remove_unattached);
    volatile uint64_t *at = attach();
    at[511] = 11;
    REQUIRE(shmdt((const void *)at) == 0);
    with_huge_pages(make);
    words = (volatile uint64_t *)shmat(id, NULL, 0);
    REQUIRE((intptr_t)words != -1 && shmctl(id, IPC_RMID, NULL) == 0);
    REQUIRE(area_has_flag((const void *)words, "ht"));
    /* The second huge page of the segment stays untouched. */
    for (size_t at = 0; at < HUGE_BYTES / sizeof *words; at += 500) words[at] = at + 1;
    if ((other = fork_bound()) > 0) return;
    while (words[7] != 8) usleep(1000);
    words[HUGE_BYTES / sizeof *words] = 9;
    for (;;) pause();
}

static void check(void) {
    struct shmid_ds segment;
    REQUIRE(shmctl(id, IPC_STAT, &segment) == 0 && segment.shm_nattch == 2);
    REQUIRE(segment.shm_segsz == (is_child ? MAPPED_BYTES : SEGMENT_BYTES), "%zu bytes", segment.shm_segsz);
    REQUIRE(area_has_flag((const void *)words, "ht") == !is_child);
    for (size_t at = 0; at < HUGE_BYTES / sizeof *words; at += 500) REQUIRE(words[at] == at + 1, "word %zu", at);
    for (size_t at = HUGE_BYTES / sizeof *words; at < MAPPED_BYTES / sizeof *words; at += 512) REQUIRE(words[at] == 0);
    words[7] = 8;
    REQUIRE(COMES_TRUE(words[HUGE_BYTES / sizeof *words] == 9), "the child process does not share the memory");
    REQUIRE(shmctl(unattached, IPC_STAT, &segment) == 0 && segment.shm_nattch == 0);
    REQUIRE(attach()[511] == 11);
    REQUIRE(kill(other, SIGKILL) == 0);
}
