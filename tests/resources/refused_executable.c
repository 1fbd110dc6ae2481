/* A process that denies itself mappings that become executable, or are writable and executable (PR_SET_MDWE). */
#include "resource.h"

#include <sys/prctl.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

static char *page;

static void set_up(void) {
    page = map_private(4096, PROT_READ | PROT_WRITE);
    REQUIRE(prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0);
}

static void check(void) {
    REQUIRE(prctl(PR_GET_MDWE, 0, 0, 0, 0) == PR_MDWE_REFUSE_EXEC_GAIN, "%d", prctl(PR_GET_MDWE, 0, 0, 0, 0));
    REQUIRE(mprotect(page, 4096, PROT_READ | PROT_EXEC) == -1 && errno == EACCES);
    REQUIRE(mmap(NULL, 4096, PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EACCES);
}
