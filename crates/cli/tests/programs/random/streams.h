/* Pipes, events and sockets, with data in transit. */
#pragma once

#include "memory.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>

#define WATCHED_MAX 128

static int watchable[WATCHED_MAX]; /* descriptors that an epoll accepts */
static size_t watchable_count;

static void note_watchable(int fd) {
    if (watchable_count < WATCHED_MAX) watchable[watchable_count++] = fd;
}

static void put(int fd, size_t bytes) {
    static char data[1UL << 17];
    fill_bytes(data, bytes);
    REQUIRE(write(fd, data, bytes) == (ssize_t)bytes, "%zu", bytes);
}

/* Sets an owner of a descriptor, always with O_ASYNC: an owner without O_ASYNC is not carried. */
static void own(int fd) {
    static const int signals[] = {0, SIGUSR1, SIGURG, 60};
    if (!one_in(6)) return;
    REQUIRE(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_SETSIG, ONE_OF(signals)) == 0);
    REQUIRE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) == 0);
}

static void make_pipe(void) {
    int ends[2], is_packets = one_in(4);
    REQUIRE(pipe2(ends, (one_in(2) ? O_CLOEXEC : 0) | (one_in(2) ? O_NONBLOCK : 0) | (is_packets ? O_DIRECT : 0)) == 0);
    int capacity = fcntl(ends[1], F_SETPIPE_SZ, 1 << (12 + below(6)));
    REQUIRE(capacity > 0);
    for (uint64_t left = below(4); left > 0; left--) {
        size_t bytes = is_packets ? 1 + below(PAGE_BYTES) : 1 + below((uint64_t)capacity);
        int used;
        REQUIRE(ioctl(ends[0], FIONREAD, &used) == 0);
        size_t pages = ((size_t)used / PAGE_BYTES + 2) * PAGE_BYTES + (is_packets ? 8 * PAGE_BYTES : 0);
        if (pages + bytes < (size_t)capacity) put(ends[1], bytes);
    }
    int gone = one_in(4) ? (int)below(2) : -1;
    if (gone >= 0) close(ends[gone]);
    for (int i = 0; i < 2; i++)
        if (i != gone) note_watchable(ends[i]), own(ends[i]);
}

static void make_named_pipe(void) {
    const char *path = new_path();
    REQUIRE(mkfifo(path, 0600) == 0);
    int both = open(path, O_RDWR | (one_in(2) ? O_NONBLOCK : 0));
    REQUIRE(both >= 0);
    if (one_in(2)) put(both, 1 + below(9000));
    if (one_in(2)) note_watchable(open(path, O_RDONLY | O_NONBLOCK));
    if (one_in(2)) note_watchable(open(path, O_WRONLY | O_CLOEXEC));
    if (one_in(2)) note_watchable(both);
}

static void make_eventfd(void) {
    static const uint64_t counts[] = {0, 1, 7, 1000000007, UINT64_MAX - 1};
    int fd = eventfd(0, EFD_NONBLOCK | (one_in(2) ? EFD_CLOEXEC : 0) | (one_in(3) ? EFD_SEMAPHORE : 0));
    uint64_t count = ONE_OF(counts);
    REQUIRE(fd >= 0 && write(fd, &count, sizeof count) == sizeof count);
    note_watchable(fd);
}

static void make_timerfd(void) {
    static const int clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME};
    int fd = timerfd_create(ONE_OF(clocks), (one_in(2) ? TFD_NONBLOCK : 0) | (one_in(2) ? TFD_CLOEXEC : 0));
    struct itimerspec when = {.it_value.tv_sec = 3600 + (time_t)below(9999), .it_value.tv_nsec = (long)below(1000000000)};
    if (one_in(2)) when.it_interval.tv_sec = 1 + (time_t)below(100000);
    REQUIRE(fd >= 0 && (one_in(4) || timerfd_settime(fd, 0, &when, NULL) == 0));
    note_watchable(fd);
}

static void make_signalfd(void) {
    sigset_t set;
    sigemptyset(&set);
    for (uint64_t left = below(6); left > 0; left--) sigaddset(&set, SIGRTMIN + 12 + (int)below(10));
    int fd = signalfd(-1, &set, (one_in(2) ? SFD_NONBLOCK : 0) | (one_in(2) ? SFD_CLOEXEC : 0));
    REQUIRE(fd >= 0);
    note_watchable(fd);
}

static void make_epoll(void) {
    static const uint32_t kinds[] = {0, EPOLLET, EPOLLONESHOT, EPOLLRDHUP, EPOLLET | EPOLLRDHUP, EPOLLPRI};
    int fd = epoll_create1(one_in(2) ? EPOLL_CLOEXEC : 0);
    REQUIRE(fd >= 0);
    for (uint64_t left = below(6); left > 0 && watchable_count > 0; left--) {
        int target = watchable[below(watchable_count)];
        struct epoll_event event = {.events = (one_in(2) ? EPOLLIN : EPOLLIN | EPOLLOUT) | ONE_OF(kinds), .data.u64 = draw()};
        /* epoll_ctl(2) fails for a duplicate, and for epolls that are nested too deeply. */
        REQUIRE(epoll_ctl(fd, EPOLL_CTL_ADD, target, &event) == 0 || errno == EEXIST || errno == EINVAL || errno == ELOOP);
    }
    note_watchable(fd);
}

