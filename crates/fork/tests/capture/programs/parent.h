// Common code of all parents of these tests. Only the standard streams are open, and lines `NAME VALUE` report values to the
// test. The last line is `ready`.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static inline void die(const char *what) {
    printf("failed %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

#define CHECK(call)                                                                                                    \
    ({                                                                                                                 \
        __typeof__(call) result_ = (call);                                                                             \
        if ((long)result_ == -1) die(#call);                                                                           \
        result_;                                                                                                       \
    })

static inline void begin(void) {
    syscall(SYS_close_range, 3, ~0U, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

static inline void tell(const char *name, unsigned long value) { printf("%s %lx\n", name, value); }

static inline void ready(void) { puts("ready"); }

static inline void start(pthread_t *thread, const char *name, void *(*run)(void *)) {
    if (pthread_create(thread, NULL, run, NULL)) die(name);
    pthread_setname_np(*thread, name);
}

// The word that page number `page` of known data holds.
static inline uint64_t known(uint64_t page) { return page * 0x9e3779b97f4a7c15ULL + 1; }

#define PAGES_BYTES (256 << 10)

// Offers pages for the calls of a capture: one for code, the others writable, with a mark (a word, and their address).
static inline char *offer(int flags, int code_rights) {
    char *pages = CHECK(mmap(NULL, PAGES_BYTES, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0));
    // A capture that made calls from these words would end the process with the first call.
    for (size_t at = PAGE + 64; at < PAGES_BYTES; at += 64) *(uint64_t *)(pages + at) = SYS_exit_group;
    // Unused words must not change.
    for (size_t at = 2 * PAGE + 64; at < PAGES_BYTES; at += 512) *(uint64_t *)(pages + at) = known(at);
    uint64_t mark[2] = {0x6b72616d, (uint64_t)pages};
    memcpy(pages + PAGE, mark, sizeof mark);
    CHECK(mprotect(pages, PAGE, code_rights));
    return pages;
}
