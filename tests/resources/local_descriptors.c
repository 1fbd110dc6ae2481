/* A local descriptor table (modify_ldt(2)), whose segments two threads have loaded, and the table of another process. */
#include "resource.h"

#include <asm/ldt.h>
#include <sys/prctl.h>

#define DATA 3
#define HIGHEST 8191
#define TABLE_BYTES 65536
#define SELECTOR(number) ((number) << 3 | 7)

static unsigned char *area, before[TABLE_BYTES], now[TABLE_BYTES];
static pthread_t thread;
static pid_t other;
static int are_set[2], to_thread[2], to_other[2];

static void set_entry(struct user_desc entry) {
    REQUIRE(syscall(SYS_modify_ldt, 0x11, &entry, sizeof entry) == 0);
}

/* Loads %es and %gs. libc uses neither, and in 64-bit code only the base of %gs has an effect. */
static void load_selectors(unsigned selector) {
    __asm__ volatile("mov %0, %%es\n\tmov %0, %%gs" : : "r"(selector));
}

/* Whether both registers have the selector of the data segment, and %gs its base. */
static int has_data_segment(void) {
    unsigned es, gs;
    unsigned char byte;
    __asm__ volatile("mov %%es, %0\n\tmov %%gs, %1\n\tmovb %%gs:(%3), %2" : "=&r"(es), "=&r"(gs), "=&q"(byte) : "r"(42UL));
    return (es & 0xffff) == SELECTOR(DATA) && (gs & 0xffff) == SELECTOR(DATA) && byte == (unsigned char)(42 * 7 + 1);
}

static unsigned limit_of(unsigned number) {
    unsigned limit = 0;
    __asm__ volatile("lsl %1, %0" : "+r"(limit) : "r"(SELECTOR(number)) : "cc");
    return limit;
}

static void *run(void *unused) {
    char byte;
    load_selectors(SELECTOR(DATA));
    REQUIRE(write(are_set[1], "x", 1) == 1 && read(to_thread[0], &byte, 1) == 1);
    int is_loaded = has_data_segment();
    load_selectors(0);
    return is_loaded ? unused : NULL;
}

static int run_other(void) {
    set_entry((struct user_desc){.entry_number = 0, .limit = 7, .seg_32bit = 1, .useable = 1});
    char byte;
    REQUIRE(write(are_set[1], "x", 1) == 1 && read(to_other[0], &byte, 1) == 1);
    return limit_of(0) == 7 && limit_of(DATA) == 99;
}

static void set_up(void) {
    char byte;
    area = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    REQUIRE(area != MAP_FAILED && pipe(are_set) == 0 && pipe(to_thread) == 0 && pipe(to_other) == 0);
    for (int i = 0; i < 4096; i++) area[i] = (unsigned char)(i * 7 + 1);
    set_entry((struct user_desc){.entry_number = DATA, .base_addr = (unsigned)(unsigned long)area, .limit = 99, .seg_32bit = 1, .useable = 1});
    set_entry((struct user_desc){.entry_number = 9, .limit = 0xfffff, .seg_32bit = 1, .contents = 2, .limit_in_pages = 1});
    REQUIRE((other = fork()) >= 0);
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(run_other());
    }
    set_entry((struct user_desc){.entry_number = 10, .base_addr = 0x12345678, .limit = 5, .contents = 1, .read_exec_only = 1, .seg_not_present = 1, .seg_32bit = 1});
    set_entry((struct user_desc){.entry_number = HIGHEST, .base_addr = 0xfedcba98, .limit = 0x12345, .read_exec_only = 1, .seg_32bit = 1, .limit_in_pages = 1});
    REQUIRE(syscall(SYS_modify_ldt, 0, before, sizeof before) == sizeof before);
    REQUIRE(pthread_create(&thread, NULL, run, to_thread) == 0);
    for (int i = 0; i < 2; i++) REQUIRE(read(are_set[0], &byte, 1) == 1);
}

static void check(void) {
    void *result;
    int status;
    REQUIRE(syscall(SYS_modify_ldt, 0, now, sizeof now) == sizeof now && memcmp(before, now, sizeof now) == 0, "the table differs");
    REQUIRE(limit_of(DATA) == 99 && limit_of(9) == 0xffffffff, "limits: %u, %u", limit_of(DATA), limit_of(9));
    REQUIRE(write(to_thread[1], "x", 1) == 1 && pthread_join(thread, &result) == 0 && result == to_thread, "the thread has other segments");
    REQUIRE(write(to_other[1], "x", 1) == 1 && waitpid(other, &status, 0) == other);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 1, "the other process has another table: %x", status);
}
