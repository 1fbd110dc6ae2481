// The program whose forks are measured. As a parent it fills MIB of private memory and runs commands of one letter from
// standard input.
//
// In a child, standard input is /dev/null or a pipe without a writer, so the read(2) that the fork interrupted returns 0
// at once. The next instruction takes a timestamp, in registers, before the child touches any page.
#include <farfork.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <x86intrin.h>

namespace {

constexpr uint64_t PAGE_BYTES = 4096;
constexpr uintptr_t HUGE_PAGE_BYTES = 2 << 20;
constexpr uint64_t PAGE_WORDS = PAGE_BYTES / sizeof(uint64_t);
constexpr int64_t NS_PER_S = 1'000'000'000;
// Duration of the calibration: long enough to determine the rate of the time-stamp counter to a few parts per million.
constexpr long CALIBRATION_NS = 50'000'000;
constexpr int CLOCK_ATTEMPTS = 5;
// The number that a writing touch adds to the first word of a page.
constexpr uint64_t MARK = 1;

enum class Order { random, sequential };
enum class Access { read, write };

volatile uint64_t *memory;
uint64_t pages;
// The smallest power of two that is not less than `pages`, minus one.
uint64_t mask;
unsigned half_bits;
// Counts the rounds of `w`. The first word of each page depends on it.
uint64_t generation;
double ns_per_tick;
Order order;
Access access_mode;
const char *payload_path;

int64_t now_ns(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

[[noreturn]] void exit_with_error(const char *what) {
    perror(what);
    exit(1);
}

__attribute__((format(printf, 1, 2))) void print_line(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(STDOUT_FILENO, line, static_cast<size_t>(length)) != length) _exit(1);
}

// A clock and the time-stamp counter, read at the same time.
struct ClockReading {
    int64_t ns;
    uint64_t ticks;
};

// Reads both several times, and returns the reading that took the shortest: between the two reads the kernel may run
// another program, or a child may wait for a page.
ClockReading read_clock(clockid_t clock) {
    ClockReading reading{};
    uint64_t shortest = UINT64_MAX;
    for (int attempt = 0; attempt < CLOCK_ATTEMPTS; attempt++) {
        uint64_t began = __rdtsc();
        int64_t ns = now_ns(clock);
        uint64_t duration = __rdtsc() - began;
        if (duration >= shortest) continue;
        shortest = duration;
        reading = {ns, began + duration / 2};
    }
    return reading;
}

void calibrate() {
    timespec wait{0, CALIBRATION_NS};
    ClockReading began = read_clock(CLOCK_MONOTONIC);
    nanosleep(&wait, nullptr);
    ClockReading ended = read_clock(CLOCK_MONOTONIC);
    ns_per_tick = static_cast<double>(ended.ns - began.ns) / static_cast<double>(ended.ticks - began.ticks);
}

// Reads one letter from standard input, or 0 at its end. `ticks` is the time-stamp counter right after the call.
char read_command(uint64_t &ticks) {
    char command = 0;
    unsigned long low = SYS_read, high = sizeof command;
    register long got __asm__("r8");
    __asm__ volatile("syscall\n\t"
                     "movq %%rax, %%r8\n\t"
                     "rdtsc"
                     : "+a"(low), "+d"(high), "=r"(got)
                     : "D"(STDIN_FILENO), "S"(&command)
                     : "rcx", "r11", "memory");
    ticks = high << 32 | low;
    return got == 1 ? command : 0;
}

// SplitMix64's finaliser.
uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// The expected first word of a page, and the expected word at index `word`.
uint64_t first_of(uint64_t index) { return mixed((generation << 40) + (index + 1) * 0x9e3779b97f4a7c15u); }
uint64_t word_of(uint64_t index, uint64_t word) { return (index + 1) * 0x9e3779b97f4a7c15u + word * 0xd1342543de82ef95u; }

volatile uint64_t *page(uint64_t index) { return memory + index * PAGE_WORDS; }

// A permutation of the numbers up to `mask` that needs no memory: odd factors and shifts are bijective.
uint64_t permuted(uint64_t x) {
    x = (x * 0x9e3779b97f4a7c15u + 0x5eed) & mask;
    for (int round = 0; round < 2; round++) {
        x ^= x >> half_bits;
        x = (x * 0xbf58476d1ce4e5b9u) & mask;
    }
    return x ^ x >> half_bits;
}

// The page of a step. While the permutation yields a number beyond the memory, it is applied again.
uint64_t page_at(uint64_t step) {
    if (order == Order::sequential) return step;
    do step = permuted(step);
    while (step >= pages);
    return step;
}

void write_all() {
    generation++;
    for (uint64_t i = 0; i < pages; i++) *page(i) = first_of(i);
}

void fill() {
    for (uint64_t i = 0; i < pages; i++)
        for (uint64_t word = 1; word < PAGE_WORDS; word++) page(i)[word] = word_of(i, word);
    write_all();
}

struct Touched {
    int64_t ns;
    long faults;
};

long faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

Touched touch_all(Access access) {
    long faults_before = faults();
    int64_t began_ns = now_ns(CLOCK_MONOTONIC);
    if (access == Access::write) {
        for (uint64_t i = 0; i < pages; i++) {
            volatile uint64_t *word = page(page_at(i));
            *word = *word + MARK;
        }
    } else {
        for (uint64_t i = 0; i < pages; i++) (void)*page(page_at(i));
    }
    int64_t ns = now_ns(CLOCK_MONOTONIC) - began_ns;
    return {ns, faults() - faults_before};
}

// Counts pages with any byte other than the parent's.
uint64_t wrong_pages(uint64_t mark) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < pages; i++) {
        uint64_t difference = *page(i) ^ (first_of(i) + mark);
        for (uint64_t word = 1; word < PAGE_WORDS; word++) difference |= page(i)[word] ^ word_of(i, word);
        wrong += difference != 0;
    }
    return wrong;
}

