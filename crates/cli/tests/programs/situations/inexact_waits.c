/* Threads in calls whose time limit a prepare does not preserve exactly, and one thread (`kept`) in a call whose time
 * limit it preserves. `names` has the names of the threads.
 * usage: inexact_waits
 */
#include "../forked.h"

#include <pthread.h>
#include <pty.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <termios.h>

#define WAITS 5

static int fds[WAITS];
static const char *const names[WAITS] = {"terminal", "recvmmsg", "waitall", "sending", "kept"};

/* Makes a call. Its time limit is so long that the thread is always found in the call. */
static void wait_once(int which) {
    static char bytes[1 << 20];
    struct iovec vector = {bytes, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
    struct timespec limit = {.tv_sec = 600};
    switch (which) {
    case 0: (void)!read(fds[which], bytes, 1); break;
    case 1: recvmmsg(fds[which], &message, 1, 0, &limit); break;
    case 2: recv(fds[which], bytes, 8, MSG_WAITALL); break;
    case 3: (void)!write(fds[which], bytes, sizeof bytes); break;
    default: recv(fds[which], bytes, 8, 0);
    }
}

static void *wait_for_ever(void *given) {
    int which = (int)(intptr_t)given;
    prctl(PR_SET_NAME, names[which]);
    for (;;) wait_once(which);
    return NULL;
}

static void open_terminal(void) {
    int driver;
    struct termios settings;
    REQUIRE(openpty(&driver, &fds[0], NULL, NULL, NULL) == 0 && tcgetattr(fds[0], &settings) == 0);
    cfmakeraw(&settings);
    settings.c_cc[VMIN] = 0;
    settings.c_cc[VTIME] = 250;
    REQUIRE(tcsetattr(fds[0], TCSANOW, &settings) == 0);
}

static void open_sockets(void) {
    struct timeval limit = {.tv_sec = 600};
    for (int which = 1; which < WAITS; which++) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, which == 1 ? SOCK_DGRAM : SOCK_STREAM, 0, pair) == 0);
        fds[which] = pair[0];
        REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    }
}

int main(void) {
    open_terminal();
    open_sockets();
    for (intptr_t which = 0; which < WAITS; which++) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, wait_for_ever, (void *)which) == 0);
    }
    usleep(100000);
    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    finish(payload, 0);
}
