/* The checkpoint: one request. The parent and each child receive a reply to it. */
#include "library.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One checkpoint at a time: the connection of another thread would be a socket that cannot be captured. In a child, the
** thread that holds the lock continues as in the parent, and unlocks it. */
static pthread_mutex_t checkpoint_lock = PTHREAD_MUTEX_INITIALIZER;

/* The id of this child; empty in a parent. A child has no daemon to connect to. */
static char child_id[FARFORK_ID_BYTES];

static void close_all(const int fds[FARFORK_FDS_MAX]) {
    for (int i = 0; i < FARFORK_FDS_MAX; i++)
        if (fds[i] >= 0) close(fds[i]);
}

/* Reads the whole payload into a new buffer. */
static int read_payload(int fd, struct farfork_outcome *outcome) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -1;
    size_t bytes = (size_t)status.st_size, have = 0;
    char *payload = malloc(bytes + 1); /* one more for a zero byte, so that the payload can be used as text */
    if (!payload) return -1;
    while (have < bytes) {
        ssize_t count = pread(fd, payload + have, bytes - have, (off_t)have);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            free(payload);
            return -1;
        }
        have += (size_t)count;
    }
    payload[bytes] = 0;
    outcome->payload = payload;
    outcome->payload_bytes = bytes;
    return 0;
}

static int become_parent(const struct farfork_seed_reply *reply, struct farfork_outcome *outcome) {
    outcome->pause_us = reply->pause_us;
    memcpy(outcome->seed, reply->seed, sizeof outcome->seed);
    callbacks_in_parent();
    return 0;
}

/* A child that cannot read its payload must not continue as if it were the parent. */
static int become_child(const struct farfork_child_reply *reply, const int fds[FARFORK_FDS_MAX],
                        struct farfork_outcome *outcome) {
    if (fds[0] < 0 || (reply->has_payload && (fds[1] < 0 || read_payload(fds[1], outcome) < 0))) {
        dprintf(STDERR_FILENO, "farfork: this child lacks its payload or its result file: %s\n", strerror(errno));
        _exit(127);
    }
    if (fds[1] >= 0) close(fds[1]);
    outcome->is_child = 1;
    outcome->index = reply->index;
    outcome->result_fd = fds[0];
    memcpy(outcome->seed, reply->seed, sizeof outcome->seed);
    memcpy(outcome->child, reply->child, sizeof outcome->child);
    memcpy(child_id, reply->child, sizeof child_id);
    callbacks_in_child();
    return 0;
}

static int become(const union farfork_message *reply, const int fds[FARFORK_FDS_MAX],
                  struct farfork_outcome *outcome) {
    switch (reply->header.kind) {
    case FARFORK_KIND_SEED:
        return become_parent(&reply->seed_reply, outcome);
    case FARFORK_KIND_CHILD:
        return become_child(&reply->child_reply, fds, outcome);
    case FARFORK_KIND_FAILED:
        callbacks_in_parent();
        close_all(fds);
        return say_errno(ECANCELED, "%.*s", FARFORK_TEXT_BYTES - 1, reply->failed_reply.text);
    default:
        callbacks_in_parent();
        close_all(fds);
        return say_errno(EPROTO, "the node's daemon: a reply of kind %d", reply->header.kind);
    }
}

/* Sends the request and waits for the reply. The `before` callbacks must have run. */
static int request_checkpoint(int connection, struct farfork_checkpoint_request *request, struct farfork_outcome *outcome) {
    union farfork_message reply;
    int fds[FARFORK_FDS_MAX];
    if (request->pages) request->kept_thread = processor_pin();
    int failed = connection_send(connection, &request->header, sizeof *request) < 0 ||
                 connection_receive(connection, &reply, fds) < 0;
    int error = errno;
    /* A child gets here too, with a copy of this stack, and also unpins its thread. */
    processor_unpin(request->kept_thread);
    if (failed) {
        callbacks_in_parent();
        errno = error;
        return -1;
    }
    return become(&reply, fds, outcome);
}

int farfork_checkpoint(const struct farfork_options *options, struct farfork_outcome *outcome) {
    struct farfork_checkpoint_request request = {.header.kind = FARFORK_KIND_CHECKPOINT};
    memset(outcome, 0, sizeof *outcome);
    outcome->result_fd = -1;
    if (options) {
        request.ttl_ms = options->ttl_ms;
        const char *name = options->name ? options->name : "";
        if (strlen(name) >= sizeof request.name)
            return say_errno(EINVAL, "name `%s`: it has more than %zu bytes", name, sizeof request.name - 1);
        strcpy(request.name, name);
    }
    if (child_id[0]) return say_errno(EPERM, "child %s: a child cannot be forked further; its parent can", child_id);
    pthread_mutex_lock(&checkpoint_lock);
    int connection = connection_open(), result = -1;
    if (connection >= 0) {
        callbacks_before();
        pages_offer(&request);
        result = request_checkpoint(connection, &request, outcome);
        int error = errno;
        close(connection);
        errno = error;
    }
    pthread_mutex_unlock(&checkpoint_lock);
    return result;
}

int farfork_result(const struct farfork_outcome *outcome, const void *bytes, size_t count) {
    if (outcome->result_fd < 0) return say_errno(EBADF, "result: only a child has one");
    const char *from = bytes;
    while (count > 0) {
        ssize_t written = write(outcome->result_fd, from, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return say_errno(errno, "result: %s", strerror(errno));
        from += written;
        count -= (size_t)written;
    }
    return 0;
}

void farfork_forget(struct farfork_outcome *outcome) {
    free((void *)outcome->payload);
    if (outcome->result_fd >= 0) close(outcome->result_fd);
    outcome->payload = NULL;
    outcome->payload_bytes = 0;
    outcome->result_fd = -1;
}
