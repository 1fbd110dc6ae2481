/* Moves two areas with one mremap(2) (Linux 6.17 and later). The kernel refuses to move several areas if one of them is
 * registered with a userfaultfd(2). So a child gets EFAULT, and either no area is moved or the first one is. After the
 * child has settled, mremap(2) moves both.
 * usage: mremap_several
 */
#include "../forked.h"

#define BYTES (8 * PAGE_BYTES)
#define WORDS (BYTES / sizeof(uint64_t))
/* Longest wait until the test has settled the child, in microseconds. */
#define PATIENCE_US 60000000

/* Two adjacent areas, of which one is writable. */
static uint64_t *two_areas(uint64_t first) {
    uint64_t *areas = map_anonymous(2 * BYTES);
    fill(areas, 2 * BYTES, first);
    REQUIRE(mprotect(areas + WORDS, BYTES, PROT_READ) == 0);
    return areas;
}

static uint64_t *place_for_two(void) {
    void *place = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(place != MAP_FAILED);
    return place;
}

static int move_to(uint64_t *from, uint64_t *to) {
    if (mremap(from, 2 * BYTES, 2 * BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == (void *)to) return 1;
    REQUIRE(errno == EFAULT);
    return 0;
}

int main(void) {
    uint64_t *areas = two_areas(1000), *elsewhere = two_areas(50000), *place = place_for_two();
    /* In the parent no area has a userfaultfd, so the kernel moves both areas. */
    REQUIRE(move_to(elsewhere, place) && holds(place, 2 * BYTES, 50000), "the kernel does not move two areas at once");
    place = place_for_two();
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    REQUIRE(!move_to(areas, place), "the kernel moves several areas of which pages are fetched: farfork need not refuse");
    say("refused");
    REQUIRE(holds(areas, 2 * BYTES, 1000), "areas that were not moved have changed");
    for (uint64_t begun = monotonic_us(); !move_to(areas, place);) {
        REQUIRE(monotonic_us() - begun < PATIENCE_US, "the child was not settled in time");
        usleep(10000);
    }
    REQUIRE(holds(place, 2 * BYTES, 1000));
    REQUIRE(place[0] == word_of(1000) && (place[0] = 7) == 7);
    finish(payload, 0);
}
