/* An epoll that watches a file that only a process outside of the tree has open: not carried. */
#include "resource.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

static int epoll, signals[2];

static void set_up(void) {
    epoll = epoll_create1(0);
    int fd = eventfd(0, 0);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = 77}};
    REQUIRE(pipe2(signals, O_CLOEXEC) == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    pid_t intermediate = fork();
    if (intermediate == 0) {
        if (fork() != 0) _exit(0);
        /* Adopted by a process that is no descendant of the program: ends when the program does. */
        close(signals[1]);
        uint64_t one = 1;
        char byte;
        while (read(signals[0], &byte, 1) == 1)
            if (write(fd, &one, sizeof one) != sizeof one) break;
        _exit(0);
    }
    REQUIRE(waitpid(intermediate, NULL, 0) == intermediate && close(fd) == 0);
}

static void check(void) {
    struct epoll_event event;
    REQUIRE(write(signals[1], "s", 1) == 1 && epoll_wait(epoll, &event, 1, 30000) == 1 && event.data.u64 == 77);
}
