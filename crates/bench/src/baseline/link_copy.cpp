// The floor of paging: the same bytes over the same link, by two minimal programs with a socket between them.
//
// Both sides touch all of their memory before they answer. The receiver compares every byte after the timed copy, and
// overwrites its memory before the next one, so that a missing copy is detected.
#include "endpoint.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

// Size of one write or read: large enough that the cost of calls is negligible, small enough for the cache.
constexpr size_t CHUNK_BYTES = 256 << 10;

using Memory = std::vector<uint64_t>;

uint64_t word_at(size_t index) { return (index + 1) * 0x9e3779b97f4a7c15u; }

Memory pattern(size_t bytes) {
    Memory memory(bytes / sizeof(uint64_t));
    for (size_t i = 0; i < memory.size(); i++) memory[i] = word_at(i);
    return memory;
}

size_t wrong_bytes(const Memory &memory) {
    size_t wrong = 0;
    for (size_t i = 0; i < memory.size(); i++) wrong += memory[i] == word_at(i) ? 0 : sizeof(uint64_t);
    return wrong;
}

// A socket that sends as fast as its window allows, like farfork's. A congestion control that paces by timers (BBR)
// would slow the floor down.
int new_socket() {
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (setsockopt(made, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) fail("TCP_CONGESTION");
    return made;
}

int send_all(const char *address, size_t bytes) {
    int listener = new_socket();
    sockaddr_in name = ::address(address, 0);
    socklen_t length = sizeof name;
    auto *generic = reinterpret_cast<sockaddr *>(&name);
    if (bind(listener, generic, length) != 0 || listen(listener, 1) != 0) fail("listen");
    if (getsockname(listener, generic, &length) != 0) fail("getsockname");
    Memory memory = pattern(bytes);
    printf("listening %d\n", ntohs(name.sin_port));
    fflush(stdout);
    int peer = accept(listener, nullptr, nullptr);
    if (peer < 0) fail("accept");
    char request;
    while (read(peer, &request, 1) == 1) {
        const char *at = reinterpret_cast<const char *>(memory.data());
        for (size_t done = 0; done < bytes;) {
            ssize_t sent = write(peer, at + done, bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES);
            if (sent <= 0) return 0;
            done += static_cast<size_t>(sent);
        }
    }
    return 0;
}

void fetch(int peer, char *into, size_t bytes) {
    if (write(peer, "", 1) != 1) fail("write of a request");
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(peer, into + done, bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES);
        if (got <= 0) fail("read of the copy");
        done += static_cast<size_t>(got);
    }
}

void copy_within(char *into, const char *from, size_t bytes) {
    for (size_t done = 0; done < bytes; done += CHUNK_BYTES)
        memcpy(into + done, from + done, bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES);
}

int receive_all(const char *address, int port, size_t bytes) {
    Memory source = pattern(bytes);
    Memory memory(source.size());
    int peer = new_socket();
    sockaddr_in name = ::address(address, port);
    if (connect(peer, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0) fail("connect");
    int one = 1;
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    puts("ready");
    fflush(stdout);
    auto *into = reinterpret_cast<char *>(memory.data());
    for (char command; read(STDIN_FILENO, &command, 1) == 1;) {
        memset(into, 0xff, bytes);
        uint64_t began_ns = now_ns();
        if (command == 'l') fetch(peer, into, bytes);
        else copy_within(into, reinterpret_cast<const char *>(source.data()), bytes);
        uint64_t ns = now_ns() - began_ns;
        printf("copied %llu %zu\n", static_cast<unsigned long long>(ns), wrong_bytes(memory));
        fflush(stdout);
    }
    return 0;
}

} // namespace

// - link_copy send ADDRESS MIB: prints `listening PORT`, and sends all of its memory for each byte that it receives.
// - link_copy receive ADDRESS PORT MIB: prints `ready`, then handles the letters of its input:
//
//   - l: copies over the link.
//   - m: copies within its own memory, which is a lower bound for a copy over a link.
//
// After each letter it prints `copied NS WRONG`: the time from the request to the last byte, and the number of wrong bytes.
int main(int count, char **arguments) {
    if (count == 4 && strcmp(arguments[1], "send") == 0) return send_all(arguments[2], strtoul(arguments[3], nullptr, 10) << 20);
    if (count == 5 && strcmp(arguments[1], "receive") == 0)
        return receive_all(arguments[2], atoi(arguments[3]), strtoul(arguments[4], nullptr, 10) << 20);
    fputs("usage: link_copy send ADDRESS MIB | link_copy receive ADDRESS PORT MIB\n", stderr);
    return 2;
}