int64_t time_fork() {
    int64_t began_ns = now_ns(CLOCK_MONOTONIC);
    pid_t pid = fork();
    int64_t ended_ns = now_ns(CLOCK_MONOTONIC);
    if (pid == 0) _exit(0);
    if (pid < 0 || waitpid(pid, nullptr, 0) != pid) exit_with_error("fork");
    return ended_ns - began_ns;
}

// Requests a checkpoint as any program does: the call connects, sends the request, and waits for the reply. The
// benchmark drops the seed.
void checkpoint() {
    char name[32];
    snprintf(name, sizeof name, "micro-%d", getpid());
    farfork_options options{};
    options.name = name;
    farfork_outcome outcome;
    int64_t began_ns = now_ns(CLOCK_MONOTONIC);
    int failed = farfork_checkpoint(&options, &outcome);
    int64_t ns = now_ns(CLOCK_MONOTONIC) - began_ns;
    if (failed) {
        fprintf(stderr, "micro: %s\n", farfork_error());
        exit(1);
    }
    if (outcome.is_child) _exit(0);
    print_line("seeded %lld %llu", static_cast<long long>(ns), static_cast<unsigned long long>(outcome.pause_us));
}

// The forked process prints how long its touches took.
void touch_in_fork(const char *answer, Access access) {
    pid_t pid = fork();
    if (pid == 0) {
        Touched touched = touch_all(access);
        uint64_t wrong = wrong_pages(access == Access::write ? MARK : 0);
        print_line("%s %lld %ld %llu", answer, static_cast<long long>(touched.ns), touched.faults,
            static_cast<unsigned long long>(wrong));
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, nullptr, 0) != pid) exit_with_error("fork");
}

bool must_touch() {
    char payload[16] = "";
    int fd = open(payload_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) exit(0);
    ssize_t length = read(fd, payload, sizeof payload - 1);
    close(fd);
    return length > 0 && strcmp(payload, "touch") == 0;
}

struct Resident {
    unsigned long shared_kib;
    unsigned long private_kib;
};

// The resident memory of this process; zero if the kernel does not report it.
Resident resident_memory() {
    Resident resident{};
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    if (rollup == nullptr) return resident;
    char line[128];
    while (fgets(line, sizeof line, rollup) != nullptr) {
        unsigned long kib;
        if (sscanf(line, "Shared_Clean: %lu", &kib) == 1 || sscanf(line, "Shared_Dirty: %lu", &kib) == 1) {
            resident.shared_kib += kib;
        } else if (sscanf(line, "Private_Clean: %lu", &kib) == 1 || sscanf(line, "Private_Dirty: %lu", &kib) == 1) {
            resident.private_kib += kib;
        }
    }
    fclose(rollup);
    return resident;
}

[[noreturn]] void run_child(uint64_t first_ticks) {
    ClockReading reported = read_clock(CLOCK_REALTIME);
    auto since_first_ns = static_cast<int64_t>(static_cast<double>(reported.ticks - first_ticks) * ns_per_tick);
    int64_t first_ns = reported.ns - since_first_ns;
    Touched touched{};
    uint64_t wrong = 0;
    if (must_touch()) {
        touched = touch_all(access_mode);
        wrong = wrong_pages(access_mode == Access::write ? MARK : 0);
    }
    Resident resident = resident_memory();
    print_line("child %lld %lld %lld %ld %llu %lu %lu", static_cast<long long>(first_ns), static_cast<long long>(reported.ns),
        static_cast<long long>(touched.ns), touched.faults, static_cast<unsigned long long>(wrong), resident.shared_kib,
        resident.private_kib);
    _exit(wrong != 0);
}

