// The floors of calls: messages in both directions over TCP, and nothing else.
//
// Each side has one thread and an epoll instance. With a single connection, it calls recv without waiting for an event
// first.

#include "endpoint.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

static const size_t BUFFER_BYTES = 256 << 10;

static void undelayed(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Sends all bytes, however long that takes.
static void send_all(int fd, const char *bytes, size_t count) {
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) fail("send");
        if (sent > 0) bytes += sent, count -= sent;
    }
}

static void watch(int epoll, int fd) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

static int serve(const char *ip, bool spin) {
    alarm(300);  // ends this program if its starter has ended: no measurement takes this long
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    sockaddr_in to = address(ip, 0);
    socklen_t length = sizeof to;
    if (bind(listener, (sockaddr *)&to, length) != 0 || listen(listener, 128) != 0) fail("listen");
    getsockname(listener, (sockaddr *)&to, &length);
    std::printf("listening %d\n", ntohs(to.sin_port));
    std::fflush(stdout);
    watch(epoll, listener);
    std::vector<char> buffer(BUFFER_BYTES);
    epoll_event events[64];
    int connections = 0, only = -1;
    for (;;) {
        // With a single connection, recv needs no event of epoll. In `spin` mode, epoll is checked for new connections.
        if (connections == 1 && only >= 0) {
            ssize_t got = recv(only, buffer.data(), buffer.size(), spin ? MSG_DONTWAIT : 0);
            if (got > 0) {
                send_all(only, buffer.data(), got);
                continue;
            }
            if (got < 0 && errno == EAGAIN && epoll_wait(epoll, events, 1, 0) == 0) continue;
            if (got == 0) return 0;
        }
        int count = epoll_wait(epoll, events, 64, spin ? 0 : -1);
        for (int index = 0; index < count; index++) {
            int fd = events[index].data.fd;
            if (fd == listener) {
                int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
                undelayed(accepted);
                watch(epoll, accepted);
                only = ++connections == 1 ? accepted : -1;
                continue;
            }
            ssize_t got = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
            if (got > 0) send_all(fd, buffer.data(), got);
            else if (got == 0) {
                close(fd);
                if (--connections == 0) return 0;
            }
        }
    }
}

struct Connection {
    int fd;
    uint64_t sent = 0, received = 0;
    size_t partial = 0;  // bytes of a message that has arrived in part
    std::vector<char> head;
};

struct Drive {
    size_t message_bytes;
    uint64_t wrong = 0, echoed = 0;
    std::vector<char> in = std::vector<char>(BUFFER_BYTES), out;

    void send_messages(Connection &to, size_t count) {
        out.assign(count * message_bytes, 7);
        for (size_t index = 0; index < count; index++) {
            uint64_t number = to.sent++;
            std::memcpy(&out[index * message_bytes], &number, std::min(sizeof number, message_bytes));
        }
        send_all(to.fd, out.data(), out.size());
    }

    // Takes received bytes, and returns how many messages they complete.
    size_t take(Connection &from, const char *bytes, size_t count) {
        size_t completed = 0;
        while (count > 0) {
            size_t part = std::min(count, message_bytes - from.partial);
            for (size_t at = from.partial; at < std::min<size_t>(from.partial + part, 8); at++)
                wrong += (uint8_t)bytes[at - from.partial] != (uint8_t)(from.received >> (8 * at));
            from.partial += part, bytes += part, count -= part;
            if (from.partial == message_bytes) from.partial = 0, from.received++, completed++;
        }
        return completed;
    }

    bool receive(Connection &from, int flags) {
        ssize_t got = recv(from.fd, in.data(), in.size(), flags);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (got <= 0) fail("recv");
        size_t completed = take(from, in.data(), got);
        echoed += completed;
        if (completed > 0) send_messages(from, completed);
        return true;
    }
};

static int drive(char **arguments) {
    sockaddr_in to = address(arguments[0], std::atoi(arguments[1]));
    int connections = std::atoi(arguments[2]), window = std::atoi(arguments[3]), epoll = epoll_create1(0);
    Drive state;
    state.message_bytes = std::atoi(arguments[4]);
    int64_t lasts_ns = std::atof(arguments[5]) * 1e9;
    bool spin = std::string(arguments[6]) == "spin";
    std::vector<Connection> all;
    for (int index = 0; index < connections; index++) {
        Connection one;
        one.fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(one.fd, (sockaddr *)&to, sizeof to) != 0) fail("connect");
        undelayed(one.fd);
        epoll_event event = {};
        event.events = EPOLLIN;
        event.data.u32 = index;
        epoll_ctl(epoll, EPOLL_CTL_ADD, one.fd, &event);
        all.push_back(one);
    }
    std::printf("ready\n");
    std::fflush(stdout);
    if (std::getchar() == EOF) return 0;
    int64_t began = now_ns(), now = began;
    for (Connection &one : all) state.send_messages(one, window);
    epoll_event events[64];
    for (unsigned turn = 0; now - began < lasts_ns; turn++) {
        if (connections == 1) state.receive(all[0], spin ? MSG_DONTWAIT : 0);
        else {
            int count = epoll_wait(epoll, events, 64, spin ? 0 : -1);
            for (int index = 0; index < count; index++) state.receive(all[events[index].data.u32], MSG_DONTWAIT);
        }
        if (turn % 16 == 0) now = now_ns();
    }
    now = now_ns();
    std::printf("echoed %llu %lld %llu\n", (unsigned long long)state.echoed, (long long)(now - began),
                (unsigned long long)state.wrong);
    return 0;
}

// - echo serve IP MODE: prints `listening PORT`, and sends back all that it receives.
// - echo drive IP PORT CONNECTIONS WINDOW BYTES SECONDS MODE: prints `ready`. One letter starts it. Then it prints
//   `echoed N NS WRONG`.
//
// MODE is `sleep` or `spin`, which polls instead of sleeping. Each connection has WINDOW messages of BYTES in flight. All
// that has come back is sent again with one send. A message begins with its number, which is verified when it returns.
int main(int count, char **arguments) {
    if (count == 4 && std::string(arguments[1]) == "serve") return serve(arguments[2], std::string(arguments[3]) == "spin");
    if (count == 9 && std::string(arguments[1]) == "drive") return drive(arguments + 2);
    std::fprintf(stderr, "usage: echo serve IP MODE | drive IP PORT CONNECTIONS WINDOW BYTES SECONDS MODE\n");
    return 2;
}
