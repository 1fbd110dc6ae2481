/* System V semaphores: objects of a namespace, not of a process, and nobody can tell who uses them. A child is told that they
 * are not there, and never sees others in their place. */
#include "resource.h"

#include <sys/msg.h>
#include <sys/sem.h>

static int semaphores, queue;

static void set_up(void) {
    int key = 0x46470000 + (getpid() & 0xffff);
    semaphores = semget(key, 3, IPC_CREAT | IPC_EXCL | 0600), queue = msgget(key, IPC_CREAT | IPC_EXCL | 0600);
    REQUIRE(semaphores >= 0 && queue >= 0 && semctl(semaphores, 1, SETVAL, 5) == 0);
}

static void check(void) {
    struct sembuf down = {.sem_num = 1, .sem_op = -5, .sem_flg = IPC_NOWAIT};
    int taken = semop(semaphores, &down, 1), error = errno, found = msgctl(queue, IPC_RMID, NULL);
    if (is_child) {
        REQUIRE(taken == -1 && error == EINVAL && found == -1 && errno == EINVAL, "semop gave %d, msgctl %d", taken, found);
    } else {
        REQUIRE(semctl(semaphores, 0, IPC_RMID) == 0 && taken == 0 && found == 0, "semop gave %d, msgctl %d", taken, found);
    }
}