void run_command(char command) {
    int64_t began_ns = now_ns(CLOCK_MONOTONIC);
    switch (command) {
    case 'w':
        write_all();
        print_line("written %lld", static_cast<long long>(now_ns(CLOCK_MONOTONIC) - began_ns));
        break;
    case 'f': print_line("forked %lld", static_cast<long long>(time_fork())); break;
    case 't': touch_in_fork("touched", access_mode); break;
    case 'c': touch_in_fork("copied", Access::write); break;
    case 's': checkpoint(); break;
    }
}

void map(size_t bytes, bool in_huge_pages) {
    pages = bytes / PAGE_BYTES;
    mask = 1;
    while (mask < pages) mask <<= 1;
    mask--;
    unsigned bits = static_cast<unsigned>(__builtin_popcountll(mask));
    half_bits = bits < 2 ? 1 : bits / 2;
    // Reserve space for the alignment of huge pages.
    size_t room = in_huge_pages ? HUGE_PAGE_BYTES : 0;
    void *at = mmap(nullptr, bytes + room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit_with_error("mmap");
    // Small pages must remain small, because fewer pages would lower the cost.
    madvise(at, bytes + room, in_huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    uintptr_t start = reinterpret_cast<uintptr_t>(at);
    if (in_huge_pages) start = (start + HUGE_PAGE_BYTES - 1) & ~(HUGE_PAGE_BYTES - 1);
    memory = reinterpret_cast<volatile uint64_t *>(start);
}

// Maps pages that different protection keeps in separate mappings. Each is written.
void map_apart(uint64_t mappings) {
    if (mappings == 0) return;
    void *at = mmap(nullptr, mappings * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit_with_error("mmap");
    auto *byte = static_cast<char *>(at);
    for (uint64_t i = 0; i < mappings; i++) {
        byte[i * PAGE_BYTES] = 1;
        if (i % 2 == 1 && mprotect(byte + i * PAGE_BYTES, PAGE_BYTES, PROT_READ) != 0) exit_with_error("mprotect");
    }
}

// Starts all threads except the first. They wait forever.
void wait_in_threads(unsigned long threads) {
    for (unsigned long i = 1; i < threads; i++)
        std::thread([] {
            for (;;) pause();
        }).detach();
}

} // namespace

// Commands:
//
// - w: writes to every page, as a busy program would. Prints `written NS`.
// - f: calls fork(). The forked process exits at once. Prints `forked NS`, the time of the call alone.
// - t: calls fork(). The forked process touches every page. Prints `touched NS FAULTS WRONG`.
// - c: the same, but always writes. Prints `copied NS FAULTS WRONG`.
// - s: requests a checkpoint of itself, named `micro-PID`. Prints `seeded NS PAUSE_US`, the time of the call alone.
//
// A touch does what ACCESS says (`read` or `write` a word) once for every page, in ORDER (`random` or `sequential`).
//
// A child opens PAYLOAD. If the file does not exist, this is the parent and its caller has gone, so it exits. If the file
// holds `touch`, the child touches every page, then compares every byte with its parent's memory. It prints
// `child FIRST_NS SPOKE_NS TOUCH_NS FAULTS WRONG SHARED_KIB PRIVATE_KIB`:
//
// - FIRST_NS, SPOKE_NS: when its first instruction ran, and when it could have printed (CLOCK_REALTIME).
// - TOUCH_NS, FAULTS: how long the touches took, and their page faults.
// - WRONG: number of pages that differ from the parent's.
// - SHARED_KIB, PRIVATE_KIB: its shared and its private memory (smaps_rollup of proc(5)).
//
// PAGES is `small`, or `huge` for huge pages if the machine supports them. The program has THREADS threads, of which
// all but the first wait, and MAPPINGS mappings in addition to that memory and to the mappings of every program.
//
// Usage: micro MIB ORDER ACCESS PAYLOAD PAGES THREADS MAPPINGS
int main(int count, char **arguments) {
    if (count != 8) {
        fputs("usage: micro MIB ORDER ACCESS PAYLOAD PAGES THREADS MAPPINGS\n", stderr);
        return 2;
    }
    order = strcmp(arguments[2], "random") == 0 ? Order::random : Order::sequential;
    access_mode = strcmp(arguments[3], "write") == 0 ? Access::write : Access::read;
    payload_path = arguments[4];
    map(strtoul(arguments[1], nullptr, 10) << 20, strcmp(arguments[5], "huge") == 0);
    map_apart(strtoul(arguments[7], nullptr, 10));
    wait_in_threads(strtoul(arguments[6], nullptr, 10));
    calibrate();
    fill();
    print_line("ready %d", getpid());
    for (;;) {
        uint64_t ticks;
        char command = read_command(ticks);
        if (command == 0) run_child(ticks);
        run_command(command);
    }
}
