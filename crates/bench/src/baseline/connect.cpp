// The floor of connections: connect and accept over TCP, and nothing else. Threads block.
//
// Each thread of a client opens one connection after another, and sends a request of one byte on it. When the answer has
// arrived, it closes the connection with a reset, so that no port stays in TIME_WAIT.

#include "endpoint.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

static void accept_all(int listener) {
    for (;;) {
        int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (accepted < 0) continue;
        char request;
        if (recv(accepted, &request, 1, 0) == 1) send(accepted, &request, 1, MSG_NOSIGNAL);
        close(accepted);
    }
}

static int serve(const char *ip, int threads) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to = address(ip, 0);
    socklen_t length = sizeof to;
    if (bind(listener, (sockaddr *)&to, length) != 0 || listen(listener, SOMAXCONN) != 0) fail("listen");
    getsockname(listener, (sockaddr *)&to, &length);
    for (int index = 0; index < threads; index++) std::thread(accept_all, listener).detach();
    std::printf("listening %d\n", ntohs(to.sin_port));
    std::fflush(stdout);
    while (std::getchar() != EOF) {}
    return 0;
}

static void connect_once(const sockaddr_in &to) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const sockaddr *)&to, sizeof to) != 0) fail("connect");
    char byte = 1;
    if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 || recv(fd, &byte, 1, 0) != 1) fail("send or recv of a request");
    linger at_once = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

static int drive(char **arguments) {
    sockaddr_in to = address(arguments[0], std::atoi(arguments[1]));
    int64_t lasts_ns = std::atof(arguments[3]) * 1e9;
    std::vector<uint64_t> made(std::atoi(arguments[2]), 0);
    std::printf("ready\n");
    std::fflush(stdout);
    if (std::getchar() == EOF) return 0;
    int64_t began = now_ns();
    std::vector<std::thread> threads;
    for (uint64_t &count : made)
        threads.emplace_back([&] {
            uint64_t own = 0;
            for (; now_ns() - began < lasts_ns; own++) connect_once(to);
            count = own;
        });
    for (std::thread &thread : threads) thread.join();
    int64_t took = now_ns() - began;
    uint64_t total = 0;
    for (uint64_t count : made) total += count;
    std::printf("connected %llu %lld\n", (unsigned long long)total, (long long)took);
    return 0;
}

// - connect serve IP THREADS: prints `listening PORT`, then accepts connections and answers one byte on each, until its
// input ends.
// - connect drive IP PORT THREADS SECONDS: prints `ready`. One letter starts it. Then it prints `connected N NS`.
int main(int count, char **arguments) {
    if (count == 4 && std::string(arguments[1]) == "serve") return serve(arguments[2], std::atoi(arguments[3]));
    if (count == 6 && std::string(arguments[1]) == "drive") return drive(arguments + 2);
    std::fprintf(stderr, "usage: connect serve IP THREADS | drive IP PORT THREADS SECONDS\n");
    return 2;
}
