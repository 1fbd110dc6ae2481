// The floor of a page fault: the work of any user-space pager for a page of another machine, by two minimal programs
// with a socket between them.
//
// One thread touches missing pages. Another reads each fault from userfaultfd(2), requests the page from the other
// program, and makes the kernel map a copy of it.
#include "endpoint.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t PAGE_BYTES = 4096;
constexpr size_t REQUEST_BYTES = 64;
constexpr size_t AREA_PAGES = 100'000;
constexpr int64_t SPIN_NS = 50'000;

constexpr size_t SENT_BYTES = 32 * PAGE_BYTES;
constexpr size_t RECEIVED_BYTES = 16 * PAGE_BYTES;
// Size of the memory of a stream: larger than any cache.
constexpr size_t STREAM_BYTES = 64 << 20;

bool spins;

// Waits until there is data to read.
void wait_for(int fd) {
    pollfd wanted{fd, POLLIN, 0};
    for (int64_t until_ns = now_ns() + SPIN_NS; spins && now_ns() < until_ns; sched_yield())
        if (poll(&wanted, 1, 0) > 0) return;
    if (poll(&wanted, 1, -1) < 0 && errno != EINTR) fail("poll");
}

// Receives exactly this many bytes. Returns false at the end of the stream.
bool receive(int socket, char *into, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(socket, into + done, bytes - done, MSG_DONTWAIT);
        if (got > 0) done += static_cast<size_t>(got);
        else if (got < 0 && (errno == EAGAIN || errno == EINTR)) wait_for(socket);
        else return false;
    }
    return true;
}

void send_all(int socket, const char *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t sent = send(socket, from + done, bytes - done, MSG_NOSIGNAL);
        if (sent <= 0) fail("send");
        done += static_cast<size_t>(sent);
    }
}

