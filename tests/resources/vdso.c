/* The vDSO functions, which read clocks and the current CPU without a system call. They work at the addresses that the
 * program knows, and when they are looked up again, also on a node with another kernel. */
#include "resource.h"

#include <elf.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/time.h>

typedef int (*get_time)(clockid_t, struct timespec *);
typedef int (*get_day)(struct timeval *, void *);
typedef long (*get_cpu)(unsigned *, unsigned *, void *);

static get_time clock_known;
static get_day day_known;
static get_cpu cpu_known;

/* Returns the address of a vDSO function, from the symbol table of the library at AT_SYSINFO_EHDR. */
static uintptr_t look_up(const char *wanted) {
    uintptr_t base = getauxval(AT_SYSINFO_EHDR), strings = 0, symbols = 0, count = 0;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)base;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(base + header->e_shoff);
    REQUIRE(memcmp(header->e_ident, ELFMAG, SELFMAG) == 0, "no ELF library at %lx", base);
    for (int i = 0; i < header->e_shnum; i++)
        if (section[i].sh_type == SHT_DYNSYM) {
            symbols = base + section[i].sh_offset, count = section[i].sh_size / sizeof(Elf64_Sym);
            strings = base + section[section[i].sh_link].sh_offset;
        }
    for (const Elf64_Sym *one = (const Elf64_Sym *)symbols; count > 0; one++, count--)
        if (strcmp((const char *)strings + one->st_name, wanted) == 0) return base + one->st_value;
    REQUIRE(0, "the vDSO has no %s", wanted);
    return 0;
}

static void set_up(void) {
    clock_known = (get_time)look_up("__vdso_clock_gettime"), day_known = (get_day)look_up("__vdso_gettimeofday");
    cpu_known = (get_cpu)look_up("__vdso_getcpu");
}

static void check(void) {
    struct timespec by_call, known, anew, by_libc;
    struct timeval day;
    unsigned cpu = ~0u;
    cpu_set_t one;
    for (int clock = CLOCK_REALTIME; clock <= CLOCK_BOOTTIME; clock++) {
        if (clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID) continue;
        REQUIRE(syscall(SYS_clock_gettime, clock, &by_call) == 0 && clock_known(clock, &known) == 0);
        REQUIRE(((get_time)look_up("__vdso_clock_gettime"))(clock, &anew) == 0 && clock_gettime(clock, &by_libc) == 0);
        int64_t apart = (by_libc.tv_sec - by_call.tv_sec) * 1000000000L + by_libc.tv_nsec - by_call.tv_nsec;
        int64_t apart_known = (known.tv_sec - by_call.tv_sec) * 1000000000L + known.tv_nsec - by_call.tv_nsec;
        REQUIRE(apart >= -10000000 && apart_known >= -10000000 && apart < 20000000000L, "clock %d: %ld, %ld ns", clock, apart, apart_known);
    }
    REQUIRE(day_known(&day, NULL) == 0 && day.tv_sec > 1600000000);
    REQUIRE(sched_getaffinity(0, sizeof one, &one) == 0 && cpu_known(&cpu, NULL, NULL) == 0 && CPU_ISSET(cpu, &one), "cpu %u", cpu);
    REQUIRE(sched_getcpu() >= 0 && time(NULL) >= day.tv_sec - 1);
}
