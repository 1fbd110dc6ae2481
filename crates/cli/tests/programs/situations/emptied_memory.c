/* Memory that a child empties itself, in each way that the kernel offers. Processes that the child forks must read
 * zeroes there, never the parent's data. Each way has four variants: the child has touched half of the pages before, or
 * none; it reads the area before it forks, or does not. The forked processes read all areas, and fork further
 * processes.
 */
#include "../forked.h"

#include <sys/wait.h>

#define AREA_PAGES 16
#define AREA_BYTES (AREA_PAGES * PAGE_BYTES)
#define PAGE_WORDS (PAGE_BYTES / sizeof(uint64_t))
/* Offset of a way's second area, onto which some ways move the first area. Nothing is mapped after the second area. */
#define SECOND (AREA_PAGES * PAGE_WORDS)
#define PLACE_BYTES (8 * AREA_BYTES)
#define VARIANTS 4
#define EXPECTED_MAX 20000
#define GENERATIONS 3
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

/* The contents of a page: consecutive words, zeroes, or either. */
enum kind { DATA, ZERO, EITHER };

struct expected {
    uint64_t *at, first;
    enum kind kind;
    const char *way;
};

static struct expected *expected;
static int expected_count, generation;
static const char *way_now;

static void expect(uint64_t *at, int pages, enum kind kind, uint64_t first) {
    for (int page = 0; page < pages; page++) {
        REQUIRE(expected_count < EXPECTED_MAX);
        expected[expected_count++] =
            (struct expected){at + page * PAGE_WORDS, first + page * PAGE_WORDS, kind, way_now};
    }
}

static void look_at(const struct expected *page) {
    int is_right = (page->kind != ZERO && holds(page->at, PAGE_BYTES, page->first)) ||
                   (page->kind != DATA && is_zero(page->at, PAGE_BYTES));
    REQUIRE(is_right, "%s, generation %d: page at %p holds %llx, not %s %llx", page->way, generation, (void *)page->at,
            (unsigned long long)page->at[0], page->kind == DATA ? "data" : "zeroes or", (unsigned long long)word_of(page->first));
}

static void *moved(uint64_t *from, size_t old, size_t bytes, int flags, uint64_t *to) {
    void *now = mremap(from, old, bytes, flags, to);
    REQUIRE(now != MAP_FAILED, "%s", way_now);
    return now;
}

static void fresh(uint64_t *at, size_t bytes, int protection) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    REQUIRE(mmap(at, bytes, protection, flags, -1, 0) == (void *)at);
}

/* ---- the ways: each gets two areas with the parent's data, and free address space after them ---- */

#define FIXED (MREMAP_MAYMOVE | MREMAP_FIXED)
#define LEAVING (MREMAP_MAYMOVE | MREMAP_DONTUNMAP)

static void discards(uint64_t *area, uint64_t first) {
    REQUIRE(madvise(area, AREA_BYTES, MADV_DONTNEED) == 0);
    expect(area, AREA_PAGES, ZERO, first);
}

static void frees(uint64_t *area, uint64_t first) {
    REQUIRE(madvise(area, AREA_BYTES, MADV_FREE) == 0);
    expect(area, AREA_PAGES, EITHER, first);
}

static void leaves_mapped(uint64_t *area, uint64_t first) {
    expect(moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL), AREA_PAGES, DATA, first);
    expect(area, AREA_PAGES, ZERO, first);
}

static void leaves_a_part_mapped(uint64_t *area, uint64_t first) {
    uint64_t *part = area + 4 * PAGE_WORDS;
    expect(moved(part, AREA_BYTES / 2, AREA_BYTES / 2, LEAVING, NULL), AREA_PAGES / 2, DATA, first + 4 * PAGE_WORDS);
    expect(part, AREA_PAGES / 2, ZERO, first);
    expect(area, 4, DATA, first);
    expect(area + 12 * PAGE_WORDS, 4, DATA, first + 12 * PAGE_WORDS);
}

static void leaves_mapped_for_a_place(uint64_t *area, uint64_t first) {
    uint64_t *place = area + 2 * SECOND;
    moved(area, AREA_BYTES, AREA_BYTES, FIXED | MREMAP_DONTUNMAP, place);
    expect(place, AREA_PAGES, DATA, first);
    expect(area, AREA_PAGES, ZERO, first);
}

static void leaves_mapped_for_anothers_place(uint64_t *area, uint64_t first) {
    moved(area, AREA_BYTES, AREA_BYTES, FIXED | MREMAP_DONTUNMAP, area + SECOND);
    expect(area + SECOND, AREA_PAGES, DATA, first);
    expect(area, AREA_PAGES, ZERO, first);
}

static void leaves_mapped_twice(uint64_t *area, uint64_t first) {
    uint64_t *between = moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL);
    expect(moved(between, AREA_BYTES, AREA_BYTES, LEAVING, NULL), AREA_PAGES, DATA, first);
    expect(between, AREA_PAGES, ZERO, first);
    expect(area, AREA_PAGES, ZERO, first);
}

