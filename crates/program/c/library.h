/* Functions that the files of the C library share. */
#pragma once

#include "farfork.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Stores the text for farfork_error(), sets errno, and returns -1. */
HIDDEN int say_errno(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Connects to the node's daemon. Returns a descriptor above the standard streams, or -1. */
HIDDEN int connection_open(void);

/* Sends a request. The caller has set the kind in its header. Returns 0 or -1. */
HIDDEN int connection_send(int connection, struct farfork_header *request, size_t bytes);

/* Waits for a reply and its descriptors; missing descriptors are -1. Returns 0 or -1. */
HIDDEN int connection_receive(int connection, union farfork_message *reply, int fds[FARFORK_FDS_MAX]);

/* Adds pages for injected calls to a request, if they can be mapped. Not thread-safe. */
HIDDEN void pages_offer(struct farfork_checkpoint_request *request);

/* Pins the calling thread to its CPU if it may run on all CPUs. Returns its thread id, or 0 if nothing was changed. */
HIDDEN uint64_t processor_pin(void);

/* Lets a thread run on all CPUs again. Its id is the result of processor_pin(); 0 does nothing. */
HIDDEN void processor_unpin(uint64_t thread_id);

/* Returns the number of CPUs in a list of the kernel, such as `0-3,8`, or 0 if it is not such a list. */
HIDDEN int processor_count_list(const char *list);

HIDDEN void callbacks_before(void);
HIDDEN void callbacks_in_parent(void);
HIDDEN void callbacks_in_child(void);
