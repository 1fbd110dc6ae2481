/* Files of hugetlbfs: open, mapped shared and mapped privately. Children get the pages that exist, in ordinary memory
 * without a path. The parent has exactly the huge pages that it reserved. If its seed kept one, the parent could not
 * write. */
#include "huge_pages.h"

#include <sys/mount.h>

#define SPARSE_PAGES 1024UL
#define WORDS_BETWEEN 500

/* Pages of the privately mapped file. The first three have data in the file. The process has written COVERED and OWN
 * through the mapping, and has only read READ. */
enum { COVERED, READ, UNSEEN, FILE_PAGES, OWN = FILE_PAGES, NOWHERE, PRIVATE_PAGES };

static const size_t sparse_pages[] = {0, 5, 1000};
enum { SPARSE_FILLED = sizeof sparse_pages / sizeof sparse_pages[0] };

static int pool, sparse, data;
static char *shared, *own;
static pid_t other;

static volatile uint64_t *words(char *area, size_t page) { return (volatile uint64_t *)(void *)(area + page * HUGE_BYTES); }

static void fill(volatile uint64_t *at, uint64_t first) {
    for (size_t word = 0; word < HUGE_BYTES / sizeof first; word += WORDS_BETWEEN) at[word] = first + word;
}

static int is_filled(volatile uint64_t *at, uint64_t first) {
    for (size_t word = 0; word < HUGE_BYTES / sizeof first; word += WORDS_BETWEEN)
        if (at[word] != first + word) return 0;
    return at[1] == 0;
}

/* Creates a hugetlbfs mount without a mount point. */
static int mount_pool(void) {
    int context = fsopen("hugetlbfs", FSOPEN_CLOEXEC);
    REQUIRE(context >= 0 && fsconfig(context, FSCONFIG_SET_STRING, "pagesize", "2M", 0) == 0);
    REQUIRE(fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0);
    int mounted = fsmount(context, FSMOUNT_CLOEXEC, 0);
    REQUIRE(mounted >= 0 && close(context) == 0);
    return mounted;
}

static int make(const char *name, size_t pages) {
    int file = openat(pool, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0640);
    REQUIRE(file >= 0 && ftruncate(file, (off_t)(pages * HUGE_BYTES)) == 0);
    return file;
}

static int allocate(int file, size_t page) { return fallocate(file, 0, (off_t)(page * HUGE_BYTES), HUGE_BYTES) == 0; }

static int map(void) {
    for (size_t index = 0; index < SPARSE_FILLED; index++)
        if (!allocate(sparse, sparse_pages[index])) return 0;
    for (size_t page = 0; page < FILE_PAGES; page++)
        if (!allocate(data, page)) return 0;
    own = (char *)mmap(NULL, PRIVATE_PAGES * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, data, 0);
    return own != (char *)MAP_FAILED;
}

static uint64_t word_of(int file, size_t page) {
    uint64_t word;
    REQUIRE(pread(file, &word, sizeof word, (off_t)(page * HUGE_BYTES)) == sizeof word);
    return word;
}

static void set_up(void) {
    pool = mount_pool();
    sparse = make("sparse", SPARSE_PAGES), data = make("data", PRIVATE_PAGES);
    with_huge_pages(map);
    shared = (char *)mmap(NULL, SPARSE_PAGES * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, sparse, 0);
    REQUIRE(shared != (char *)MAP_FAILED && area_has_flag(shared, "ht") && area_has_flag(own, "ht"));
    for (size_t index = 0; index < SPARSE_FILLED; index++) fill(words(shared, sparse_pages[index]), 10 * index);
    char *of_file = (char *)mmap(NULL, FILE_PAGES * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
    REQUIRE(of_file != (char *)MAP_FAILED);
    for (size_t page = 0; page < FILE_PAGES; page++) fill(words(of_file, page), 100 + page);
    REQUIRE(munmap(of_file, FILE_PAGES * HUGE_BYTES) == 0);
    REQUIRE(close(pool) == 0);
    if ((other = fork_bound()) == 0) {
        while (words(shared, 5)[7] != 8) usleep(1000);
        words(shared, 1000)[7] = 9;
        for (;;) pause();
    }
    /* Written only after the fork: a page from before it would be shared with the child process, and the next write to
     * it would need another huge page. */
    REQUIRE(is_filled(words(own, READ), 100 + READ));
    fill(words(own, COVERED), 200), fill(words(own, OWN), 300);
}

static void check_shared(void) {
    struct stat status;
    REQUIRE(fstat(sparse, &status) == 0 && status.st_size == (off_t)(SPARSE_PAGES * HUGE_BYTES));
    REQUIRE((status.st_mode & 0777) == 0640);
    REQUIRE((unsigned long)status.st_blocks <= SPARSE_FILLED * HUGE_BYTES / 512, "%ld blocks", (long)status.st_blocks);
    for (size_t index = 0; index < SPARSE_FILLED; index++) {
        REQUIRE(is_filled(words(shared, sparse_pages[index]), 10 * index), "page %zu", sparse_pages[index]);
        REQUIRE(word_of(sparse, sparse_pages[index]) == 10 * index);
    }
    REQUIRE(word_of(sparse, 700) == 0);
    words(shared, 5)[7] = 8;
    REQUIRE(COMES_TRUE(words(shared, 1000)[7] == 9), "the child process does not share the memory");
    REQUIRE(kill(other, SIGKILL) == 0);
}

static void check_own(void) {
    REQUIRE(is_filled(words(own, COVERED), 200) && is_filled(words(own, READ), 100 + READ));
    REQUIRE(is_filled(words(own, UNSEEN), 100 + UNSEEN) && is_filled(words(own, OWN), 300));
    /* Each write takes a reserved huge page. */
    for (size_t page = 0; page < PRIVATE_PAGES; page++) fill(words(own, page), 400 + page);
    for (size_t page = 0; page < PRIVATE_PAGES; page++) REQUIRE(is_filled(words(own, page), 400 + page));
    for (size_t page = 0; page < PRIVATE_PAGES; page++)
        REQUIRE(word_of(data, page) == (page < FILE_PAGES ? 100 + page : 0), "page %zu", page);
}

static void check(void) {
    REQUIRE(area_has_flag(shared, "ht") == !is_child && area_has_flag(own, "ht") == !is_child);
    check_shared();
    check_own();
}
