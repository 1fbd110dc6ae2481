/* States what the kernel shows of each descriptor and, at the end, its contents. */
#pragma once

#include "files.h"

#include <linux/kcmp.h>

#define NUMBERS_END 1024
#define INODES_MAX 512
#define PAYLOAD_NUMBER 1000

/* Inode numbers of pipes and sockets differ in a child. So each statement numbers pipes and sockets in order of
 * appearance. */
static uint64_t inodes[INODES_MAX];
static unsigned inodes_count;

static unsigned number_of(uint64_t inode) {
    for (unsigned i = 0; i < inodes_count; i++)
        if (inodes[i] == inode) return i;
    REQUIRE(inodes_count < INODES_MAX);
    inodes[inodes_count] = inode;
    return inodes_count++;
}

static int is_ours(int fd) {
    char link[32], path[PATH_BYTES_MAX] = {0};
    if (fcntl(fd, F_GETFD) < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return fd != PAYLOAD_NUMBER || readlink(link, path, sizeof path - 1) < 0 || strcmp(path, PAYLOAD_PATH) != 0;
}

static int first_that_is(int fd) {
    for (int other = 3; other < fd; other++)
        if (is_ours(other) && syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, other, fd) == 0) return other;
    return fd;
}

/* Returns whether a path names a deleted file. A child has its contents in a file in memory. */
static int is_deleted_file(const char *path) {
    return strstr(path, " (deleted)") && strncmp(path, MEMFD_PATH, strlen(MEMFD_PATH)) != 0;
}

static int is_memfd(int fd) {
    char link[32], path[2 * PATH_BYTES_MAX] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 && strncmp(path, MEMFD_PATH, strlen(MEMFD_PATH)) == 0;
}

static void state_link(int fd) {
    char link[32], path[2 * PATH_BYTES_MAX] = {0};
    uint64_t inode;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    REQUIRE(readlink(link, path, sizeof path - 1) > 0);
    if (sscanf(path, "pipe:[%lu]", &inode) == 1 || sscanf(path, "socket:[%lu]", &inode) == 1)
        state(" %.4s:%u", path, number_of(inode));
    else
        state(" %s", is_deleted_file(path) ? "a deleted file" : path);
}

static int compare_lines(const void *one, const void *other) {
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

/* States one line of a descriptor's file in /proc. */
static void state_detail(const char *line) {
    static const char *const plain[] = {"pos:", "eventfd-count:", "eventfd-semaphore:", "sigmask:", "clockid:", "ticks:", "settime flags:", "Pid:"};
    char a[64], b[64], c[64];
    unsigned long first, second;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strncmp(line, plain[i], strlen(plain[i])) == 0) state(" %s", line);
    if (sscanf(line, "it_value: (%lu, %lu)", &first, &second) == 2) state(" left ~%lu", first * 1000 + second / 1000000);
    if (sscanf(line, "it_interval: (%lu, %lu)", &first, &second) == 2) state(" every %lu.%lu", first, second);
    if (sscanf(line, "tfd: %63s events: %63s data: %63s", a, b, c) == 3) state(" watches %s %s %s", a, b, c);
    if (sscanf(line, "inotify wd:%63s ino:%*s sdev:%*s mask:%63s", a, b) == 2) state(" watch %s %s", a, b);
    if (sscanf(line, "lock: %*s %63[^\n]", a) == 1) {
        char kind[16], mode[16], type[16], from[24], to[24];
        if (sscanf(line, "lock: %*s %15s %15s %15s %*s %*s %23s %23s", kind, mode, type, from, to) == 5)
            state(" lock %s %s %s %s", kind, type, from, to);
    }
}

static void state_details(int fd) {
    char path[64], *lines[256], *save;
    size_t count = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    for (char *line = strtok_r(read_whole(path), "\n", &save); line && count < 256; line = strtok_r(NULL, "\n", &save)) lines[count++] = line;
    qsort(lines, count, sizeof *lines, compare_lines);
    for (size_t i = 0; i < count; i++) state_detail(lines[i]);
}

static void state_address(const char *word, int fd, int (*ask)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    char text[64];
    if (ask(fd, (struct sockaddr *)&address, &length) != 0) return;
    struct sockaddr_un *local = (struct sockaddr_un *)&address;
    struct sockaddr_in *four = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
    if (address.ss_family == AF_UNIX && length > sizeof(sa_family_t))
        state(" %s %s%s", word, local->sun_path[0] ? "" : "@", local->sun_path + !local->sun_path[0]);
    if (address.ss_family == AF_INET) state(" %s %s:%d", word, inet_ntop(AF_INET, &four->sin_addr, text, sizeof text), ntohs(four->sin_port));
    if (address.ss_family == AF_INET6) state(" %s %s:%d", word, inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text), ntohs(six->sin6_port));
}

