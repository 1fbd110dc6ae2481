/* Memfds with their modes, owners and times: an executable one, one that only its mode makes not executable, one with
 * MFD_NOEXEC_SEAL, and one with a changed mode. */
#include "resource.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#define MFD_EXEC 16U
#endif
#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif

static const struct timespec times[2] = {{1000000007, 123456789}, {900000001, 987654321}};
static int program, plain, sealed, changed;

static void copy_program(int to) {
    char piece[65536];
    int from = open("/bin/true", O_RDONLY | O_CLOEXEC);
    ssize_t length;
    REQUIRE(from >= 0);
    while ((length = read(from, piece, sizeof piece)) > 0) REQUIRE(write(to, piece, (size_t)length) == length);
    REQUIRE(length == 0 && close(from) == 0);
}

static void set_up(void) {
    program = memfd_create("program", MFD_EXEC), plain = memfd_create("plain", MFD_EXEC);
    sealed = memfd_create("sealed", MFD_NOEXEC_SEAL | MFD_CLOEXEC), changed = memfd_create("changed", MFD_EXEC | MFD_ALLOW_SEALING);
    REQUIRE(program >= 0 && plain >= 0 && sealed >= 0 && changed >= 0);
    copy_program(program);
    REQUIRE(write(sealed, "kept", 4) == 4 && write(changed, "kept", 4) == 4 && lseek(program, 7, SEEK_SET) == 7);
    REQUIRE(fchmod(changed, 0640) == 0 && fchown(changed, 12, 34) == 0 && futimens(changed, times) == 0);
    REQUIRE(mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, plain, 0) != MAP_FAILED && futimens(plain, times) == 0);
}

static void require(int memfd, mode_t mode, int seals) {
    struct stat found;
    REQUIRE(fstat(memfd, &found) == 0 && (found.st_mode & 07777) == mode && fcntl(memfd, F_GET_SEALS) == seals, "fd %d: mode %o, seals %x", memfd, found.st_mode, fcntl(memfd, F_GET_SEALS));
}

static void require_times(int memfd) {
    struct stat found;
    REQUIRE(fstat(memfd, &found) == 0);
    REQUIRE(found.st_atim.tv_sec == times[0].tv_sec && found.st_atim.tv_nsec == times[0].tv_nsec, "fd %d: accessed %ld", memfd, found.st_atime);
    REQUIRE(found.st_mtim.tv_sec == times[1].tv_sec && found.st_mtim.tv_nsec == times[1].tv_nsec, "fd %d: modified %ld", memfd, found.st_mtime);
}

static int executed(int memfd) {
    char *arguments[] = {"true", NULL}, *environment[] = {NULL};
    int status;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        syscall(SYS_execveat, memfd, "", arguments, environment, AT_EMPTY_PATH);
        _exit(errno);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check(void) {
    struct stat found;
    require_times(plain), require_times(changed);
    require(program, 0777, F_SEAL_SEAL), require(plain, 0777, F_SEAL_SEAL), require(changed, 0640, 0);
    require(sealed, 0666, F_SEAL_EXEC);
    REQUIRE(fstat(changed, &found) == 0 && found.st_uid == 12 && found.st_gid == 34);
    REQUIRE(executed(program) == 0, "the executable memfd cannot be executed: %d", executed(program));
    REQUIRE(executed(sealed) == EACCES && fchmod(sealed, 0700) == -1 && errno == EPERM, "the sealed memfd can be executed");
    REQUIRE(lseek(program, 0, SEEK_CUR) == 7 && write(plain, "more", 4) == 4 && fcntl(changed, F_ADD_SEALS, F_SEAL_GROW) == 0);
    REQUIRE(fchmod(changed, 0600) == 0 && write(changed, "x", 1) == -1 && errno == EPERM);
}
