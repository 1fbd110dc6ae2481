/* The program whose forks are measured. As a parent it holds MIB of private memory, every page touched, and obeys
 * commands of one letter that come on its standard input. In a child standard input is /dev/null: the read(2) in which
 * the fork found it returns 0 at once, and the very next instruction takes a time stamp, in registers, before any page
 * of the child is touched.
 *
 *   w  write to every page, as a busy program would; answers `written NS`
 *   f  fork(), the other side ends at once;          answers `fork NS`, the call alone
 *   c  fork(), the other side writes to every page in random order; answers `copied NS`
 *
 * A child whose payload is `touch` reads every page in random order. Each child says
 * `child FIRST_NS SPOKE_NS TOUCH_NS WRONG`: when (CLOCK_REALTIME) its first instruction ran, and when it could have
 * spoken; how long touching took; how many pages were not its parent's.
 *
 * usage: parent MIB
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define PAYLOAD_PATH "/run/farfork/payload"
#define PAGE_BYTES 4096UL
#define NS_PER_S 1000000000LL
/* Long enough for the rate of the time-stamp counter to be known to some parts in a million. */
#define CALIBRATION_NS 50000000L

static volatile uint64_t *memory;
static uint64_t pages;
static double ns_per_tick;

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

__attribute__((noreturn)) static void give_up(const char *what) {
    perror(what);
    exit(1);
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)length) != length) _exit(1);
}

static void calibrate(void) {
    struct timespec wait = {.tv_nsec = CALIBRATION_NS};
    int64_t began_ns = now_ns(CLOCK_MONOTONIC);
    uint64_t began = __rdtsc();
    nanosleep(&wait, NULL);
    int64_t ended_ns = now_ns(CLOCK_MONOTONIC);
    uint64_t ended = __rdtsc();
    ns_per_tick = (double)(ended_ns - began_ns) / (double)(ended - began);
}

/* One letter from standard input, or 0 at its end; with the time-stamp counter as it was right after the call. */
static char read_command(uint64_t *ticks) {
    char command = 0;
    unsigned long low = SYS_read, high = sizeof command;
    register long got __asm__("r8");
    __asm__ volatile("syscall\n\t"
                     "movq %%rax, %%r8\n\t"
                     "rdtsc"
                     : "+a"(low), "+d"(high), "=r"(got)
                     : "D"(STDIN_FILENO), "S"(&command)
                     : "rcx", "r11", "memory");
    *ticks = (uint64_t)high << 32 | low;
    return got == 1 ? command : 0;
}

/* SplitMix64's finaliser: what page `index` holds. */
static uint64_t word_of(uint64_t index) {
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static volatile uint64_t *page(uint64_t index) { return memory + index * (PAGE_BYTES / sizeof *memory); }

/* The page that comes `step`-th: a permutation without memory of its own (odd factors and shifts are bijective modulo a
 * power of two, which `pages` is). */
static uint64_t shuffled(uint64_t step) {
    uint64_t mask = pages - 1;
    unsigned half = (unsigned)(64 - __builtin_clzll(pages)) / 2;
    uint64_t x = (step * 0x9e3779b97f4a7c15u + 0x5eed) & mask;
    for (int round = 0; round < 2; round++) {
        x ^= x >> (half ? half : 1);
        x = (x * 0xbf58476d1ce4e5b9u) & mask;
    }
    return x ^ x >> (half ? half : 1);
}

static void write_all(void) {
    for (uint64_t i = 0; i < pages; i++) *page(i) = word_of(i);
}

static int64_t time_fork(void) {
    int64_t began_ns = now_ns(CLOCK_MONOTONIC);
    pid_t pid = fork();
    int64_t ended_ns = now_ns(CLOCK_MONOTONIC);
    if (pid == 0) _exit(0);
    if (pid < 0 || waitpid(pid, NULL, 0) != pid) give_up("fork");
    return ended_ns - began_ns;
}

/* The other side says how long its writes took. */
static void tell_time_of_copies(void) {
    pid_t pid = fork();
    if (pid == 0) {
        int64_t began_ns = now_ns(CLOCK_MONOTONIC);
        for (uint64_t i = 0; i < pages; i++) *page(shuffled(i)) ^= 1;
        say("copied %lld", (long long)(now_ns(CLOCK_MONOTONIC) - began_ns));
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, NULL, 0) != pid) give_up("fork");
}

static int is_told_to_touch(void) {
    char payload[16] = "";
    int fd = open(PAYLOAD_PATH, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t length = read(fd, payload, sizeof payload - 1);
    close(fd);
    return length > 0 && strcmp(payload, "touch") == 0;
}

__attribute__((noreturn)) static void be_child(uint64_t first_ticks) {
    int64_t spoke_ns = now_ns(CLOCK_REALTIME);
    int64_t first_ns = spoke_ns - (int64_t)((double)(__rdtsc() - first_ticks) * ns_per_tick);
    int touches = is_told_to_touch();
    if (touches < 0) exit(0); /* No payload: the parent, whose master has gone. */
    int64_t touch_ns = 0;
    uint64_t wrong = 0;
    if (touches) {
        int64_t began_ns = now_ns(CLOCK_MONOTONIC);
        for (uint64_t i = 0; i < pages; i++) {
            uint64_t index = shuffled(i);
            wrong += *page(index) != word_of(index);
        }
        touch_ns = now_ns(CLOCK_MONOTONIC) - began_ns;
    }
    say("child %lld %lld %lld %llu", (long long)first_ns, (long long)spoke_ns, (long long)touch_ns,
        (unsigned long long)wrong);
    _exit(wrong != 0);
}

int main(int count, char **arguments) {
    size_t bytes = (count > 1 ? strtoul(arguments[1], NULL, 10) : 1) << 20;
    pages = bytes / PAGE_BYTES;
    if (pages == 0 || (pages & (pages - 1)) != 0) give_up("the size must be a power of two");
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) give_up("mmap");
    /* Small pages: what is promised per page must not come from fewer pages. */
    madvise(at, bytes, MADV_NOHUGEPAGE);
    memory = at;
    calibrate();
    write_all();
    say("ready %d", getpid());
    for (;;) {
        uint64_t ticks;
        int64_t began_ns;
        switch (read_command(&ticks)) {
        case 0:
            be_child(ticks);
        case 'w':
            began_ns = now_ns(CLOCK_MONOTONIC);
            write_all();
            say("written %lld", (long long)(now_ns(CLOCK_MONOTONIC) - began_ns));
            break;
        case 'f':
            say("fork %lld", (long long)time_fork());
            break;
        case 'c':
            tell_time_of_copies();
            break;
        }
    }
}
