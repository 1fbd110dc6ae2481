/* Private mappings that do not follow their object in a child. The object is a System V segment, a memfd in huge pages
 * of hugetlbfs, or a file that no process had open for writing at prepare.
 *
 * In the parent, pages that were not written through the mapping show later writes to the object. In a child, they keep
 * the contents that they had at prepare.
 * usage: private_copy segment | huge | file PATH
 */
#include "../forked.h"

#include <sys/shm.h>

#include "../../../../../tests/resources/huge_setting.h"

#define HUGE_BYTES (2UL << 20)
#define HUGE_PAGES 4

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

/* Maps a memfd in huge pages, and makes the kernel reserve them. */
static void map_huge(void) {
    unit = HUGE_BYTES;
    struct huge_setting setting = huge_setting_begin();
    int fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
    REQUIRE(fd >= 0 && ftruncate(fd, 2 * (off_t)unit) == 0);
    huge_setting_add(&setting, HUGE_PAGES);
    shared = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    private = mmap(NULL, 2 * unit, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    huge_setting_end(setting);
    REQUIRE(shared != MAP_FAILED && private != MAP_FAILED);
}

/* Maps a file and closes it. A child opens the file for writing after the fork. */
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
    REQUIRE(*clean == 3 && shared[0] == 1, "the private mapping does not show a write to the object");
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
    REQUIRE(*clean == 3 && private[0] == 2, "the mapping follows its object: `farfork check` need not report it");
    finish(payload, 0);
}
