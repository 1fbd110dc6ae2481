/* Files whose opened name was removed or replaced, and that have another name: a named semaphore (sem_open(3) links and removes
 * a temporary name), open files, a file that is mapped shared and private, and a named pipe. A file that was made
 * without a name (O_TMPFILE) and has one now. Also a deleted null device. */
#include "resource.h"

#include <semaphore.h>
#include <sys/sysmacros.h>

static sem_t *semaphore;
static char name[64];
static int file, replaced, named_later, pipe_end, device;
static char *mapped, *mapped_private;

static void remove_all(void) { unlink(path_of("second")), sem_unlink(name); }

/* Opens a new file, gives it another name, and replaces the opened name by another file. */
static int open_and_replace(const char *opened, const char *kept) {
    int made = open(path_of(opened), O_RDWR | O_CREAT | O_TRUNC, 0600);
    int other = open(path_of("other"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    REQUIRE(made >= 0 && other >= 0 && write(made, "kept", 4) == 4 && write(other, "another", 7) == 7 && close(other) == 0);
    REQUIRE(link(path_of(opened), path_of(kept)) == 0 && rename(path_of("other"), path_of(opened)) == 0);
    return made;
}

static void set_up(void) {
    snprintf(name, sizeof name, "/farfork-lost-names-%d", getpid());
    semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
    file = open(path_of("first"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    REQUIRE(semaphore != SEM_FAILED && file >= 0 && write(file, "first-", 6) == 6 && ftruncate(file, PAGE_BYTES) == 0);
    mapped = (char *)mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    mapped_private = (char *)mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    REQUIRE(mapped_private != MAP_FAILED && memcmp(mapped_private, "first-", 6) == 0);
    replaced = open_and_replace("replaced", "kept");
    char link_of_file[64];
    named_later = open(path_of("."), O_TMPFILE | O_RDWR, 0600);
    snprintf(link_of_file, sizeof link_of_file, "/proc/self/fd/%d", named_later);
    REQUIRE(named_later >= 0 && write(named_later, "late", 4) == 4);
    REQUIRE(linkat(AT_FDCWD, link_of_file, AT_FDCWD, path_of("late"), AT_SYMLINK_FOLLOW) == 0);
    REQUIRE(mkfifo(path_of("pipe"), 0600) == 0 && (pipe_end = open(path_of("pipe"), O_RDWR)) >= 0);
    REQUIRE(write(pipe_end, "in", 2) == 2 && link(path_of("pipe"), path_of("pipe-2")) == 0 && unlink(path_of("pipe")) == 0);
    REQUIRE(mapped != MAP_FAILED && link(path_of("first"), path_of("second")) == 0 && unlink(path_of("first")) == 0);
    REQUIRE(mknod(path_of("null"), S_IFCHR | 0666, makedev(1, 3)) == 0);
    device = open(path_of("null"), O_RDWR);
    REQUIRE(device >= 0 && unlink(path_of("null")) == 0);
    at_end(remove_all);
}

static void check(void) {
    sem_t *other = sem_open(name, 0);
    REQUIRE(other != SEM_FAILED && sem_post(other) == 0);
    REQUIRE(sem_trywait(semaphore) == 0, "the process has a semaphore of its own");
    struct stat status;
    char text[16] = "";
    int second = open(path_of("second"), O_RDWR);
    REQUIRE(second >= 0 && fstat(file, &status) == 0 && status.st_nlink == 1, "%lu links", (unsigned long)status.st_nlink);
    REQUIRE(lseek(file, 0, SEEK_CUR) == 6 && write(file, "more", 4) == 4);
    REQUIRE(pread(second, text, 10, 0) == 10 && memcmp(text, "first-more", 10) == 0, "%s", text);
    REQUIRE(pwrite(second, "X", 1, 0) == 1 && mapped[0] == 'X', "the mapping is another file");
    REQUIRE(mapped_private[0] == 'X', "the private mapping is of another file");
    REQUIRE(pwrite(second, "f", 1, 0) == 1 && lseek(file, 6, SEEK_SET) == 6);
    int kept = open(path_of("kept"), O_RDWR), other_end = open(path_of("pipe-2"), O_RDWR);
    REQUIRE(kept >= 0 && pwrite(kept, "K", 1, 0) == 1 && pread(replaced, text, 5, 0) == 4 && memcmp(text, "Kept", 4) == 0);
    REQUIRE(pwrite(kept, "k", 1, 0) == 1 && close(kept) == 0);
    int late = open(path_of("late"), O_RDWR);
    REQUIRE(late >= 0 && pwrite(late, "L", 1, 0) == 1 && pread(named_later, text, 5, 0) == 4 && memcmp(text, "Late", 4) == 0);
    REQUIRE(pwrite(late, "l", 1, 0) == 1 && close(late) == 0);
    REQUIRE(write(pipe_end, "2", 1) == 1 && read(other_end, text, 3) == 3 && memcmp(text, "in2", 3) == 0, "%s", text);
    REQUIRE(fstat(device, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3));
    REQUIRE(write(device, "x", 1) == 1 && read(device, text, 1) == 0);
}
