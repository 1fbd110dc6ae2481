/* System V semaphores and message queues that the process uses: values, messages of several types in their order, keys,
 * numbers, mode and owner. */
#include "resource.h"

#include <sys/msg.h>
#include <sys/sem.h>

static int key, semaphores, queue, nameless;

struct message {
    long type;
    char text[32];
};

static void remove_all(void) {
    semctl(semaphores, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    semctl(nameless, 0, IPC_RMID);
}

static void put(long type, const char *text) {
    struct message message = {.type = type};
    strncpy(message.text, text, sizeof message.text - 1);
    REQUIRE(msgsnd(queue, &message, strlen(text), IPC_NOWAIT) == 0, "%s", text);
}

static void set_up(void) {
    key = 0x46470000 + (getpid() & 0xffff);
    semaphores = semget(key, 3, IPC_CREAT | IPC_EXCL | 0640), queue = msgget(key, IPC_CREAT | IPC_EXCL | 0600);
    nameless = semget(IPC_PRIVATE, 1, 0600);
    REQUIRE(semaphores >= 0 && queue >= 0 && nameless >= 0);
    at_end(remove_all);
    struct sembuf up = {.sem_num = 2, .sem_op = 7};
    struct msqid_ds about;
    REQUIRE(semctl(semaphores, 1, SETVAL, 5) == 0 && semop(semaphores, &up, 1) == 0);
    REQUIRE(semctl(nameless, 0, SETVAL, 1) == 0 && msgctl(queue, IPC_STAT, &about) == 0);
    about.msg_qbytes = 1000;
    REQUIRE(msgctl(queue, IPC_SET, &about) == 0);
    put(3, "first"), put(2, "second"), put(3, "");
}

static void require_message(long wanted, long type, const char *text) {
    struct message message = {0};
    ssize_t bytes = msgrcv(queue, &message, sizeof message.text, wanted, IPC_NOWAIT);
    REQUIRE(bytes == (ssize_t)strlen(text) && message.type == type && memcmp(message.text, text, (size_t)bytes) == 0, "%zd, %s", bytes,
            message.text);
}

static void check(void) {
    struct sembuf down = {.sem_num = 2, .sem_op = -7, .sem_flg = IPC_NOWAIT};
    struct semid_ds about;
    struct msqid_ds about_queue;
    REQUIRE(semget(key, 0, 0) == semaphores && msgget(key, 0) == queue);
    REQUIRE(semctl(semaphores, 0, GETVAL) == 0 && semctl(semaphores, 1, GETVAL) == 5 && semctl(semaphores, 2, GETVAL) == 7);
    REQUIRE(semctl(semaphores, 0, IPC_STAT, &about) == 0 && (about.sem_perm.mode & 0777) == 0640 && about.sem_nsems == 3);
    REQUIRE(semop(semaphores, &down, 1) == 0 && semop(semaphores, &down, 1) == -1 && errno == EAGAIN);
    REQUIRE(semctl(nameless, 0, GETVAL) == 1);
    REQUIRE(msgctl(queue, IPC_STAT, &about_queue) == 0 && about_queue.msg_qbytes == 1000 && about_queue.msg_qnum == 3);
    require_message(2, 2, "second");
    require_message(0, 3, "first");
    require_message(0, 3, "");
}
