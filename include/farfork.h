/* farfork from within a program: mark the point at which it is forked, and learn in each child what that child is for.
 *
 *     struct farfork_outcome who;
 *     if (farfork_checkpoint(NULL, &who) < 0)
 *         errx(1, "%s", farfork_error());
 *     if (who.is_child) {
 *         // from here on this is one of many: read who.payload, write the result, exit
 *         farfork_result(&who, "42", 2);
 *         _exit(0);
 *     }
 *     printf("%s\n", who.seed);    // for `farfork fork SEED`, on any node
 *
 * Build with `pkg-config --cflags --libs farfork`. The functions may be called from any thread; a checkpoint waits for
 * another thread's to be over.
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

/* How to make a seed. All zero: no name, kept until it is dropped or the daemon ends. */
struct farfork_options {
    const char *name; /* for commands to take in the id's place, or NULL */
    uint64_t ttl_ms;  /* drop the seed after so long; 0: never */
};

/* What this process is after a checkpoint. */
struct farfork_outcome {
    int is_child;
    uint32_t index;                   /* of a child among the children of its fork */
    char seed[FARFORK_ID_BYTES];      /* the seed that was made, and that a child comes from */
    char child[FARFORK_ID_BYTES];     /* a child's own id; empty in the parent */
    const void *payload;              /* what the child was given, NULL for nothing; farfork_forget() frees it */
    size_t payload_bytes;
    int result_fd;                    /* where a child's result goes, -1 in the parent */
    uint64_t pause_us;                /* how long the parent stood still; 0 in a child */
};

/* Makes a seed of this process. Returns 0 twice and more often: once here, in the parent, and once in each child that is
 * ever forked from the seed, on whatever node. In a child all threads go on, as they do in the parent; what the process
 * has open, and what it cannot have open, is said in docs/fork-correctness.md.
 *
 * Returns -1 with errno and farfork_error() when no seed could be made; the process goes on as if nothing had happened.
 * `options` may be NULL. */
FARFORK_API int farfork_checkpoint(const struct farfork_options *options, struct farfork_outcome *outcome);

/* Adds bytes to a child's result, which `farfork wait --results` gives. Returns 0, or -1 with errno. */
FARFORK_API int farfork_result(const struct farfork_outcome *outcome, const void *bytes, size_t count);

/* Frees the payload and closes the result's descriptor. */
FARFORK_API void farfork_forget(struct farfork_outcome *outcome);

/* Has functions called around each checkpoint, as pthread_atfork(3) has around fork(2): `before` in the reverse order of
 * registration, the others in that order, with `context`. Each may be NULL. In a child the other threads go on: what was
 * locked before must be unlocked, not made anew; what must differ between children (random state, names of temporary
 * files, connections) is to be made anew. The generators of OpenSSL are, without this.
 *
 * Returns 0, or -1 with errno. */
FARFORK_API int farfork_at_checkpoint(void (*before)(void *), void (*in_parent)(void *), void (*in_child)(void *),
                                      void *context);

/* Why the last call of this thread failed: object, cause and next step. Valid until its next call. */
FARFORK_API const char *farfork_error(void);

#ifdef __cplusplus
}
#endif

#endif
