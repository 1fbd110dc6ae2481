/* Memory of all kinds: how it is mapped, and its contents. */
#pragma once

#include "random.h"

#include <sys/shm.h>
#include <sys/uio.h>

#define AREAS_MAX 64
#define PAGES_MAX 48
#define GUARD_INSTALL 102
#define MEMFD_NAME "random"
#define MEMFD_PATH "/memfd:" MEMFD_NAME " (deleted)"

struct area {
    char *at;
    size_t bytes;
    char *wiped, *wiped_end;   /* the part that is zero in a forked process */
    char *absent, *absent_end; /* the part that a forked process lacks */
};

static struct area areas[AREAS_MAX];
static size_t areas_count;

static struct area *note_area(char *at, size_t bytes) {
    REQUIRE(areas_count < AREAS_MAX);
    areas[areas_count] = (struct area){.at = at, .bytes = bytes};
    return &areas[areas_count++];
}

/* Writes some of the pages. */
static void write_some(char *at, size_t pages) {
    uint64_t every = 1 + below(4);
    for (size_t page = 0; page < pages; page++)
        if (one_in(every)) fill_bytes(at + page * PAGE_BYTES, 1 + below(PAGE_BYTES));
}

/* Chooses a part of an area. Returns its size in bytes. */
static size_t part_of(char *at, size_t pages, char **from) {
    size_t first = below(pages), count = 1 + below(pages - first);
    *from = at + first * PAGE_BYTES;
    return count * PAGE_BYTES;
}

static void protect_parts(char *at, size_t pages) {
    static const int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_EXEC,
                                      PROT_READ | PROT_WRITE | PROT_EXEC};
    for (uint64_t left = below(4); left > 0; left--) {
        char *from;
        size_t bytes = part_of(at, pages, &from);
        /* Fails for shared memory of a file that is open only for reading: it cannot become writable. */
        int allowed = mprotect(from, bytes, ONE_OF(protections));
        REQUIRE(allowed == 0 || errno == EACCES);
    }
}

/* Maps pages between two inaccessible pages. */
static char *map_room(size_t pages, int flags, int fd, off_t offset) {
    char *at = mmap(NULL, (pages + 2) * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at != MAP_FAILED);
    int protection = fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && flags & MAP_SHARED ? PROT_READ : PROT_READ | PROT_WRITE;
    void *room = mmap(at + PAGE_BYTES, pages * PAGE_BYTES, protection, flags | MAP_FIXED, fd, offset);
    REQUIRE(room == at + PAGE_BYTES, "flags %x", flags);
    return room;
}

static void advise_part(struct area *area, size_t pages) {
    static const int advices[] = {MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_SEQUENTIAL, MADV_RANDOM,  MADV_DONTDUMP, MADV_MERGEABLE,
                                  MADV_COLD,     MADV_WIPEONFORK, MADV_DONTFORK,   MADV_DONTNEED, GUARD_INSTALL};
    char *from;
    size_t bytes = part_of(area->at, pages, &from);
    int advice = ONE_OF(advices);
    REQUIRE(madvise(from, bytes, advice) == 0 || (advice == GUARD_INSTALL && errno == EINVAL), "advice %d", advice);
    if (advice == MADV_WIPEONFORK) area->wiped = from, area->wiped_end = from + bytes;
    /* With both, neither a forked process nor a core has the memory. */
    if (advice != MADV_DONTFORK || one_in(2)) return;
    REQUIRE(madvise(from, bytes, MADV_DONTDUMP) == 0);
    area->absent = from, area->absent_end = from + bytes;
}

static void make_private(void) {
    size_t pages = 1 + below(PAGES_MAX);
    char *at = map_room(pages, MAP_PRIVATE | MAP_ANONYMOUS | (one_in(2) ? MAP_NORESERVE : 0), -1, 0);
    struct area *area = note_area(at, pages * PAGE_BYTES);
    write_some(at, pages);
    if (one_in(2)) advise_part(area, pages);
    if (one_in(3) && !area->absent) {
        char *from;
        size_t bytes = part_of(at, pages, &from);
        /* mlock2(2) fails at a guard page, after it has locked the pages before it. */
        REQUIRE(mlock2(from, bytes, one_in(2) ? MLOCK_ONFAULT : 0) == 0 || errno == ENOMEM || errno == EFAULT);
    }
    protect_parts(at, pages);
}

static void make_shared(void) {
    size_t pages = 1 + below(PAGES_MAX);
    char *at = map_room(pages, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    note_area(at, pages * PAGE_BYTES);
    write_some(at, pages);
    protect_parts(at, pages);
}

/* Maps a part of an open file. A shared mapping may extend past the end of the file. */
static void map_file(int fd, size_t pages) {
    int is_shared = one_in(2);
    size_t first = below(pages), count = 1 + below(pages - first + (is_shared ? 2 : 0));
    char *at = map_room(count, is_shared ? MAP_SHARED : MAP_PRIVATE, fd, (off_t)(first * PAGE_BYTES));
    note_area(at, count * PAGE_BYTES);
    if (!is_shared) write_some(at, count);
    protect_parts(at, count);
}

/* Makes a file with random bytes, of at most this many pages. */
static int new_file(size_t pages, int flags) {
    static char page[PAGE_BYTES];
    const char *path = new_path();
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600 | below(0200));
    REQUIRE(fd >= 0, "%s", path);
    for (size_t i = 0; i < pages; i++) {
        fill_bytes(page, sizeof page);
        size_t bytes = i + 1 < pages ? sizeof page : 1 + below(sizeof page);
        REQUIRE(pwrite(fd, page, bytes, (off_t)(i * PAGE_BYTES)) == (ssize_t)bytes);
    }
    close(fd);
    fd = open(path, flags);
    REQUIRE(fd >= 0);
    return fd;
}

