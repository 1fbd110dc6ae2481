/* A private mapping that does not follow in a child: of a segment of System V shared memory, of a memfd in huge pages of hugetlbfs, or of a file that
 * nobody had open for writing at the prepare. In the process the page that was not written through the mapping shows what is written to the object; a
 * child keeps what was shown at the prepare.
 * usage: private_copy segment | huge | file PATH
 */
#include "../forked.h"

#include <sys/file.h>
#include <sys/shm.h>

#define HUGE_BYTES (2UL << 20)
#define HUGE_PAGES 4
#define HUGE_SETTING "/proc/sys/vm/nr_hugepages"

static uint64_t *shared, *private;
static size_t unit = PAGE_BYTES;

static void map_segment(void) {
    char link[64];
    int id = shmget(IPC_PRIVATE, 2 * unit, IPC_CREAT | 0600);
    shared = shmat(id, NULL, 0);
    REQUIRE(id >= 0 && shared != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    unsigned long start = (unsigned long)shared;
    snprintf(link, sizeof link, "/proc/self/map_files/%lx-%lx", start, start + 2 * unit);
    int fd = open(link, O_RDONLY | O_CLOEXEC);
    private = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    REQUIRE(fd >= 0 && private != MAP_FAILED && close(fd) == 0);
}

/* With as many pages kept aside as it takes, put back when they are mapped: others change the number under the same lock. */
static void map_huge(void) {
    unit = HUGE_BYTES;
    char text[32] = "";
    int setting = open(HUGE_SETTING, O_RDWR | O_CLOEXEC), fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
    REQUIRE(setting >= 0 && fd >= 0 && flock(setting, LOCK_EX) == 0 && ftruncate(fd, 2 * (off_t)unit) == 0);
    REQUIRE(pread(setting, text, sizeof text - 1, 0) > 0);
    unsigned long before = strtoul(text, NULL, 10);
    dprintf(setting, "%lu", before + HUGE_PAGES);
    shared = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    private = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    dprintf(setting, "%lu", before);
    REQUIRE(shared != MAP_FAILED && private != MAP_FAILED && close(setting) == 0);
}

/* A child opens it for writing itself, later. */
static void map_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && ftruncate(fd, 2 * (off_t)unit) == 0);
    shared = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    private = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    REQUIRE(shared != MAP_FAILED && private != MAP_FAILED && close(fd) == 0);
}

int main(int count, char **arguments) {
    REQUIRE(count >= 2);
    const char *path = arguments[2];
    if (path) map_file(path);
    else if (strcmp(arguments[1], "huge") == 0) map_huge();
    else map_segment();
    volatile uint64_t *clean = private + unit / sizeof *private, *object = shared + unit / sizeof *shared;
    shared[0] = 1;
    private[0] = 2;
    *object = 3;
    REQUIRE(*clean == 3 && shared[0] == 1, "the kernel shows no private mapping what was written");
    if (path) REQUIRE(munmap(shared, 2 * unit) == 0);
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    if (path) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        shared = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        REQUIRE(fd >= 0 && shared != MAP_FAILED);
        object = shared + unit / sizeof *shared;
    }
    REQUIRE(private[0] == 2 && *clean == 3 && shared[0] == 1 && *object == 3);
    *object = 4;
    REQUIRE(*clean == 3 && private[0] == 2, "it follows: `farfork check` need not tell");
    finish(payload, 0);
}
