/* The identity of the process: ids, groups, capabilities, limits, umask, working directory, names, and flags of
 * prctl(2). It drops all root capabilities except one.
 */
#include "../forked.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define USER 4321
#define GROUP 5432

extern char **environ;

struct identity {
    pid_t pid, group, session;
    uid_t uids[3];
    gid_t gids[3];
    gid_t groups[4];
    int groups_count;
    struct __user_cap_data_struct capabilities[2];
    struct rlimit limits[RLIM_NLIMITS];
    char directory[256], executable[256], name[16], arguments[256];
    int dumpable, no_new_privileges, securebits;
};

static void become_nobody_in_particular(void) {
    gid_t groups[] = {7001, 7002};
    REQUIRE(prctl(PR_SET_KEEPCAPS, 1) == 0 && setgroups(2, groups) == 0);
    REQUIRE(setresgid(GROUP, GROUP, GROUP) == 0 && setresuid(USER, USER, USER) == 0);
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = 0, .permitted = 1u << CAP_KILL, .inheritable = 0}};
    REQUIRE(syscall(SYS_capset, &header, data) == 0);
    REQUIRE(prctl(PR_SET_DUMPABLE, 1) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
}

static void read_text(const char *path, char *text, size_t bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0, "%s", path);
    REQUIRE(read(fd, text, bytes - 1) >= 0);
    close(fd);
}

static void take(struct identity *now) {
    memset(now, 0, sizeof *now);
    now->pid = getpid();
    now->group = getpgrp();
    now->session = getsid(0);
    getresuid(&now->uids[0], &now->uids[1], &now->uids[2]);
    getresgid(&now->gids[0], &now->gids[1], &now->gids[2]);
    now->groups_count = getgroups(4, now->groups);
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    REQUIRE(syscall(SYS_capget, &header, now->capabilities) == 0);
    for (int i = 0; i < RLIM_NLIMITS; i++) getrlimit((__rlimit_resource_t)i, &now->limits[i]);
    REQUIRE(getcwd(now->directory, sizeof now->directory) != NULL);
    REQUIRE(readlink("/proc/self/exe", now->executable, sizeof now->executable - 1) > 0);
    prctl(PR_GET_NAME, now->name);
    read_text("/proc/self/cmdline", now->arguments, sizeof now->arguments);
    now->dumpable = prctl(PR_GET_DUMPABLE);
    now->no_new_privileges = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    now->securebits = prctl(PR_GET_SECUREBITS);
}

static void compare(const struct identity *was, const struct identity *is) {
    REQUIRE(was->pid == is->pid, "pid %d became %d", was->pid, is->pid);
    REQUIRE(memcmp(was->uids, is->uids, sizeof was->uids) == 0, "uid %d became %d", was->uids[1], is->uids[1]);
    REQUIRE(memcmp(was->gids, is->gids, sizeof was->gids) == 0, "gid %d became %d", was->gids[1], is->gids[1]);
    REQUIRE(was->groups_count == is->groups_count && memcmp(was->groups, is->groups, sizeof was->groups) == 0);
    REQUIRE(memcmp(was->capabilities, is->capabilities, sizeof was->capabilities) == 0, "effective %x became %x",
            was->capabilities[0].effective, is->capabilities[0].effective);
    for (int i = 0; i < RLIM_NLIMITS; i++)
        REQUIRE(memcmp(&was->limits[i], &is->limits[i], sizeof was->limits[i]) == 0, "limit %d: %lu became %lu", i,
                was->limits[i].rlim_cur, is->limits[i].rlim_cur);
    REQUIRE(strcmp(was->directory, is->directory) == 0, "%s became %s", was->directory, is->directory);
    REQUIRE(strcmp(was->executable, is->executable) == 0, "%s became %s", was->executable, is->executable);
    REQUIRE(strcmp(was->name, is->name) == 0, "%s became %s", was->name, is->name);
    REQUIRE(memcmp(was->arguments, is->arguments, sizeof was->arguments) == 0, "arguments");
    REQUIRE(was->dumpable == is->dumpable, "dumpable %d became %d", was->dumpable, is->dumpable);
    REQUIRE(was->no_new_privileges == is->no_new_privileges, "no_new_privs");
    REQUIRE(was->securebits == is->securebits, "securebits %x became %x", was->securebits, is->securebits);
}

int main(void) {
    struct rlimit files = {.rlim_cur = 333, .rlim_max = 444};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0 && chdir("/usr/lib") == 0);
    umask(0137);
    prctl(PR_SET_NAME, "somebody");
    setenv("FARFORK_TEST", "kept", 1);
    become_nobody_in_particular();
    struct identity parent, child;
    take(&parent);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    take(&child);
    compare(&parent, &child);
    REQUIRE(umask(0) == 0137, "umask");
    const char *kept = getenv("FARFORK_TEST");
    REQUIRE(kept && strcmp(kept, "kept") == 0);
    REQUIRE(setuid(0) < 0 && open("/etc/shadow", O_RDONLY) < 0, "the process can become root again");
    finish(payload, 0);
}