static void make_inotify(void) {
    int fd = inotify_init1((one_in(2) ? IN_NONBLOCK : 0) | (one_in(2) ? IN_CLOEXEC : 0));
    REQUIRE(fd >= 0);
    for (uint64_t left = below(4); left > 0; left--) {
        const char *path = new_path();
        REQUIRE(mkdir(path, 0700) == 0);
        int watch = inotify_add_watch(fd, path, IN_CREATE | (one_in(2) ? IN_DELETE : 0) | (one_in(2) ? IN_ONLYDIR : 0));
        REQUIRE(watch > 0);
        if (one_in(3)) {
            struct inotify_event event;
            REQUIRE(inotify_rm_watch(fd, watch) == 0 && read(fd, &event, sizeof event) == sizeof event);
        }
    }
    note_watchable(fd);
}

static void set_options(int fd) {
    static const struct {
        int level, option, value;
    } options[] = {{SOL_SOCKET, SO_SNDBUF, 90000},   {SOL_SOCKET, SO_RCVBUF, 100000}, {SOL_SOCKET, SO_PRIORITY, 3},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},    {SOL_SOCKET, SO_REUSEADDR, 1},   {SOL_SOCKET, SO_BROADCAST, 1},
                   {IPPROTO_TCP, TCP_NODELAY, 1},    {IPPROTO_TCP, TCP_KEEPIDLE, 77}, {IPPROTO_TCP, TCP_DEFER_ACCEPT, 3},
                   {IPPROTO_IP, IP_TTL, 40},         {SOL_SOCKET, SO_RCVLOWAT, 2}};
    struct timeval time = {.tv_sec = 1 + (time_t)below(99)};
    struct linger linger = {.l_onoff = 1, .l_linger = 5};
    for (uint64_t left = below(4); left > 0; left--) {
        size_t i = below(sizeof options / sizeof *options);
        /* Some options do not apply to some sockets. */
        (void)!setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof options[i].value);
    }
    if (one_in(4)) REQUIRE(setsockopt(fd, SOL_SOCKET, one_in(2) ? SO_RCVTIMEO : SO_SNDTIMEO, &time, sizeof time) == 0);
    if (one_in(6)) REQUIRE(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    if (one_in(3)) REQUIRE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
    note_watchable(fd), own(fd);
}

static void make_socket_pair(void) {
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    int pair[2], type = ONE_OF(types);
    REQUIRE(socketpair(AF_UNIX, type | (one_in(2) ? SOCK_CLOEXEC : 0), 0, pair) == 0);
    for (int i = 0; i < 2; i++) {
        set_options(pair[i]);
        for (uint64_t left = below(4); left > 0; left--) put(pair[i], 1 + below(type == SOCK_STREAM ? 20000 : 5000));
    }
    if (one_in(4)) REQUIRE(shutdown(pair[below(2)], one_in(2) ? SHUT_WR : SHUT_RD) == 0);
}

static socklen_t unix_address(struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const char *path = new_path();
    REQUIRE(strlen(path) + 1 < sizeof address->sun_path);
    int is_abstract = one_in(2);
    strcpy(address->sun_path + is_abstract, path);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
}

static void make_unix_listener(void) {
    struct sockaddr_un address;
    socklen_t length = unix_address(&address);
    int type = one_in(2) ? SOCK_STREAM : SOCK_SEQPACKET, listener = socket(AF_UNIX, type, 0);
    REQUIRE(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1 + (int)below(20)) == 0);
    for (uint64_t left = below(3); left > 0; left--) {
        int client = socket(AF_UNIX, type, 0);
        REQUIRE(client >= 0 && connect(client, (struct sockaddr *)&address, length) == 0);
        int server = accept(listener, NULL, NULL);
        REQUIRE(server >= 0);
        set_options(client), set_options(server);
        if (one_in(2)) put(client, 1 + below(5000));
        if (one_in(2)) put(server, 1 + below(5000));
    }
    note_watchable(listener);
}

static void make_unix_datagram(void) {
    struct sockaddr_un address;
    socklen_t length = unix_address(&address);
    int fd = socket(AF_UNIX, SOCK_DGRAM | (one_in(2) ? SOCK_NONBLOCK : 0), 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
    set_options(fd);
    /* The socket has no data: data would have credentials, and prepare refuses such data. */
    if (one_in(2)) REQUIRE(setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)) == 0);
}

static void make_udp(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(one_in(2) ? INADDR_LOOPBACK : INADDR_ANY)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
    set_options(fd);
    if (one_in(2)) {
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK), address.sin_port = htons((uint16_t)(1024 + below(60000)));
        REQUIRE(connect(fd, (struct sockaddr *)&address, length) == 0);
    }
}

static void make_tcp_listener(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(one_in(2) ? INADDR_LOOPBACK : INADDR_ANY)};
    struct sockaddr_in6 address6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int is_six = one_in(3), fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM | (one_in(2) ? SOCK_CLOEXEC : 0), 0);
    set_options(fd);
    int bound = is_six ? bind(fd, (struct sockaddr *)&address6, sizeof address6) : bind(fd, (struct sockaddr *)&address, sizeof address);
    REQUIRE(bound == 0 && listen(fd, 1 + (int)below(100)) == 0);
}