// A socket that sends as fast as its window allows, like farfork's.
int new_socket() {
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (made < 0) fail("socket");
    if (setsockopt(made, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) fail("TCP_CONGESTION");
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return made;
}

int connected(const char *ip, int port) {
    int made = new_socket();
    sockaddr_in name = ::address(ip, port);
    if (connect(made, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0) fail("connect");
    return made;
}

// Accepts the first connection.
int accepted(const char *ip) {
    int listener = new_socket();
    sockaddr_in name = ::address(ip, 0);
    socklen_t length = sizeof name;
    auto *generic = reinterpret_cast<sockaddr *>(&name);
    if (bind(listener, generic, length) != 0 || listen(listener, 1) != 0) fail("listen");
    if (getsockname(listener, generic, &length) != 0) fail("getsockname");
    printf("listening %d\n", ntohs(name.sin_port));
    fflush(stdout);
    int peer = accept(listener, nullptr, nullptr), one = 1;
    if (peer < 0) fail("accept");
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return peer;
}

int serve(const char *ip) {
    int peer = accepted(ip);
    std::vector<char> page(PAGE_BYTES), request(REQUEST_BYTES);
    while (receive(peer, request.data(), REQUEST_BYTES)) {
        // Each page begins and ends with the requested number.
        memcpy(page.data(), request.data(), sizeof(uint64_t));
        memcpy(page.data() + PAGE_BYTES - sizeof(uint64_t), request.data(), sizeof(uint64_t));
        send_all(peer, page.data(), PAGE_BYTES);
    }
    return 0;
}

struct Times {
    std::atomic<int64_t> exchange_ns, copy_ns;
};

int new_userfaultfd() {
    int made = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    uffdio_api api{};
    api.api = UFFD_API;
    if (made < 0 || ioctl(made, UFFDIO_API, &api) != 0) fail("userfaultfd");
    return made;
}

// Serves each fault: requests the page, and makes the kernel copy it.
void page_in(int uffd, int peer, char *area, Times &times) {
    std::vector<char> page(PAGE_BYTES), request(REQUEST_BYTES);
    for (;;) {
        uffd_msg message;
        if (read(uffd, &message, sizeof message) != sizeof message) {
            wait_for(uffd);
            continue;
        }
        uint64_t at = message.arg.pagefault.address & ~(PAGE_BYTES - 1);
        uint64_t number = (at - reinterpret_cast<uint64_t>(area)) / PAGE_BYTES;
        int64_t began_ns = now_ns();
        memcpy(request.data(), &number, sizeof number);
        send_all(peer, request.data(), REQUEST_BYTES);
        if (!receive(peer, page.data(), PAGE_BYTES)) fail("recv of a page");
        int64_t received_ns = now_ns();
        times.exchange_ns = received_ns - began_ns;
        // Maps the page without waking the thread, so that the copy is timed alone.
        uffdio_copy copy{at, reinterpret_cast<uint64_t>(page.data()), PAGE_BYTES, UFFDIO_COPY_MODE_DONTWAKE, 0};
        if (ioctl(uffd, UFFDIO_COPY, &copy) != 0) fail("UFFDIO_COPY");
        times.copy_ns = now_ns() - received_ns;
        uffdio_range range{at, PAGE_BYTES};
        if (ioctl(uffd, UFFDIO_WAKE, &range) != 0) fail("UFFDIO_WAKE");
    }
}

void touch(volatile char *area, Times &times, size_t count, long gap_us) {
    madvise(const_cast<char *>(area), AREA_PAGES * PAGE_BYTES, MADV_DONTNEED);
    for (uint64_t page = 0; page < count; page++) {
        timespec gap{gap_us / 1'000'000, gap_us % 1'000'000 * 1000};
        if (gap_us > 0) nanosleep(&gap, nullptr);
        auto *words = reinterpret_cast<volatile uint64_t *>(area + page * PAGE_BYTES);
        int64_t began_ns = now_ns();
        uint64_t first = words[0];
        int64_t touch_ns = now_ns() - began_ns;
        uint64_t last = words[PAGE_BYTES / sizeof(uint64_t) - 1];
        printf("served %lld %lld %lld %d\n", static_cast<long long>(touch_ns), static_cast<long long>(times.exchange_ns.load()),
               static_cast<long long>(times.copy_ns.load()), first != page || last != page);
    }
    fflush(stdout);
}

// Maps memory whose faults on missing pages `uffd` reports.
char *paged(int uffd, size_t bytes) {
    void *mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    madvise(mapped, bytes, MADV_NOHUGEPAGE);
    uffdio_register wanted{};
    wanted.range = {reinterpret_cast<uint64_t>(mapped), bytes};
    wanted.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (ioctl(uffd, UFFDIO_REGISTER, &wanted) != 0) fail("UFFDIO_REGISTER");
    return static_cast<char *>(mapped);
}

int drive(const char *ip, int port) {
    int peer = connected(ip, port), uffd = new_userfaultfd();
    char *area = paged(uffd, AREA_PAGES * PAGE_BYTES);
    Times times{};
    std::thread(page_in, uffd, peer, area, std::ref(times)).detach();
    puts("ready");
    fflush(stdout);
    size_t count;
    long gap_us;
    while (scanf("%zu %ld", &count, &gap_us) == 2) touch(area, times, count < AREA_PAGES ? count : AREA_PAGES, gap_us);
    fflush(stdout);
    _exit(0);
}

// Sends pages until the peer closes the connection. Each page begins with its number.
int send_pages(const char *ip) {
    std::vector<char> memory(STREAM_BYTES);
    for (uint64_t page = 0; page < STREAM_BYTES / PAGE_BYTES; page++)
        memcpy(&memory[page * PAGE_BYTES], &page, sizeof page);
    int peer = accepted(ip);
    for (size_t at = 0;;) {
        ssize_t sent = send(peer, &memory[at], std::min(SENT_BYTES, STREAM_BYTES - at), MSG_NOSIGNAL);
        if (sent <= 0) return 0;
        at = (at + static_cast<size_t>(sent)) % STREAM_BYTES;
    }
}

struct Installed {
    std::atomic<uint64_t> pages, wrong;
};

// Maps the received pages into the same memory again and again. Before each mapping, madvise(2) discards the earlier
// pages.
void install(int peer, int uffd, char *area, Installed &installed) {
    std::vector<char> staged(RECEIVED_BYTES);
    for (size_t at = 0; receive(peer, staged.data(), RECEIVED_BYTES); at = (at + RECEIVED_BYTES) % STREAM_BYTES) {
        madvise(area + at, RECEIVED_BYTES, MADV_DONTNEED);
        auto from = reinterpret_cast<uint64_t>(staged.data()), to = reinterpret_cast<uint64_t>(area + at);
        uffdio_copy copy{to, from, RECEIVED_BYTES, 0, 0};
        if (ioctl(uffd, UFFDIO_COPY, &copy) != 0) fail("UFFDIO_COPY");
        uint64_t number;
        memcpy(&number, area + at, sizeof number);
        if (number != at / PAGE_BYTES) installed.wrong++;
        installed.pages += RECEIVED_BYTES / PAGE_BYTES;
    }
    fail("recv of the stream");
}

int install_pages(const char *ip, int port) {
    int peer = connected(ip, port), uffd = new_userfaultfd();
    char *area = paged(uffd, STREAM_BYTES);
    Installed installed{};
    std::thread(install, peer, uffd, area, std::ref(installed)).detach();
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
        printf("installed %llu %llu\n", static_cast<unsigned long long>(installed.pages), static_cast<unsigned long long>(installed.wrong));
        fflush(stdout);
    }
    _exit(0);
}

} // namespace

// - fault serve ADDRESS MODE: prints `listening PORT`, and sends a page for each request that it receives.
// - fault drive ADDRESS PORT MODE: prints `ready`. For each input line `COUNT GAP_US` it touches COUNT pages, and sleeps
//   for GAP_US before each. For each page it prints `served TOUCH_NS EXCHANGE_NS COPY_NS WRONG`.
// - fault send ADDRESS: prints `listening PORT`, and sends pages as fast as they are received.
// - fault install ADDRESS PORT: prints `ready`, and maps the pages from `fault send` until the sender ends. For each input
//   line it prints the totals `installed PAGES WRONG`.
//
// TOUCH is the whole fault, EXCHANGE the request and its answer, COPY the mapping. MODE says how both programs wait.
// `sleep` blocks. `spin` polls for 50 µs before it blocks, and yields the CPU between two polls.
int main(int count, char **arguments) {
    if (count == 4 && strcmp(arguments[1], "serve") == 0) {
        spins = strcmp(arguments[3], "spin") == 0;
        return serve(arguments[2]);
    }
    if (count == 5 && strcmp(arguments[1], "drive") == 0) {
        spins = strcmp(arguments[4], "spin") == 0;
        return drive(arguments[2], atoi(arguments[3]));
    }
    if (count == 3 && strcmp(arguments[1], "send") == 0) return send_pages(arguments[2]);
    if (count == 4 && strcmp(arguments[1], "install") == 0) return install_pages(arguments[2], atoi(arguments[3]));
    fputs("usage: fault serve ADDRESS MODE | fault drive ADDRESS PORT MODE | fault send ADDRESS | fault install ADDRESS PORT\n",
          stderr);
    return 2;
}
