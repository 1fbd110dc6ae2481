/* A parent that runs as root and has a file open that only root may read. Its child checks the owner of this file, and
 * of files that the child creates.
 * usage: file_ownership DIRECTORY: it contains a file `secret` that root owns
 */
#include "../forked.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int barrier_is_open; /* when it is set, the thread checks its ids too */

static void look_at_self(void) {
    uid_t users[3];
    gid_t groups[3];
    REQUIRE(getresuid(&users[0], &users[1], &users[2]) == 0 && getresgid(&groups[0], &groups[1], &groups[2]) == 0);
    for (int i = 0; i < 3; i++) REQUIRE(users[i] == 0 && groups[i] == 0, "user %d, group %d", users[i], groups[i]);
}

static void *look_too(void *thread) {
    REQUIRE(setpriority(PRIO_PROCESS, 0, 3) == 0);
    while (!__atomic_load_n(&barrier_is_open, __ATOMIC_ACQUIRE)) usleep(1000);
    look_at_self();
    errno = 0;
    REQUIRE(getpriority(PRIO_PROCESS, 0) == 3 && errno == 0);
    return thread;
}

static void require_own(const char *path) {
    struct stat status;
    REQUIRE(stat(path, &status) == 0, "%s", path);
    REQUIRE(status.st_uid == 0 && status.st_gid == 0, "%s is of %d:%d", path, status.st_uid, status.st_gid);
}

/* Checks that operations that need root on the node fail. */
static void try_ways_out(void) {
    char buffer[16];
    require_container();
    REQUIRE(mount("farfork", "/mnt", "tmpfs", 0, NULL) != 0);
    REQUIRE(syscall(SYS_userfaultfd, O_CLOEXEC) < 0);
    REQUIRE(readlink("/proc/1/root", buffer, sizeof buffer) < 0);
    REQUIRE(open("/proc/1/environ", O_RDONLY) < 0);
    REQUIRE(kill(1, SIGKILL) != 0 || kill(1, 0) == 0);
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: file_ownership DIRECTORY");
    remember_pid_namespace();
    REQUIRE(chdir(arguments[1]) == 0);
    int held = open("secret", O_RDONLY | O_CLOEXEC);
    REQUIRE(held >= 0);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, look_too, NULL) == 0);

    char payload[PAYLOAD_BYTES_MAX], text[16] = {0};
    ready(0);
    await_fork(payload);

    look_at_self();
    __atomic_store_n(&barrier_is_open, 1, __ATOMIC_RELEASE);
    REQUIRE(pthread_join(thread, NULL) == 0);
    REQUIRE(pread(held, text, sizeof text, 0) == 6 && strcmp(text, "secret") == 0, "%s", text);
    require_own("secret");
    require_own("/etc/passwd");
    require_own("/proc/self/status");
    int fd = open("secret", O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, "public", 6) == 6);
    fd = open("made", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    require_own("made");
    REQUIRE(mkdir("/run/farfork/made", 0700) == 0);
    require_own("/run/farfork");
    try_ways_out();
    FILE *map = fopen("/proc/self/uid_map", "r");
    unsigned inside, outside, all;
    REQUIRE(map && fscanf(map, "%u %u %u", &inside, &outside, &all) == 3);
    say("numbers %u %u %u", inside, outside, all);
    finish(payload, 0);
}
