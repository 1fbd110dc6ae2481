/* System V semaphores: objects of a namespace, not of a process, and nobody can tell who uses them. A child is told that they
 * are not there, and never sees others in their place. */
#include "resource.h"

#include <sys/msg.h>
#include <sys/sem.h>

static int semaphores, queue;

static void remove_both(void) {
    semctl(semaphores, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
}

static void set_up(void) {
    int key = 0x46470000 + (getpid() & 0xffff);
    semaphores = semget(key, 3, IPC_CREAT | IPC_EXCL | 0600), queue = msgget(key, IPC_CREAT | IPC_EXCL | 0600);
    REQUIRE(semaphores >= 0 && queue >= 0 && semctl(semaphores, 1, SETVAL, 5) == 0);
    at_end(remove_both);
}

static void check(void) {
    struct {
        long type;
    } message = {1};
    struct sembuf down = {.sem_num = 1, .sem_op = -5, .sem_flg = IPC_NOWAIT};
    int taken = semop(semaphores, &down, 1), error = errno, found = msgsnd(queue, &message, 0, IPC_NOWAIT);
    if (is_child) {
        REQUIRE(taken == -1 && error == EINVAL && found == -1 && errno == EINVAL, "semop gave %d, msgsnd %d", taken, found);
    } else {
        REQUIRE(taken == 0 && found == 0, "semop gave %d, msgsnd %d", taken, found);
    }
}