static void leaves_mapped_and_returns(uint64_t *area, uint64_t first) {
    uint64_t *between = moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL);
    moved(between, AREA_BYTES, AREA_BYTES, FIXED | MREMAP_DONTUNMAP, area);
    expect(between, AREA_PAGES, ZERO, first);
    expect(area, AREA_PAGES, DATA, first);
}

static void leaves_mapped_and_unmaps(uint64_t *area, uint64_t first) {
    expect(moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL), AREA_PAGES, DATA, first);
    REQUIRE(munmap(area, AREA_BYTES / 2) == 0);
    fresh(area, AREA_BYTES / 2, PROT_READ | PROT_WRITE);
    expect(area, AREA_PAGES, ZERO, first);
}

static void leaves_mapped_and_discards(uint64_t *area, uint64_t first) {
    uint64_t *now = moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL);
    REQUIRE(madvise(area, AREA_BYTES, MADV_DONTNEED) == 0 && madvise(now, AREA_BYTES / 2, MADV_DONTNEED) == 0);
    expect(area, AREA_PAGES, ZERO, first);
    expect(now, AREA_PAGES / 2, ZERO, first);
    expect(now + 8 * PAGE_WORDS, AREA_PAGES / 2, DATA, first + 8 * PAGE_WORDS);
}

static void leaves_mapped_and_writes(uint64_t *area, uint64_t first) {
    expect(moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL), AREA_PAGES, DATA, first);
    area[3 * PAGE_WORDS] = 1;
    area[3 * PAGE_WORDS] = 0;
    expect(area, AREA_PAGES, ZERO, first);
}

static void leaves_mapped_and_protects(uint64_t *area, uint64_t first) {
    expect(moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL), AREA_PAGES, DATA, first);
    REQUIRE(mprotect(area, AREA_BYTES / 2, PROT_NONE) == 0 && mprotect(area, AREA_BYTES / 2, PROT_READ) == 0);
    expect(area, AREA_PAGES, ZERO, first);
}

static void exchanges_by_moves(uint64_t *area, uint64_t first) {
    uint64_t *between = moved(area, AREA_BYTES, AREA_BYTES, LEAVING, NULL);
    moved(area + SECOND, AREA_BYTES, AREA_BYTES, FIXED | MREMAP_DONTUNMAP, area);
    moved(between, AREA_BYTES, AREA_BYTES, FIXED | MREMAP_DONTUNMAP, area + SECOND);
    expect(area, AREA_PAGES, DATA, first + SECOND);
    expect(area + SECOND, AREA_PAGES, DATA, first);
    expect(between, AREA_PAGES, ZERO, first);
}

static void moves_and_maps_anew(uint64_t *area, uint64_t first) {
    expect(moved(area, AREA_BYTES, AREA_BYTES, FIXED, area + 2 * SECOND), AREA_PAGES, DATA, first);
    fresh(area, AREA_BYTES, PROT_READ | PROT_WRITE);
    expect(area, AREA_PAGES, ZERO, first);
}

static void moves_onto_another(uint64_t *area, uint64_t first) {
    expect(moved(area, AREA_BYTES, AREA_BYTES, FIXED, area + SECOND), AREA_PAGES, DATA, first);
    fresh(area, AREA_BYTES, PROT_READ | PROT_WRITE);
    expect(area, AREA_PAGES, ZERO, first);
}

static void unmaps_and_maps_anew(uint64_t *area, uint64_t first) {
    REQUIRE(munmap(area + 4 * PAGE_WORDS, AREA_BYTES / 2) == 0);
    fresh(area + 4 * PAGE_WORDS, AREA_BYTES / 2, PROT_READ | PROT_WRITE);
    expect(area, 4, DATA, first);
    expect(area + 4 * PAGE_WORDS, AREA_PAGES / 2, ZERO, first);
    expect(area + 12 * PAGE_WORDS, 4, DATA, first + 12 * PAGE_WORDS);
}

static void maps_over(uint64_t *area, uint64_t first) {
    fresh(area, AREA_BYTES, PROT_READ);
    expect(area, AREA_PAGES, ZERO, first);
}

static void shrinks_and_grows(uint64_t *area, uint64_t first) {
    moved(area + SECOND, AREA_BYTES, AREA_BYTES / 4, 0, NULL);
    moved(area + SECOND, AREA_BYTES / 4, AREA_BYTES, 0, NULL);
    expect(area + SECOND, 4, DATA, first + SECOND);
    expect(area + SECOND + 4 * PAGE_WORDS, 12, ZERO, first);
}

static void discards_shrinks_and_grows(uint64_t *area, uint64_t first) {
    uint64_t *second = area + SECOND;
    REQUIRE(madvise(second + PAGE_WORDS, 5 * PAGE_BYTES, MADV_DONTNEED) == 0);
    moved(second, AREA_BYTES, AREA_BYTES / 4, 0, NULL);
    moved(second, AREA_BYTES / 4, AREA_BYTES, 0, NULL);
    expect(second, 1, DATA, first + SECOND);
    expect(second + PAGE_WORDS, AREA_PAGES - 1, ZERO, first);
}

