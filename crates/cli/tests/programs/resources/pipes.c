/* Pipes within the process: their data, capacity and modes, a reader that waits in read(2), and the end of file when
 * the last writer closes.
 */
#include "../forked.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#define CAPACITY 16384

static atomic_int is_waiting;

/* Waits in read(2) for a byte that only the child writes. */
static void *read_one(void *argument) {
    int fd = *(int *)argument;
    char byte = 0;
    atomic_store(&is_waiting, 1);
    REQUIRE(read(fd, &byte, 1) == 1 && byte == 'x', "the reader got %d", byte);
    return NULL;
}

static void check_content(int ends[2], const uint64_t *expected, size_t bytes) {
    uint64_t found[CAPACITY / sizeof(uint64_t)];
    REQUIRE(fcntl(ends[1], F_GETPIPE_SZ) == CAPACITY, "capacity %d", fcntl(ends[1], F_GETPIPE_SZ));
    REQUIRE(write(ends[1], "!", 1) == -1 && errno == EAGAIN, "a full pipe accepted data");
    REQUIRE(read(ends[0], found, sizeof found) == (ssize_t)bytes && memcmp(found, expected, bytes) == 0);
    REQUIRE(read(ends[0], found, 1) == -1 && errno == EAGAIN, "an empty pipe is not empty");
    REQUIRE(fcntl(ends[0], F_GETFL) & O_NONBLOCK);
    close(ends[1]);
    REQUIRE(read(ends[0], found, 1) == 0, "another process has the write end open");
}

/* Checks a pipe whose write end was closed: it still has its last data. */
static void check_last_words(int fd) {
    char text[16] = {0};
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    REQUIRE(poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLIN) && (poll_fd.revents & POLLHUP));
    REQUIRE(read(fd, text, sizeof text) == 5 && strcmp(text, "words") == 0);
    REQUIRE(read(fd, text, sizeof text) == 0);
}

int main(void) {
    int full[2], waited[2], last[2];
    uint64_t words[CAPACITY / sizeof(uint64_t)];
    fill(words, sizeof words, 40);
    REQUIRE(pipe2(full, O_NONBLOCK | O_CLOEXEC) == 0 && pipe2(waited, 0) == 0 && pipe2(last, 0) == 0);
    REQUIRE(fcntl(full[1], F_SETPIPE_SZ, CAPACITY) == CAPACITY);
    REQUIRE(write(full[1], words, sizeof words) == sizeof words);
    REQUIRE(write(last[1], "words", 5) == 5 && close(last[1]) == 0);
    pthread_t reader;
    REQUIRE(pthread_create(&reader, NULL, read_one, &waited[0]) == 0);
    while (!atomic_load(&is_waiting)) usleep(100);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    check_content(full, words, sizeof words);
    check_last_words(last[0]);
    REQUIRE(write(waited[1], "x", 1) == 1 && pthread_join(reader, NULL) == 0);
    finish(payload, 0);
}
