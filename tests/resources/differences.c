/* State that a child lacks, as docs/process-state.md says: guard pages in shared memory, write hints and extended attributes of a
 * removed file, directory notifications, and CPU time. */
#include "resource.h"

#include <sys/xattr.h>

#define GUARD_INSTALL 102 /* since Linux 6.13; libc may lack it */
#define WORKED_NS 300000000ull

static char *shared;
static int file, notified;
static volatile sig_atomic_t notifications;

static void count_notification(int signal) { notifications += signal == SIGIO; }

static void set_up(void) {
    uint64_t hint = RWH_WRITE_LIFE_SHORT;
    shared = mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && madvise(shared + PAGE_BYTES, PAGE_BYTES, GUARD_INSTALL) == 0);
    file = open(path_of("removed"), O_RDWR | O_CREAT, 0600);
    REQUIRE(file >= 0 && fsetxattr(file, "user.farfork", "x", 1, 0) == 0 && unlink(path_of("removed")) == 0);
    REQUIRE(fcntl(file, F_SET_RW_HINT, &hint) == 0);
    struct sigaction action = {.sa_handler = count_notification, .sa_flags = SA_RESTART};
    REQUIRE(sigaction(SIGIO, &action, NULL) == 0);
    notified = open(directory, O_RDONLY | O_DIRECTORY);
    REQUIRE(notified >= 0 && fcntl(notified, F_NOTIFY, DN_CREATE | DN_MULTISHOT) == 0);
    while (now_ns(CLOCK_PROCESS_CPUTIME_ID) < WORKED_NS) continue;
}

static void check(void) {
    uint64_t hint = 0;
    char value;
    REQUIRE(is_readable(shared) && is_readable(shared + PAGE_BYTES) == is_child, "the guard page");
    REQUIRE(fcntl(file, F_GET_RW_HINT, &hint) == 0 && hint == (is_child ? RWH_WRITE_LIFE_NOT_SET : RWH_WRITE_LIFE_SHORT));
    REQUIRE(fgetxattr(file, "user.farfork", &value, 1) == (is_child ? -1 : 1), "the extended attribute");
    REQUIRE((now_ns(CLOCK_PROCESS_CPUTIME_ID) < WORKED_NS) == is_child, "the CPU time");
    int made = open(path_of(is_child ? "made-by-child" : "made"), O_RDWR | O_CREAT, 0600);
    REQUIRE(made >= 0 && (notifications > 0) == !is_child, "%d notifications", notifications);
    REQUIRE(close(made) == 0 && unlink(path_of(is_child ? "made-by-child" : "made")) == 0);
}
