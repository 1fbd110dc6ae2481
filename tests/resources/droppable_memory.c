/* Memory that the kernel may drop (MAP_DROPPABLE). It is empty in a child and in processes that the child forks, as
 * after fork(2). */
#include "resource.h"

#include <sys/wait.h>

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif
#define BYTES (4 * PAGE_BYTES)

static char *area, *plain;

static void set_up(void) {
    area = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(area != MAP_FAILED);
    memset(area, 'd', BYTES);
    plain = map_private(BYTES, PROT_READ | PROT_WRITE);
    memset(plain, 'p', BYTES);
}

/* Returns whether a byte is empty, or unchanged in the parent. The kernel may have dropped the memory in the parent
 * too. */
static int is_it_or_empty(char at) { return at == 0 || (at == 'd' && !is_child); }

static void check(void) {
    REQUIRE(area_has_flag(area, "dp") && area_has_flag(area, "wf") && area_has_flag(area, "dd"));
    REQUIRE(!area_has_flag(plain, "dp") && !area_has_flag(plain, "wf"));
    REQUIRE(is_it_or_empty(area[0]) && is_it_or_empty(area[BYTES - 1]));
    REQUIRE(plain[0] == 'p' && plain[BYTES - 1] == 'p');
    if (!is_child) return;
    /* The memory can be written, and is empty again in a forked process. */
    memset(area, 'c', BYTES);
    pid_t pid = fork();
    if (pid == 0) _exit(area[0] == 0 && area[BYTES - 1] == 0 && plain[0] == 'p' ? 0 : 1);
    int status;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
    REQUIRE(madvise(area, BYTES, MADV_KEEPONFORK) == -1, "MADV_KEEPONFORK is accepted");
}
