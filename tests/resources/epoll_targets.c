/* Files that epolls watch, and that are not open at their registered numbers: eventfds, timerfds, an end of a pipe. Each was
 * closed there, while a duplicate is open in this process, in a child, or in flight in a socket. Most numbers have other files
 * now; some of these are watched too. */
#include "resource.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

static int epoll, second, moved_event, reused_event, moved_timer, reused_timer, moved_reader, ends[2], twice[2], gone;
static int shared_epoll, commands[2], answers[2], passing[2], passed_epoll;

static void watch(int instance, int fd, uint64_t word) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = word}};
    REQUIRE(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event) == 0);
}

static uint64_t word_reported(int instance) {
    struct epoll_event event;
    return epoll_wait(instance, &event, 1, 0) == 1 ? event.data.u64 : 0;
}

static void signal_event(int fd) {
    uint64_t one = 1;
    REQUIRE(write(fd, &one, sizeof one) == sizeof one);
}

static void clear_event(int fd) {
    uint64_t count;
    REQUIRE(read(fd, &count, sizeof count) == sizeof count);
}

static void require_only(int instance, int fd, uint64_t word) {
    signal_event(fd);
    REQUIRE(word_reported(instance) == word, "fd %d, %llu expected", fd, (unsigned long long)word);
    clear_event(fd);
    REQUIRE(word_reported(instance) == 0);
}

/* Closes its own number of the file that the shared epoll watches, and signals the file on request. */
static void run_child(int fd) {
    char byte;
    while (read(commands[0], &byte, 1) == 1) {
        byte == '+' ? signal_event(fd) : clear_event(fd);
        if (write(answers[1], &byte, 1) != 1) break;
    }
    _exit(0);
}

static void command(char byte) {
    REQUIRE(write(commands[1], &byte, 1) == 1 && read(answers[0], &byte, 1) == 1);
}

static void pass(int fd) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec bytes = {.iov_base = "f", .iov_len = 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof(int));
    REQUIRE(sendmsg(passing[0], &message, 0) == 1);
}

static int receive(void) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec bytes = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd;
    REQUIRE(recvmsg(passing[1], &message, 0) == 1 && CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return fd;
}

static void set_up(void) {
    epoll = epoll_create1(0), second = epoll_create1(0), shared_epoll = epoll_create1(0), passed_epoll = epoll_create1(0);
    reused_event = eventfd(0, EFD_NONBLOCK);
    watch(epoll, reused_event, 1);
    moved_event = fcntl(reused_event, F_DUPFD, 50);
    REQUIRE(close(reused_event) == 0 && eventfd(0, EFD_NONBLOCK) == reused_event);
    watch(second, reused_event, 2);

    reused_timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(epoll, reused_timer, 3);
    moved_timer = fcntl(reused_timer, F_DUPFD, 60);
    REQUIRE(close(reused_timer) == 0 && timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK) == reused_timer);

    REQUIRE(pipe(ends) == 0);
    watch(epoll, ends[0], 4);
    moved_reader = fcntl(ends[0], F_DUPFD, 70);
    REQUIRE(dup2(ends[1], ends[0]) == ends[0]);

    /* One epoll has two registrations of one number. */
    twice[1] = eventfd(0, EFD_NONBLOCK);
    watch(epoll, twice[1], 5);
    twice[0] = fcntl(twice[1], F_DUPFD, 80);
    REQUIRE(close(twice[1]) == 0 && eventfd(0, EFD_NONBLOCK) == twice[1]);
    watch(epoll, twice[1], 6);

    /* The number is higher than all open ones, and stays closed. */
    gone = eventfd(0, EFD_NONBLOCK);
    int high = fcntl(gone, F_DUPFD, 900);
    watch(epoll, high, 7);
    REQUIRE(close(high) == 0);

    int childs = eventfd(0, EFD_NONBLOCK);
    REQUIRE(pipe(commands) == 0 && pipe(answers) == 0);
    watch(shared_epoll, childs, 8);
    if (fork() == 0) {
        close(commands[1]);
        run_child(childs);
    }
    close(childs);

    int inflight = eventfd(0, EFD_NONBLOCK);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, passing) == 0);
    watch(passed_epoll, inflight, 9);
    pass(inflight);
    close(inflight);
}

static void check(void) {
    REQUIRE(fcntl(900, F_GETFD) == -1 && errno == EBADF);
    REQUIRE(word_reported(epoll) == 0 && word_reported(second) == 0);
    signal_event(reused_event);
    REQUIRE(word_reported(epoll) == 0, "the epoll reports a file that it does not watch");
    clear_event(reused_event);
    require_only(second, reused_event, 2);
    require_only(epoll, moved_event, 1);
    struct itimerspec soon = {.it_value = {.tv_nsec = 1}};
    REQUIRE(timerfd_settime(reused_timer, 0, &soon, NULL) == 0);
    struct timespec a_while = {0, 1000000};
    nanosleep(&a_while, NULL);
    REQUIRE(word_reported(epoll) == 0, "the epoll reports a timer that it does not watch");
    REQUIRE(timerfd_settime(moved_timer, 0, &soon, NULL) == 0);
    nanosleep(&a_while, NULL);
    REQUIRE(word_reported(epoll) == 3);
    clear_event(moved_timer), clear_event(reused_timer);
    char byte;
    REQUIRE(write(ends[0], "x", 1) == 1 && word_reported(epoll) == 4 && read(moved_reader, &byte, 1) == 1);
    require_only(epoll, twice[0], 5);
    require_only(epoll, twice[1], 6);
    require_only(epoll, gone, 7);
    command('+');
    REQUIRE(word_reported(shared_epoll) == 8);
    command('-');
    REQUIRE(word_reported(shared_epoll) == 0);
    int fd = receive();
    require_only(passed_epoll, fd, 9);
}
