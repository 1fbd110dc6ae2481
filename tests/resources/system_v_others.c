/* System V semaphores and a message queue of another process, and a segment that another process created. Such objects
 * belong to a namespace, not to a process. A child gets an error for them, and never finds other objects in their
 * place. */
#include "resource.h"

#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

static int semaphores, queue, segment;

static void remove_all(void) {
    semctl(semaphores, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    shmctl(segment, IPC_RMID, NULL);
}

static void set_up(void) {
    struct {
        long type;
    } message = {2};
    int status, key = 0x46480000 + (getpid() & 0xffff);
    semaphores = semget(key, 3, IPC_CREAT | IPC_EXCL | 0600), queue = msgget(key, IPC_CREAT | IPC_EXCL | 0600);
    REQUIRE(semaphores >= 0 && queue >= 0);
    pid_t other = fork();
    if (other == 0) {
        segment = shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600);
        _exit(semctl(semaphores, 1, SETVAL, 5) != 0 || msgsnd(queue, &message, 0, IPC_NOWAIT) != 0 || segment < 0);
    }
    REQUIRE(waitpid(other, &status, 0) == other && status == 0);
    REQUIRE((segment = shmget(key, 0, 0)) >= 0);
    at_end(remove_all);
}

static void check(void) {
    struct {
        long type;
    } message = {1};
    struct sembuf down = {.sem_num = 1, .sem_op = -5, .sem_flg = IPC_NOWAIT};
    struct shmid_ds about;
    int taken = semop(semaphores, &down, 1), error = errno, found = msgsnd(queue, &message, 0, IPC_NOWAIT);
    if (is_child) {
        REQUIRE(taken == -1 && error == EINVAL && found == -1 && errno == EINVAL, "returned %d and %d", taken, found);
        REQUIRE(shmctl(segment, IPC_STAT, &about) == -1 && errno == EINVAL);
    } else {
        REQUIRE(taken == 0 && found == 0, "returned %d and %d", taken, found);
        REQUIRE(shmctl(segment, IPC_STAT, &about) == 0);
    }
}