static void grows_and_moves(uint64_t *area, uint64_t first) {
    uint64_t *now = moved(area + SECOND, AREA_BYTES, 2 * AREA_BYTES, MREMAP_MAYMOVE, NULL);
    now = moved(now, 2 * AREA_BYTES, 3 * AREA_BYTES, FIXED, area + 3 * SECOND);
    expect(now, AREA_PAGES, DATA, first + SECOND);
    expect(now + SECOND, 2 * AREA_PAGES, ZERO, first);
}

static void moves_and_shrinks(uint64_t *area, uint64_t first) {
    expect(moved(area, AREA_BYTES, AREA_BYTES / 2, FIXED, area + 2 * SECOND), AREA_PAGES / 2, DATA, first);
    fresh(area, AREA_BYTES, PROT_READ | PROT_WRITE);
    expect(area, AREA_PAGES, ZERO, first);
}

static void protects(uint64_t *area, uint64_t first) {
    REQUIRE(madvise(area, AREA_BYTES, MADV_DONTNEED) == 0);
    REQUIRE(mprotect(area, AREA_BYTES, PROT_NONE) == 0 && mprotect(area, AREA_BYTES / 2, PROT_READ | PROT_WRITE) == 0);
    REQUIRE(mprotect(area, AREA_BYTES, PROT_READ | PROT_WRITE) == 0);
    expect(area, AREA_PAGES, ZERO, first);
}

static const struct {
    const char *name;
    void (*act)(uint64_t *area, uint64_t first);
} ways[] = {
#define WAY(name) {#name, name}
    WAY(discards),
    WAY(frees),
    WAY(leaves_mapped),
    WAY(leaves_a_part_mapped),
    WAY(leaves_mapped_for_a_place),
    WAY(leaves_mapped_for_anothers_place),
    WAY(leaves_mapped_twice),
    WAY(leaves_mapped_and_returns),
    WAY(leaves_mapped_and_unmaps),
    WAY(leaves_mapped_and_discards),
    WAY(leaves_mapped_and_writes),
    WAY(leaves_mapped_and_protects),
    WAY(exchanges_by_moves),
    WAY(moves_and_maps_anew),
    WAY(moves_onto_another),
    WAY(unmaps_and_maps_anew),
    WAY(maps_over),
    WAY(shrinks_and_grows),
    WAY(discards_shrinks_and_grows),
    WAY(grows_and_moves),
    WAY(moves_and_shrinks),
    WAY(protects),
};
#define WAYS ((int)(sizeof ways / sizeof *ways))

static uint64_t *areas[WAYS][VARIANTS];

static uint64_t first_of(int way, int variant) { return (uint64_t)(way * VARIANTS + variant + 1) * 10000000; }

static int wait_for(pid_t pid) {
    int status;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RIGHT;
}

/* Checks the pages that were expected from index `since` on. Each generation forks the next one and waits for it. Odd
 * generations also check the pages before they fork, in reverse order. */
static void look_in_generations(int since) {
    if (generation < GENERATIONS) {
        pid_t pid = fork();
        if (pid == 0) {
            generation++;
            if (generation % 2 == 1)
                for (int index = expected_count - 1; index >= since; index--) look_at(&expected[index]);
            look_in_generations(since);
        }
        REQUIRE(wait_for(pid), "%s, generation %d", way_now, generation + 1);
        if (generation == 0) return;
    }
    for (int index = since; index < expected_count; index++) look_at(&expected[index]);
    _exit(EXIT_RIGHT);
}

static void take(int way, int variant) {
    uint64_t *area = areas[way][variant], first = first_of(way, variant);
    int since = expected_count;
    way_now = ways[way].name;
    if (variant & 1) REQUIRE(holds(area, AREA_BYTES / 2, first) && holds(area + SECOND, AREA_BYTES / 2, first + SECOND));
    ways[way].act(area, first);
    if (variant & 2)
        for (int index = since; index < expected_count; index += 2) look_at(&expected[index]);
    look_in_generations(since);
}

int main(void) {
    expected = map_anonymous(EXPECTED_MAX * sizeof *expected);
    for (int way = 0; way < WAYS; way++)
        for (int variant = 0; variant < VARIANTS; variant++) {
            areas[way][variant] = map_anonymous(PLACE_BYTES);
            fill(areas[way][variant], 2 * AREA_BYTES, first_of(way, variant));
            REQUIRE(munmap(areas[way][variant] + 2 * SECOND, PLACE_BYTES - 2 * AREA_BYTES) == 0);
        }
    char payload[PAYLOAD_BYTES_MAX];
    ready(WAYS);
    await_fork(payload);
    for (int variant = 0; variant < VARIANTS; variant++)
        for (int way = 0; way < WAYS; way++) take(way, variant);
    /* Check all pages once more, in the child and in forked processes. */
    way_now = "all";
    look_in_generations(0);
    for (int index = 0; index < expected_count; index++) look_at(&expected[index]);
    finish(payload, WAYS);
}
