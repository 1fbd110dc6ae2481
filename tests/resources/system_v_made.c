/* System V objects that the process has created, but does not use visibly: unattached segments, one with contents;
 * semaphores and a message queue without operations. */
#include "resource.h"

#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

static int key, filled, empty, semaphores, queue;

static void remove_all(void) {
    shmctl(filled, IPC_RMID, NULL), shmctl(empty, IPC_RMID, NULL);
    semctl(semaphores, 0, IPC_RMID), msgctl(queue, IPC_RMID, NULL);
}

static void set_up(void) {
    key = 0x46490000 + (getpid() & 0xffff);
    filled = shmget(key, 5 * PAGE_BYTES + 100, IPC_CREAT | IPC_EXCL | 0640), empty = shmget(IPC_PRIVATE, 100, 0600);
    semaphores = semget(key, 4, IPC_CREAT | IPC_EXCL | 0600), queue = msgget(key, IPC_CREAT | IPC_EXCL | 0620);
    REQUIRE(filled >= 0 && empty >= 0 && semaphores >= 0 && queue >= 0);
    at_end(remove_all);
    char *at = shmat(filled, NULL, 0);
    REQUIRE(at != (void *)-1);
    strcpy(at + 3 * PAGE_BYTES, "left"), strcpy(at + 5 * PAGE_BYTES + 90, "at its end");
    REQUIRE(shmdt(at) == 0);
}

static void check(void) {
    struct shmid_ds segment;
    struct semid_ds set;
    struct msqid_ds about;
    struct {
        long type;
        char text[4];
    } message = {.type = 9, .text = "new"};
    struct sembuf up = {.sem_num = 3, .sem_op = 1};
    REQUIRE(shmget(key, 0, 0) == filled && semget(key, 0, 0) == semaphores && msgget(key, 0) == queue);
    REQUIRE(shmctl(filled, IPC_STAT, &segment) == 0 && segment.shm_segsz == 5 * PAGE_BYTES + 100 && segment.shm_nattch == 0);
    REQUIRE((segment.shm_perm.mode & 0777) == 0640);
    const char *at = shmat(filled, NULL, SHM_RDONLY), *none = shmat(empty, NULL, 0);
    REQUIRE(at != (void *)-1 && none != (void *)-1);
    REQUIRE(at[0] == 0 && strcmp(at + 3 * PAGE_BYTES, "left") == 0 && memcmp(at + 5 * PAGE_BYTES + 90, "at its end", 10) == 0);
    for (int i = 0; i < 100; i++) REQUIRE(none[i] == 0);
    REQUIRE(semctl(semaphores, 0, IPC_STAT, &set) == 0 && set.sem_nsems == 4 && semctl(semaphores, 3, GETVAL) == 0);
    REQUIRE(semop(semaphores, &up, 1) == 0 && semctl(semaphores, 3, GETVAL) == 1);
    REQUIRE(msgctl(queue, IPC_STAT, &about) == 0 && about.msg_qnum == 0 && (about.msg_perm.mode & 0777) == 0620);
    REQUIRE(msgsnd(queue, &message, sizeof message.text, IPC_NOWAIT) == 0);
}
