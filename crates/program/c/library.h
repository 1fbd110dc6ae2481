/* The functions that the files of the C library share. */
#pragma once

#include "farfork.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Keeps what farfork_error() is to say, sets errno, and returns -1. */
HIDDEN int say_errno(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Connects to the node's daemon; a descriptor that is no standard stream's, or -1. */
HIDDEN int connection_open(void);

/* Sends a request, whose header has its kind already. Returns 0 or -1. */
HIDDEN int connection_send(int connection, struct farfork_header *request, size_t bytes);

/* Waits for a reply and its descriptors; those that did not come are -1. Returns 0 or -1. */
HIDDEN int connection_receive(int connection, union farfork_message *reply, int fds[FARFORK_FDS_MAX]);

/* Offers pages of this program's with a request, where it may have such. One thread at a time. */
HIDDEN void pages_offer(struct farfork_checkpoint_request *request);

/* Has the calling thread stay on its processor, if it may run on all: gives its id, or 0 where it is left as it is. */
HIDDEN uint64_t processor_pin(void);

/* Lets the thread run on all again, which processor_pin() has named. */
HIDDEN void processor_unpin(uint64_t thread_id);

HIDDEN void callbacks_before(void);
HIDDEN void callbacks_in_parent(void);
HIDDEN void callbacks_in_child(void);