static void state_socket(int fd) {
    static const struct {
        const char *name;
        int level, option;
    } options[] = {{"domain", SOL_SOCKET, SO_DOMAIN},        {"type", SOL_SOCKET, SO_TYPE},           {"listens", SOL_SOCKET, SO_ACCEPTCONN},
                   {"sndbuf", SOL_SOCKET, SO_SNDBUF},        {"rcvbuf", SOL_SOCKET, SO_RCVBUF},       {"priority", SOL_SOCKET, SO_PRIORITY},
                   {"keepalive", SOL_SOCKET, SO_KEEPALIVE},  {"reuseaddr", SOL_SOCKET, SO_REUSEADDR}, {"broadcast", SOL_SOCKET, SO_BROADCAST},
                   {"nodelay", IPPROTO_TCP, TCP_NODELAY},    {"keepidle", IPPROTO_TCP, TCP_KEEPIDLE}, {"defer", IPPROTO_TCP, TCP_DEFER_ACCEPT},
                   {"ttl", IPPROTO_IP, IP_TTL},              {"passcred", SOL_SOCKET, SO_PASSCRED},   {"rcvlowat", SOL_SOCKET, SO_RCVLOWAT},
                   {"error", SOL_SOCKET, SO_ERROR}};
    struct timeval time[2] = {0};
    struct linger linger = {0};
    int value;
    socklen_t length = sizeof value;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++, length = sizeof value)
        if (getsockopt(fd, options[i].level, options[i].option, &value, &length) == 0) state(" %s %d", options[i].name, value);
    length = sizeof time[0];
    getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time[0], &length), getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time[1], &length);
    length = sizeof linger;
    getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length);
    state(" times %ld %ld linger %d %d", time[0].tv_sec, time[1].tv_sec, linger.l_onoff, linger.l_linger);
    state_address("at", fd, getsockname), state_address("to", fd, getpeername);
}

static void state_descriptor(int fd) {
    struct stat file;
    struct f_owner_ex owner = {0};
    int waiting = 0;
    REQUIRE(fstat(fd, &file) == 0);
    state("fd %d as %d:", fd, first_that_is(fd));
    state_link(fd);
    int flags = fcntl(fd, F_GETFL);
    state(" flags %x %x mode %o", flags, fcntl(fd, F_GETFD), file.st_mode);
    if (!(flags & O_PATH) && fcntl(fd, F_GETOWN_EX, &owner) == 0) state(" owner %d:%d signal %d", owner.type, owner.pid, fcntl(fd, F_GETSIG));
    if (S_ISREG(file.st_mode)) state(" size %ld", file.st_size);
    if (is_memfd(fd)) state(" seals %x", fcntl(fd, F_GET_SEALS));
    if (S_ISFIFO(file.st_mode) && !(flags & O_PATH) && (flags & O_ACCMODE) != O_WRONLY && ioctl(fd, FIONREAD, &waiting) == 0)
        state(" capacity %d waiting %d", fcntl(fd, F_GETPIPE_SZ), waiting);
    if (S_ISSOCK(file.st_mode) && !(flags & O_PATH)) state_socket(fd);
    state_details(fd);
    state("\n");
}

static void state_descriptors(void) {
    inodes_count = 0;
    for (int fd = 3; fd < NUMBERS_END; fd++)
        if (is_ours(fd)) state_descriptor(fd);
}

static int compare_events(const void *one, const void *other) {
    uint64_t a = ((const struct epoll_event *)one)->data.u64, b = ((const struct epoll_event *)other)->data.u64;
    return (a > b) - (a < b);
}

static void use_up_epoll(int fd) {
    struct epoll_event events[64];
    int count = epoll_wait(fd, events, 64, 0);
    qsort(events, count > 0 ? (size_t)count : 0, sizeof *events, compare_events);
    state("fd %d: %d events", fd, count);
    for (int i = 0; i < count; i++) state(", %x of %lx", events[i].events, events[i].data.u64);
    state("\n");
}

/* Reads until the end: packets and messages one by one, a stream in pieces of any size. */
static void use_up(int fd, int is_in_pieces) {
    static char piece[1UL << 17];
    uint64_t hash = HASH_OF_NOTHING;
    size_t bytes = 0;
    ssize_t count;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    while ((count = read(fd, piece, sizeof piece)) > 0) {
        hash = add_to_hash(hash, piece, (size_t)count), bytes += (size_t)count;
        if (is_in_pieces) state("fd %d: a piece of %zd\n", fd, count);
        if (bytes > (8UL << 20)) break; /* a device whose data never ends */
    }
    state("fd %d: %zu bytes, %lx, then %zd %s\n", fd, bytes, hash, count, count < 0 ? strerror(errno) : "");
}

static void use_up_descriptor(int fd) {
    char link[32], path[2 * PATH_BYTES_MAX] = {0};
    struct stat file;
    int flags = fcntl(fd, F_GETFL), type = 0;
    socklen_t length = sizeof type;
    REQUIRE(fstat(fd, &file) == 0);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    REQUIRE(readlink(link, path, sizeof path - 1) > 0);
    if (flags & O_PATH || (flags & O_ACCMODE) == O_WRONLY || S_ISDIR(file.st_mode) || S_ISCHR(file.st_mode) || strncmp(path, "/proc", 5) == 0) return;
    if (S_ISSOCK(file.st_mode)) getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length);
    if (strstr(path, "eventpoll") || strstr(path, "timerfd") || strstr(path, "pidfd") || strstr(path, "inotify")) return;
    use_up(fd, flags & O_DIRECT || type == SOCK_DGRAM || type == SOCK_SEQPACKET);
}

/* Uses up all epolls. Must run before other descriptors are read, because reading changes the events of the epolls. */
static void use_up_epolls(void) {
    for (int fd = 3; fd < NUMBERS_END; fd++) {
        char link[32], path[2 * PATH_BYTES_MAX] = {0};
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (is_ours(fd) && readlink(link, path, sizeof path - 1) > 0 && strstr(path, "[eventpoll]")) use_up_epoll(fd);
    }
}

static void use_up_descriptors(void) {
    for (int fd = 3; fd < NUMBERS_END; fd++)
        if (is_ours(fd)) use_up_descriptor(fd);
}
