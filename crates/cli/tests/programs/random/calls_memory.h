/* State of memory, of System V objects and of keys by system calls that process.c does not make. */
#pragma once

#include "kinds.h"

#include <linux/keyctl.h>
#include <linux/mempolicy.h>
#include <sys/msg.h>
#include <sys/sem.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#define AREA_PAGES 16

static char *new_area(void) {
    char *at = map_anonymous(AREA_PAGES * PAGE_BYTES);
    write_some(at, AREA_PAGES);
    return at;
}

static void move_memory(void) {
    char *at = new_area(), *other = new_area();
    REQUIRE(mremap(at, AREA_PAGES * PAGE_BYTES, (1 + below(60)) * PAGE_BYTES, MREMAP_MAYMOVE) != MAP_FAILED);
    REQUIRE(mremap(other, 4 * PAGE_BYTES, 4 * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) != MAP_FAILED);
    REQUIRE(munmap(other + 8 * PAGE_BYTES, PAGE_BYTES) == 0);
}

/* Maps another page of a file in place of its first page. */
static void remap_pages(void) {
    int memory = memfd_create("order", 0);
    REQUIRE(memory >= 0 && ftruncate(memory, AREA_PAGES * PAGE_BYTES) == 0);
    char *at = mmap(NULL, AREA_PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    REQUIRE(at != MAP_FAILED && remap_file_pages(at, PAGE_BYTES, 0, 1 + below(AREA_PAGES - 1), 0) == 0);
}

/* pkey_alloc(2) fails on processors without protection keys. */
static void protect_by_key(void) {
    int key = pkey_alloc(0, 0), spare = key < 0 ? -1 : pkey_alloc(0, 0);
    REQUIRE(syscall(SYS_pkey_mprotect, new_area(), 2 * PAGE_BYTES, PROT_READ, key) == 0);
    if (spare >= 0) REQUIRE(pkey_free(spare) == 0);
}

static void lock_memory(void) {
    char *at = new_area();
    REQUIRE(mlock(at, 8 * PAGE_BYTES) == 0 && munlock(at, 2 * PAGE_BYTES) == 0 && mlock2(at + 9 * PAGE_BYTES, PAGE_BYTES, MLOCK_ONFAULT) == 0);
}

static void lock_all_memory(void) {
    REQUIRE(mlockall(one_in(2) ? MCL_CURRENT : MCL_CURRENT | MCL_ONFAULT) == 0);
    if (one_in(3)) REQUIRE(munlockall() == 0);
}

static void advise_from_outside(void) {
    struct iovec part = {new_area(), 4 * PAGE_BYTES};
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    REQUIRE(syscall(SYS_process_madvise, self, &part, 1, MADV_COLD, 0) >= 0 && close(self) == 0);
    REQUIRE(madvise(new_area(), 3 * PAGE_BYTES, ONE_OF(((int[]){MADV_RANDOM, MADV_DONTDUMP, MADV_WIPEONFORK, MADV_UNMERGEABLE}))) == 0);
}

static void write_from_outside(void) {
    char bytes[64] = "written by process_vm_writev";
    struct iovec here = {bytes, sizeof bytes}, there = {new_area(), sizeof bytes};
    REQUIRE(process_vm_writev(getpid(), &here, 1, &there, 1, 0) == sizeof bytes);
}

static void set_memory_policy(void) {
    unsigned long node = 1;
    char *at = new_area();
    REQUIRE(syscall(SYS_mbind, at, 8 * PAGE_BYTES, MPOL_BIND, &node, 8, 0) == 0);
    REQUIRE(syscall(SYS_set_mempolicy_home_node, at, 8 * PAGE_BYTES, 0, 0) == 0);
    REQUIRE(syscall(SYS_set_mempolicy, MPOL_PREFERRED, &node, 8) == 0);
}

static void move_pages_of_nodes(void) {
    unsigned long node = 1;
    char *at = new_area();
    int to = 0, status;
    REQUIRE(syscall(SYS_migrate_pages, 0, 8, &node, &node) >= 0 && syscall(SYS_move_pages, 0, 1, &at, &to, &status, 0) >= 0);
}

static void seal_memory(void) { REQUIRE(syscall(SYS_mseal, new_area(), PAGE_BYTES, 0) == 0 || errno == ENOSYS); }

static void hide_memory(void) {
    int secret = (int)syscall(SYS_memfd_secret, 0);
    REQUIRE(secret >= 0 && ftruncate(secret, PAGE_BYTES) == 0);
    char *at = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
    REQUIRE(at != MAP_FAILED);
    at[0] = 1;
}

static void detach_segment(void) {
    int id = shmget(IPC_PRIVATE, PAGE_BYTES, IPC_CREAT | 0600);
    char *at = shmat(id, NULL, 0), *again = shmat(id, NULL, SHM_RDONLY);
    REQUIRE(at != (char *)-1 && again != (char *)-1 && shmctl(id, IPC_RMID, NULL) == 0 && (at[5] = 3, shmdt(again)) == 0);
}

static void make_semaphores_and_queue(void) {
    struct {
        long type;
        char text[32];
    } message = {.type = 1 + (long)below(9)};
    struct sembuf up = {0, (short)(1 + below(9)), 0};
    struct timespec moment = {.tv_sec = 1};
    int semaphores = semget(IPC_PRIVATE, 3, IPC_CREAT | 0600), queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    REQUIRE(syscall(SYS_semop, semaphores, &up, 1) == 0 && semtimedop(semaphores, &up, 1, &moment) == 0 && semctl(semaphores, 2, SETVAL, (int)below(50)) == 0);
    REQUIRE(msgsnd(queue, &message, 20, 0) == 0 && msgsnd(queue, &message, 10, 0) == 0 && msgrcv(queue, &message, 32, 0, 0) >= 0);
    REQUIRE(msgctl(queue, IPC_STAT, &(struct msqid_ds){0}) == 0);
}

static void make_keys(void) {
    long key = syscall(SYS_add_key, "user", "farfork", "x", 1, KEY_SPEC_PROCESS_KEYRING);
    REQUIRE(key > 0 && syscall(SYS_keyctl, KEYCTL_SET_TIMEOUT, key, 9000) == 0);
    REQUIRE(syscall(SYS_request_key, "user", "farfork", NULL, KEY_SPEC_THREAD_KEYRING) == key);
}

static void make_userfaultfd(void) { REQUIRE(syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */) >= 0); }
