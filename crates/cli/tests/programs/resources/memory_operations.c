/* Operations of a child on memory that is not fetched yet: fork, mremap, munmap, madvise, mprotect, and system calls
 * that read and write it. Each operation uses an area of its own, which was not touched since the fork.
 */
#include "../forked.h"

#include <sys/uio.h>
#include <sys/wait.h>

#define BYTES (256 * PAGE_BYTES)
#define HALF (BYTES / 2)
#define WORDS(bytes) ((bytes) / sizeof(uint64_t))

enum { FORKED, MOVED, PARTLY_MOVED, CUT, DISCARDED, FREED, PROTECTED, READ_BY_KERNEL, WRITTEN_BY_KERNEL, REMOTE, AREAS };

static uint64_t *areas[AREAS];

static uint64_t first_of(int area) { return (uint64_t)area * 1000000; }

static void check_area(int area) { REQUIRE(holds(areas[area], BYTES, first_of(area)), "area %d", area); }

/* The child and a process that it forks fetch the same pages at the same time. */
static void check_fork(void) {
    pid_t pid = fork();
    if (pid == 0) {
        check_area(FORKED);
        areas[FORKED][0] = 1;
        for (int area = MOVED; area < AREAS; area++) check_area(area);
        _exit(EXIT_RIGHT);
    }
    check_area(FORKED);
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RIGHT, "status %x", status);
    check_area(FORKED);
}

static void check_move_and_growth(void) {
    uint64_t *at = (uint64_t *)mremap(areas[MOVED], BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    REQUIRE((void *)at != MAP_FAILED);
    REQUIRE(holds(at, BYTES, first_of(MOVED)) && is_zero(at + WORDS(BYTES), BYTES));
}

static void check_partial_move(void) {
    uint64_t *target = (uint64_t *)map_anonymous(HALF), *source = areas[PARTLY_MOVED] + WORDS(BYTES / 4);
    REQUIRE(mremap(source, HALF, HALF, MREMAP_MAYMOVE | MREMAP_FIXED, target) == (void *)target);
    REQUIRE(holds(target, HALF, first_of(PARTLY_MOVED) + WORDS(BYTES / 4)));
    REQUIRE(holds(areas[PARTLY_MOVED], BYTES / 4, first_of(PARTLY_MOVED)));
    REQUIRE(holds(source + WORDS(HALF), BYTES / 4, first_of(PARTLY_MOVED) + WORDS(BYTES / 4 * 3)));
}

/* Unmaps a part of an area, and maps new memory there. */
static void check_hole(void) {
    uint64_t *hole = areas[CUT] + WORDS(BYTES / 4);
    REQUIRE(munmap(hole, HALF) == 0);
    void *fresh = mmap(hole, HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    REQUIRE(fresh == (void *)hole && is_zero(fresh, HALF), "a new mapping shows old memory");
    REQUIRE(holds(areas[CUT], BYTES / 4, first_of(CUT)));
    REQUIRE(holds(hole + WORDS(HALF), BYTES / 4, first_of(CUT) + WORDS(BYTES / 4 * 3)));
}

static void check_advice(void) {
    REQUIRE(madvise(areas[DISCARDED], HALF, MADV_DONTNEED) == 0);
    REQUIRE(is_zero(areas[DISCARDED], HALF), "discarded memory has its old contents");
    REQUIRE(holds(areas[DISCARDED] + WORDS(HALF), HALF, first_of(DISCARDED) + WORDS(HALF)));
    areas[FREED][0] = word_of(first_of(FREED)); /* fetches this page; the others are missing */
    REQUIRE(madvise(areas[FREED], HALF, MADV_FREE) == 0);
    for (size_t page = 0; page < HALF; page += PAGE_BYTES) {
        const uint64_t *at = areas[FREED] + WORDS(page);
        REQUIRE(is_zero(at, PAGE_BYTES) || holds(at, PAGE_BYTES, first_of(FREED) + WORDS(page)), "changed, not zero");
    }
    REQUIRE(holds(areas[FREED] + WORDS(HALF), HALF, first_of(FREED) + WORDS(HALF)));
}

static void check_protection(void) {
    REQUIRE(mprotect(areas[PROTECTED], BYTES, PROT_NONE) == 0 && mprotect(areas[PROTECTED], HALF, PROT_READ) == 0);
    REQUIRE(holds(areas[PROTECTED], HALF, first_of(PROTECTED)));
    REQUIRE(mprotect(areas[PROTECTED], BYTES, PROT_READ | PROT_WRITE) == 0);
    check_area(PROTECTED);
}

/* When the kernel accesses memory in a system call, it waits until the page is fetched, as the program does. */
static void check_system_calls(void) {
    int ends[2];
    uint64_t words[WORDS(2 * PAGE_BYTES)];
    REQUIRE(pipe(ends) == 0);
    REQUIRE(write(ends[1], areas[READ_BY_KERNEL], sizeof words) == sizeof words);
    REQUIRE(read(ends[0], words, sizeof words) == sizeof words && holds(words, sizeof words, first_of(READ_BY_KERNEL)));
    REQUIRE(write(ends[1], words, 96) == 96);
    const size_t at = 5 * PAGE_BYTES - 48; /* across the boundary of two missing pages */
    REQUIRE(read(ends[0], (char *)areas[WRITTEN_BY_KERNEL] + at, 96) == 96);
    REQUIRE(memcmp((char *)areas[WRITTEN_BY_KERNEL] + at, words, 96) == 0);
    REQUIRE(holds(areas[WRITTEN_BY_KERNEL], at, first_of(WRITTEN_BY_KERNEL)));
    const size_t behind = WORDS(at + 96);
    REQUIRE(holds(areas[WRITTEN_BY_KERNEL] + behind, BYTES - at - 96, first_of(WRITTEN_BY_KERNEL) + behind));
}

/* Another process reads memory of this process that this process has not touched. */
static void check_remote_read(void) {
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        uint64_t *copy = (uint64_t *)map_anonymous(BYTES);
        struct iovec local = {copy, BYTES}, remote = {areas[REMOTE], BYTES};
        REQUIRE(process_vm_readv(parent, &local, 1, &remote, 1, 0) == (ssize_t)BYTES);
        _exit(holds(copy, BYTES, first_of(REMOTE)) ? EXIT_RIGHT : EXIT_WRONG);
    }
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RIGHT, "status %x", status);
}

int main(void) {
    for (int area = 0; area < AREAS; area++) {
        areas[area] = (uint64_t *)map_anonymous(BYTES);
        fill(areas[area], BYTES, first_of(area));
        map_anonymous(PAGE_BYTES); /* keeps the kernel from merging neighbours */
    }

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    check_fork();
    check_remote_read();
    check_move_and_growth();
    check_partial_move();
    check_hole();
    check_advice();
    check_protection();
    check_system_calls();
    finish(payload, 0);
}
