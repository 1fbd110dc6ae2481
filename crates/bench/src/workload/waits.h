// Threads that wait, each in a different system call that a stop interrupts with EINTR or restarts (signal(7)), with or
// without a time limit.
//
// No handler is installed. A parent whose wait fails with EINTR, or ends too early or far too late, prints `wrong wait
// NAME …` and exits with status 1. In a child, which is stopped for other reasons too, the threads end. semtimedop(2)
// is not used, because a semaphore outlives a killed process.
#pragma once

#include "../baseline/endpoint.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace waits {

constexpr long LIMIT_MS = 300;
constexpr int64_t LIMIT_NS = LIMIT_MS * 1'000'000;
// A wait may end this much too early, because the clocks of system calls are not precise.
constexpr int64_t TOO_EARLY_NS = 2'000'000;
// A wait may end this much too late, because threads wait for a CPU on a busy machine. A wait that restarted its time
// limit at each stop would take longer.
constexpr int64_t TOO_LATE_NS = 10'000'000'000;
constexpr size_t STACK_BYTES = 64 << 10;
const timespec LIMIT{0, LIMIT_NS};

inline const char *payload_path;

struct Wait {
    const char *name;
    // Makes the call, and returns its result as the C library does.
    long (*call)(int fd);
    int (*make)();
    // The error after the time limit, 0 for success, or NEVER if the call has no limit.
    int expected;
};
constexpr int NEVER = -1;

inline int required(int result, const char *what) {
    if (result < 0) fail(what);
    return result;
}

inline void limit(int fd) {
    const timeval limit{0, LIMIT_MS * 1000};
    required(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "SO_RCVTIMEO");
    required(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), "SO_SNDTIMEO");
}

inline int make_pair() {
    int ends[2];
    required(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    return ends[0];
}
inline int make_limited_pair() {
    int end = make_pair();
    limit(end);
    return end;
}
inline int make_full_pair() {
    int end = make_limited_pair();
    char much[4096] = {};
    while (send(end, much, sizeof much, MSG_DONTWAIT) > 0) {
    }
    while (send(end, much, 1, MSG_DONTWAIT) > 0) {
    }
    return end;
}
inline int make_listener() {
    int listener = required(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    sockaddr_un unnamed{};
    unnamed.sun_family = AF_UNIX;
    // Without a name in the address, the kernel chooses one (unix(7), "Autobind feature").
    required(bind(listener, reinterpret_cast<sockaddr *>(&unnamed), sizeof(sa_family_t)), "bind");
    required(listen(listener, 1), "listen");
    limit(listener);
    return listener;
}
inline int make_epoll() { return required(epoll_create1(0), "epoll_create1"); }
inline int make_nothing() { return -1; }

inline long receive(int fd) {
    char byte;
    return recv(fd, &byte, 1, 0);
}
inline long send_more(int fd) { return send(fd, "x", 1, 0); }
inline long accept_one(int fd) { return accept(fd, nullptr, nullptr); }
inline long wait_epoll(int fd) {
    epoll_event event;
    return epoll_wait(fd, &event, 1, LIMIT_MS);
}
inline long wait_epoll_ever(int fd) {
    epoll_event event;
    return epoll_wait(fd, &event, 1, -1);
}
inline long wait_signal(int) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    return sigtimedwait(&set, nullptr, &LIMIT);
}
inline long wait_select(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    timeval limit{0, LIMIT_MS * 1000};
    return select(fd + 1, &set, nullptr, nullptr, &limit);
}
inline long wait_poll(int fd) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, LIMIT_MS);
}
inline long sleep_a_while(int) { return nanosleep(&LIMIT, nullptr); }

constexpr Wait ALL[] = {
    {"recv", receive, make_limited_pair, EAGAIN},
    {"send", send_more, make_full_pair, EAGAIN},
    {"accept", accept_one, make_listener, EAGAIN},
    {"epoll_wait", wait_epoll, make_epoll, 0},
    {"sigtimedwait", wait_signal, make_nothing, EAGAIN},
    {"select", wait_select, make_pair, 0},
    {"poll", wait_poll, make_pair, 0},
    {"nanosleep", sleep_a_while, make_nothing, 0},
    {"recv without a limit", receive, make_pair, NEVER},
    {"epoll_wait without a limit", wait_epoll_ever, make_epoll, NEVER},
};

inline bool is_child() { return access(payload_path, F_OK) == 0; }

inline void *live(void *argument) {
    const auto &wait = *static_cast<const Wait *>(argument);
    int fd = wait.make();
    for (;;) {
        int64_t begun = now_ns();
        errno = 0;
        long result = wait.call(fd);
        int error = result < 0 ? errno : 0;
        int64_t took = now_ns() - begun;
        bool is_right = error == wait.expected && (error != 0 || result == 0);
        bool is_in_time = took > LIMIT_NS - TOO_EARLY_NS && took < LIMIT_NS + TOO_LATE_NS;
        if (is_child()) return nullptr;
        if (!is_right || !is_in_time) {
            printf("wrong wait %s gave %ld (%s) after %ld us\n", wait.name, result, strerror(error), long(took / 1000));
            fflush(stdout);
            _exit(1);
        }
    }
}

// Starts a thread for each wait. In a child, the file PAYLOAD exists.
inline void start(const char *payload) {
    payload_path = payload;
    // Block the signal for which sigtimedwait(2) waits.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (const Wait &wait : ALL) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, live, const_cast<Wait *>(&wait)) != 0) fail("pthread_create");
    }
}

} // namespace waits
