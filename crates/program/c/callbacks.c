/* The callbacks that a program registers for checkpoints, and the reseeding of OpenSSL in children. */
#include "library.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <dlfcn.h>
#include <sys/random.h>

struct callbacks {
    void (*before)(void *);
    void (*in_parent)(void *);
    void (*in_child)(void *);
    void *context;
    struct callbacks *previous;
    struct callbacks *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct callbacks *first, *last;

int farfork_at_checkpoint(void (*before)(void *), void (*in_parent)(void *), void (*in_child)(void *), void *context) {
    struct callbacks *added = malloc(sizeof *added);
    if (!added) return say_errno(ENOMEM, "callbacks: no memory");
    *added = (struct callbacks){before, in_parent, in_child, context, NULL, NULL};
    pthread_mutex_lock(&lock);
    added->previous = last;
    if (last)
        last->next = added;
    else
        first = added;
    last = added;
    pthread_mutex_unlock(&lock);
    return 0;
}

void callbacks_before(void) {
    pthread_mutex_lock(&lock); /* until the checkpoint ends, so that the same callbacks run before and after */
    for (struct callbacks *each = last; each; each = each->previous)
        if (each->before) each->before(each->context);
}

void callbacks_in_parent(void) {
    for (struct callbacks *each = first; each; each = each->next)
        if (each->in_parent) each->in_parent(each->context);
    pthread_mutex_unlock(&lock);
}

/* OpenSSL detects a fork by a new process id, but a child of farfork has its parent's process id. Adding entropy to the
** primary random generator makes all others reseed themselves. */
static void reseed_openssl(void) {
    void (*add)(const void *, int, double) = (void (*)(const void *, int, double))dlsym(RTLD_DEFAULT, "RAND_add");
    unsigned char entropy[48];
    if (add && getrandom(entropy, sizeof entropy, 0) == sizeof entropy)
        add(entropy, sizeof entropy, sizeof entropy);
}

void callbacks_in_child(void) {
    reseed_openssl();
    for (struct callbacks *each = first; each; each = each->next)
        if (each->in_child) each->in_child(each->context);
    pthread_mutex_unlock(&lock);
}
