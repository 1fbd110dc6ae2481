// A parent with much memory. Each area has its own madvise(2) flags. Without the flags, the kernel would merge adjacent
// areas.
#include "parent.h"

#define AREA_BYTES (16UL << 20)

static char *place;

static void area(const char *name, size_t bytes, int advice) {
    char *at = CHECK(mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    place += bytes;
    CHECK(madvise(at, bytes, MADV_NOHUGEPAGE));
    if (advice >= 0) CHECK(madvise(at, bytes, advice));
    for (size_t offset = 0; offset < bytes; offset += PAGE) at[offset] = 1;
    tell(name, (unsigned long)at);
}

int main(void) {
    begin();
    place = CHECK(mmap(NULL, 5 * AREA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    area("plain", AREA_BYTES, -1);
    area("wiped", 1UL << 20, MADV_WIPEONFORK);
    area("undumped", AREA_BYTES, MADV_DONTDUMP);
    area("unforked", AREA_BYTES, MADV_DONTFORK);
    char *secret = place;
    area("absent", 1UL << 20, MADV_DONTFORK);
    CHECK(madvise(secret, 1UL << 20, MADV_DONTDUMP));
    // One area except for the flag: without it, the kernel merges both parts.
    char *joined = CHECK(mmap(NULL, 1UL << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(madvise(joined, 1UL << 20, MADV_DONTDUMP));
    memset(joined, 1, 1UL << 20);
    CHECK(madvise(joined + (1UL << 19), 1UL << 18, MADV_DONTFORK));
    tell("joined", (unsigned long)joined);
    ready();
    for (;;) pause();
}
