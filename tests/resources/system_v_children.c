/* System V shared memory of a process tree, as in PostgreSQL: a segment that all have attached, and a removed segment
 * that a child created and passed only to its own child. */
#include "resource.h"

#include <sys/prctl.h>
#include <sys/shm.h>

enum { ROOT, MAKER, HEIR, COUNT };

struct board {
    uint32_t is_ready[COUNT], asked[COUNT], answered[COUNT];
    uint32_t seen[COUNT];
    int own_id, attached, was_removed;
};

static volatile struct board *board;
static int id;
static pid_t maker;

static __attribute__((noreturn)) void live(int which, volatile uint32_t *own, pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    pid_t self = getpid();
    if (which == MAKER) {
        board->own_id = shmget(IPC_PRIVATE, 2 * PAGE_BYTES, IPC_CREAT | 0600);
        own = (volatile uint32_t *)shmat(board->own_id, NULL, 0);
        if (own == (void *)-1 || shmctl(board->own_id, IPC_RMID, NULL) != 0) _exit(2);
        own[1500] = 77;
        pid_t heir = fork();
        if (heir < 0) _exit(3);
        if (heir == 0) live(HEIR, own, self);
    }
    board->is_ready[which] = 1;
    while (!board->asked[which]) usleep(1000);
    struct shmid_ds status;
    if (shmctl(board->own_id, IPC_STAT, &status) != 0) _exit(4);
    board->attached = (int)status.shm_nattch;
    board->was_removed = (status.shm_perm.mode & SHM_DEST) != 0;
    board->seen[which] = own[1500];
    own[1500]++;
    board->answered[which] = 1;
    for (;;) pause();
}

static void set_up(void) {
    pid_t self = getpid();
    id = shmget(0x464a0000 + (self & 0xffff), PAGE_BYTES, IPC_CREAT | IPC_EXCL | 0640);
    REQUIRE(id >= 0);
    board = (volatile struct board *)shmat(id, NULL, 0);
    REQUIRE(board != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    REQUIRE((maker = fork()) >= 0);
    if (maker == 0) live(MAKER, NULL, self);
    REQUIRE(COMES_TRUE(board->is_ready[MAKER] && board->is_ready[HEIR]));
}

static void ask(int which, uint32_t expected) {
    board->asked[which] = 1;
    REQUIRE(COMES_TRUE(board->answered[which]), "process %d", which);
    REQUIRE(board->seen[which] == expected && board->attached == 2 && board->was_removed, "%d: %u, %d attached", which,
            board->seen[which], board->attached);
}

static void check(void) {
    struct shmid_ds status;
    REQUIRE(shmctl(id, IPC_STAT, &status) == 0 && status.shm_nattch == COUNT && (status.shm_perm.mode & SHM_DEST));
    ask(HEIR, 77);
    ask(MAKER, 78);
    REQUIRE(kill(maker, SIGKILL) == 0);
}
