/* Threads that wait in send(2) and write(2) for room: the queue of a Unix stream that is full of single bytes, a queue of
 * messages, and a pipe that is full of records of 3000 bytes. The kernel counts the memory of the pieces. They wait until the
 * data is read. */
#include "resource.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#define KINDS 4

static struct queue {
    int from, to;
    size_t piece;
    int is_socket;
    uint64_t sent;
    pthread_t sender;
    volatile int has_sent;
} queues[KINDS];

static char record[3000], found[1 << 20];

static ssize_t put(const struct queue *queue, int flags) {
    return queue->is_socket ? send(queue->from, record, queue->piece, flags) : write(queue->from, record, queue->piece);
}

static void *send_one(void *at) {
    struct queue *queue = (struct queue *)at;
    REQUIRE(put(queue, 0) == (ssize_t)queue->piece);
    queue->has_sent = 1;
    return NULL;
}

static void fill(struct queue *queue) {
    REQUIRE(fcntl(queue->from, F_SETFL, O_NONBLOCK) == 0);
    while (put(queue, 0) == (ssize_t)queue->piece) queue->sent += queue->piece;
    REQUIRE(errno == EAGAIN && fcntl(queue->from, F_SETFL, 0) == 0);
    REQUIRE(pthread_create(&queue->sender, NULL, send_one, queue) == 0);
}

static void set_up(void) {
    const int kinds[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
    const size_t pieces[] = {1, 1, 100, 3000};
    for (int i = 0; i < KINDS; i++) {
        int ends[2];
        queues[i].is_socket = i < 3, queues[i].piece = pieces[i];
        if (queues[i].is_socket)
            REQUIRE(socketpair(AF_UNIX, kinds[i], 0, ends) == 0);
        else
            REQUIRE(pipe(ends) == 0);
        queues[i].from = ends[1], queues[i].to = ends[0];
        fill(&queues[i]);
    }
}

static void check(void) {
    for (int i = 0; i < KINDS; i++) {
        struct queue *queue = &queues[i];
        uint64_t arrived = 0;
        struct pollfd polled = {.fd = queue->from, .events = POLLOUT};
        REQUIRE(poll(&polled, 1, 0) == 0 && !queue->has_sent, "queue %d has room", i);
        REQUIRE(!queue->is_socket || (put(queue, MSG_DONTWAIT) == -1 && errno == EAGAIN), "queue %d takes more", i);
        while (arrived < queue->sent + queue->piece) {
            ssize_t bytes = read(queue->to, found, sizeof found);
            REQUIRE(bytes > 0, "queue %d", i);
            arrived += (uint64_t)bytes;
        }
        REQUIRE(pthread_join(queue->sender, NULL) == 0 && queue->has_sent && arrived == queue->sent + queue->piece);
    }
}
