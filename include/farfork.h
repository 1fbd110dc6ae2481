/* farfork as a library: a program marks the point at which it is forked. Each child gets its own payload.
 *
 *     struct farfork_outcome outcome;
 *     if (farfork_checkpoint(NULL, &outcome) < 0)
 *         errx(1, "%s", farfork_error());
 *     if (outcome.is_child) {
 *         // this is one of many children: read outcome.payload, write the result, exit
 *         farfork_result(&outcome, "42", 2);
 *         _exit(0);
 *     }
 *     printf("%s\n", outcome.seed);    // for `farfork fork SEED`, on any node
 *
 * Build with `pkg-config --cflags --libs farfork`. Any thread may call the functions. A checkpoint waits until
 * the checkpoint of another thread has ended.
 */
#ifndef FARFORK_H
#define FARFORK_H

#include <stddef.h>
#include <stdint.h>

#include "farfork_protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FARFORK_API __attribute__((visibility("default")))

/* Options of a seed. All zero: no name, kept until it is dropped or the daemon ends. */
struct farfork_options {
    const char *name; /* commands accept it instead of the id; or NULL */
    uint64_t ttl_ms;  /* drops the seed after this time; 0: never */
};

/* The role of this process after a checkpoint: the parent or a child. */
struct farfork_outcome {
    int is_child;
    uint32_t index;                   /* position of a child among the children of its fork */
    char seed[FARFORK_ID_BYTES];      /* the new seed, from which children are forked */
    char child[FARFORK_ID_BYTES];     /* a child's own id; empty in the parent */
    const void *payload;              /* the payload of the child, or NULL; farfork_forget() frees it */
    size_t payload_bytes;
    int result_fd;                    /* a child writes its result here; -1 in the parent */
    uint64_t pause_us;                /* how long the parent was stopped; 0 in a child */
};

/* Makes a seed of this process. Returns 0 once in the parent, and once in each child of the seed, on any node. In a
 * child all threads continue, as in the parent. docs/fork-correctness.md lists the open files and other resources that
 * children get, and those that make a checkpoint fail.
 *
 * Returns -1 with errno and farfork_error() if no seed could be made. The process then continues unchanged.
 * `options` may be NULL. */
FARFORK_API int farfork_checkpoint(const struct farfork_options *options, struct farfork_outcome *outcome);

/* Appends bytes to a child's result, which `farfork wait --results` prints. Returns 0, or -1 with errno. */
FARFORK_API int farfork_result(const struct farfork_outcome *outcome, const void *bytes, size_t count);

/* Frees the payload and closes the descriptor of the result. */
FARFORK_API void farfork_forget(struct farfork_outcome *outcome);

/* Registers functions to call at each checkpoint, as pthread_atfork(3) does for fork(2): `before` in the reverse order of
 * registration, the others in the order of registration. Each gets `context` and may be NULL. In a child the other
 * threads continue: unlock locks that `before` took, and do not initialize them again. Recreate state that must differ
 * between children: random state, names of temporary files, connections. OpenSSL's random generators need no function.
 *
 * Returns 0, or -1 with errno. */
FARFORK_API int farfork_at_checkpoint(void (*before)(void *), void (*in_parent)(void *), void (*in_child)(void *),
                                      void *context);

/* The error of this thread's last failed call: object, cause and next step. Valid until its next call. */
FARFORK_API const char *farfork_error(void);

#ifdef __cplusplus
}
#endif

#endif
