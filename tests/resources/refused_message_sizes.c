/* A System V message queue that holds more bytes than its limit, which was lowered since. Not carried. */
#include "resource.h"

#include <sys/msg.h>

#define TEXT_BYTES 4000

static int queue;
static struct {
    long type;
    char text[TEXT_BYTES];
} message = {.type = 5};

static void remove_queue(void) { msgctl(queue, IPC_RMID, NULL); }

static void set_up(void) {
    struct msqid_ds about;
    REQUIRE((queue = msgget(IPC_PRIVATE, 0600)) >= 0);
    at_end(remove_queue);
    REQUIRE(msgsnd(queue, &message, TEXT_BYTES, 0) == 0 && msgctl(queue, IPC_STAT, &about) == 0);
    about.msg_qbytes = 100;
    REQUIRE(msgctl(queue, IPC_SET, &about) == 0);
}

static void check(void) { REQUIRE(msgrcv(queue, &message, TEXT_BYTES, 0, IPC_NOWAIT) == TEXT_BYTES && message.type == 5); }