static void make_mapped_file(void) {
    size_t pages = 1 + below(8);
    int fd = new_file(pages, one_in(2) ? O_RDWR : O_RDONLY);
    if (one_in(3)) {
        char path[PATH_BYTES_MAX] = {0}, link[32];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        REQUIRE(readlink(link, path, sizeof path - 1) > 0 && unlink(path) == 0);
    }
    map_file(fd, pages);
    if (one_in(2)) map_file(fd, pages);
    if (one_in(2)) close(fd);
}

static void make_memfd(void) {
    static const int seals[] = {F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_GROW | F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE,
                                F_SEAL_GROW | F_SEAL_SEAL, 0};
    size_t pages = 1 + below(8);
    int fd = memfd_create(MEMFD_NAME, (one_in(2) ? MFD_ALLOW_SEALING : 0) | (one_in(2) ? MFD_CLOEXEC : 0));
    REQUIRE(fd >= 0 && ftruncate(fd, (off_t)(pages * PAGE_BYTES)) == 0);
    char bytes[1000];
    fill_bytes(bytes, sizeof bytes);
    REQUIRE(pwrite(fd, bytes, sizeof bytes, (off_t)below((pages - 1) * PAGE_BYTES + 1)) == sizeof bytes);
    lseek(fd, (off_t)below(20000), SEEK_SET);
    if (one_in(2)) map_file(fd, pages);
    if (!(fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL)) REQUIRE(fcntl(fd, F_ADD_SEALS, ONE_OF(seals)) == 0);
    if (one_in(4)) close(fd);
}

/* The segment is removed when its last user detaches it. */
static void make_system_v(void) {
    size_t pages = 1 + below(8);
    int id = shmget(IPC_PRIVATE, pages * PAGE_BYTES, IPC_CREAT | 0600);
    char *at = shmat(id, NULL, 0);
    REQUIRE(id >= 0 && at != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    write_some(at, pages);
    note_area(at, pages * PAGE_BYTES);
}

static void make_reservation(void) {
    size_t pages = 1 + below(8);
    char *at = mmap(NULL, 1UL << (33 + below(8)), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at != MAP_FAILED);
    char *used = at + below(1UL << 20) * PAGE_BYTES;
    REQUIRE(mprotect(used, pages * PAGE_BYTES, PROT_READ | PROT_WRITE) == 0);
    write_some(used, pages);
    note_area(used, pages * PAGE_BYTES);
}

static void make_heap(void) {
    size_t pages = 1 + below(PAGES_MAX);
    char *at = sbrk((intptr_t)((pages + 1) * PAGE_BYTES));
    REQUIRE(at != (void *)-1);
    at += -(uintptr_t)at % PAGE_BYTES;
    write_some(at, pages);
    note_area(at, pages * PAGE_BYTES);
}

static void state_pages(const struct area *area, const char *when) {
    static char page[PAGE_BYTES];
    uint64_t hash = HASH_OF_NOTHING;
    size_t readable = 0, not_wiped = 0;
    for (char *at = area->at; at < area->at + area->bytes; at += PAGE_BYTES) {
        if (at >= area->absent && at < area->absent_end) continue;
        struct iovec here = {page, sizeof page}, there = {at, sizeof page};
        ssize_t bytes = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
        int is_wiped = at >= area->wiped && at < area->wiped_end;
        if (is_wiped && is_child && bytes > 0) not_wiped += !is_zero(page, sizeof page);
        readable += bytes == (ssize_t)sizeof page;
        if (!is_wiped) hash = add_to_hash(hash, bytes > 0 ? page : "none", bytes > 0 ? sizeof page : 4);
    }
    state("memory %p+%zu %s: %zu pages readable, %lx, %zu not wiped\n", (void *)area->at, area->bytes, when, readable, hash, not_wiped);
}

static void state_memory(void) {
    state("brk %p\n", sbrk(0));
    for (size_t i = 0; i < areas_count; i++) state_pages(&areas[i], "as it is");
}

/* Makes all pages readable, and states their contents. The protections are lost. */
static void use_up_memory(void) {
    for (size_t i = 0; i < areas_count; i++) {
        struct area *area = &areas[i];
        for (char *at = area->at; at < area->at + area->bytes; at += PAGE_BYTES)
            if (at < area->absent || at >= area->absent_end) REQUIRE(mprotect(at, PAGE_BYTES, PROT_READ) == 0, "%p", (void *)at);
        state_pages(area, "when all may be read");
    }
}
