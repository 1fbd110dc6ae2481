/* A parent with a thread and children. Its child tries everything that could lead out of its container, and prints
 * `open WAY` for each way that is not closed. A successful attempt does no harm. Outside of a container, the program
 * tries nothing.
 * usage: escaping SOCKET: a path where a daemon listens
 */
#include "../forked.h"

#include <dirent.h>
#include <ftw.h>
#include <linux/keyctl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#define X32_BIT 0x40000000
#define VSOCK 40
#define OWN_CHILDREN 16 /* with few CPUs, most of them run later than the first process */
#define ALG 38

static void report(const char *way, int is_open) {
    if (is_open) say("open %s", way);
}

static void try_to_write(const char *path) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    report(path, fd >= 0);
    if (fd >= 0) close(fd);
}

static void try_namespaces(void) {
    pid_t other = fork(); /* success in this process would change its privileges for the other attempts */
    if (other == 0) _exit(unshare(CLONE_NEWUSER) == 0);
    int status;
    REQUIRE(waitpid(other, &status, 0) == other && WIFEXITED(status));
    report("unshare user", WEXITSTATUS(status));
    report("unshare uts", unshare(CLONE_NEWUTS) == 0);
    int fd = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    report("setns", setns(fd, 0) == 0);
    close(fd);
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    report("clone user", pid > 0);
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
    struct { uint64_t words[8]; } arguments = {{CLONE_NEWUSER, 0, 0, 0, SIGCHLD, 0, 0, 0}};
    pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid == 0) _exit(0);
    report("clone3 user", pid > 0);
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
}

static void try_mounts(void) {
    report("mount", mount("farfork", "/mnt", "tmpfs", 0, NULL) == 0);
    report("remount /proc", mount(NULL, "/proc", NULL, MS_REMOUNT | MS_BIND, NULL) == 0);
    report("remount by another table's number",
           syscall(X32_BIT | SYS_mount, NULL, "/proc", NULL, MS_REMOUNT | MS_BIND, NULL) == 0);
    report("chroot", chroot("/") == 0);
}

static void try_processes(pid_t own) {
    /* `byte` has the same address in the child process. */
    char byte;
    struct iovec here = {&byte, 1}, there = {&byte, 1};
    report("read another process", process_vm_readv(own, &here, 1, &there, 1, 0) == 1);
    int attached = ptrace(PTRACE_SEIZE, own, NULL, NULL) == 0;
    report("ptrace", attached);
    if (attached) ptrace(PTRACE_DETACH, own, NULL, NULL);
    static const char *const of_first[] = {"/proc/1/mem",    "/proc/1/environ", "/proc/1/fd/3",   "/proc/1/root",
                                           "/proc/1/ns/net", "/proc/1/ns/mnt",  "/proc/1/ns/pid", NULL};
    for (const char *const *path = of_first; *path; path++) {
        int fd = open(*path, O_RDONLY | O_CLOEXEC);
        report(*path, fd >= 0);
        if (fd >= 0) close(fd);
    }
}

static int is_own(const pid_t *own, pid_t pid) {
    for (int i = 0; i < OWN_CHILDREN; i++)
        if (own[i] == pid) return 1;
    return 0;
}

/* Reports processes outside of the container: /proc must show only process 1, this process and its children. */
static void count_processes(const pid_t *own) {
    DIR *processes = opendir("/proc");
    REQUIRE(processes);
    for (struct dirent *entry; (entry = readdir(processes));) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 1 && pid != getpid() && !is_own(own, (pid_t)pid)) say("open process %ld", pid);
    }
    closedir(processes);
}

static void try_calls(void) {
    char buffer[256] = {0};
    int first = (int)syscall(SYS_pidfd_open, 1, 0);
    report("a descriptor of the first process", first >= 0 && syscall(SYS_pidfd_getfd, first, 3, 0) >= 0);
    report("namespaces of the first process", first >= 0 && setns(first, CLONE_NEWNET) == 0);
    report("kill the first process", kill(1, SIGKILL) == 0 && kill(1, 0) != 0);
    report("a priority above others", setpriority(PRIO_PROCESS, 0, -1) == 0);
    report("bpf", syscall(SYS_bpf, 0, buffer, sizeof buffer) >= 0);
    report("perf_event_open", syscall(SYS_perf_event_open, buffer, 0, -1, -1, 0) >= 0);
    report("keyctl", syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 1) >= 0);
    report("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC) >= 0);
    report("io_uring_setup", syscall(SYS_io_uring_setup, 1, buffer) >= 0);
    report("a socket to the machine's host", socket(VSOCK, SOCK_STREAM, 0) >= 0);
    report("a socket to the kernel's ciphers", socket(ALG, SOCK_SEQPACKET, 0) >= 0);
    report("sethostname", sethostname("of-a-child", 10) == 0);
    report("chown", chown(PAYLOAD_PATH, 1, 1) == 0);
    report("another user", seteuid(1) == 0 && seteuid(0) == 0);
}

static int look_at_group(const char *path, const struct stat *status, int kind, struct FTW *ftw) {
    (void)status, (void)ftw;
    if (kind == FTW_F && strstr(path, "cgroup.procs")) try_to_write(path);
    return 0;
}

static int look_at_device(const char *path, const struct stat *status, int kind, struct FTW *ftw) {
    static const char *const harmless[] = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"};
    (void)kind;
    if (!S_ISBLK(status->st_mode) && !S_ISCHR(status->st_mode)) return 0;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(path + ftw->base, harmless[i]) == 0) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    report(path, fd >= 0);
    if (fd >= 0) close(fd);
    return 0;
}

static void try_files(void) {
    nftw("/sys/fs/cgroup", look_at_group, 16, FTW_PHYS);
    nftw("/dev", look_at_device, 16, FTW_PHYS);
    try_to_write("/proc/sys/kernel/printk");
    try_to_write("/proc/sys/kernel/core_pattern");
    try_to_write("/proc/sysrq-trigger");
    try_to_write("/sys/kernel/mm/transparent_hugepage/enabled");
    /* Open the disk of the root file system through a new device node. */
    int made = mknod("/tmp/escaping-disk", S_IFBLK | 0600, makedev(254, 0)) == 0;
    report("mknod", made);
    if (made) unlink("/tmp/escaping-disk");
    /* Harmless devices must still work. */
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, "x", 1) == 1);
    close(fd);
}

static void try_sockets(const char *daemon) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", daemon);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    report("the daemon's socket", connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    close(fd);
    FILE *table = fopen("/proc/net/unix", "r");
    char line[512];
    while (table && fgets(line, sizeof line, table))
        if (strchr(line, '@')) say("open abstract socket %.200s", line);
    if (table) fclose(table);
}

/* Reports privileges: no thread of any process may have capabilities, or be able to gain any. */
static void look_at_task(const char *status) {
    static const char *const wanted[] = {"NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapEff:\t0000000000000000\n",
                                         "CapPrm:\t0000000000000000\n", "CapBnd:\t0000000000000000\n"};
    char text[4096] = {0};
    int fd = open(status, O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(text, wanted[i])) say("open rights of %s: not %s", status, wanted[i]);
}

static void look_at_tasks(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    REQUIRE(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.') continue;
        char status[sizeof path + sizeof entry->d_name + 8];
        snprintf(status, sizeof status, "%s/%s/status", path, entry->d_name);
        look_at_task(status);
    }
    closedir(tasks);
}

static void *stand_by(void *word) {
    for (;;) pause();
    return word;
}

static void *answer(void *word) { return word; }

int main(int count, char **arguments) {
    REQUIRE(count == 2);
    remember_pid_namespace();
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, stand_by, NULL) == 0);
    pid_t parent = getpid(), own[OWN_CHILDREN];
    for (int i = 0; i < OWN_CHILDREN; i++) {
        own[i] = fork();
        REQUIRE(own[i] >= 0);
        if (own[i] == 0) {
            end_with_parent(parent);
            stand_by(NULL);
        }
    }

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);
    require_container();

    /* Check right after the forks: no process may run without its filter, even briefly. */
    for (int i = 0; i < OWN_CHILDREN; i++) look_at_tasks(own[i]);
    look_at_tasks(getpid());
    count_processes(own);
    try_processes(own[0]);
    try_calls();
    try_files();
    try_sockets(arguments[1]);
    try_mounts();
    try_namespaces();
    /* Threads and processes can still be created. */
    REQUIRE(pthread_create(&thread, NULL, answer, payload) == 0);
    void *given;
    REQUIRE(pthread_join(thread, &given) == 0 && given == payload);
    pid_t last = fork();
    REQUIRE(last >= 0);
    if (last == 0) _exit(0);
    REQUIRE(waitpid(last, NULL, 0) == last);
    for (int i = 0; i < OWN_CHILDREN; i++) REQUIRE(kill(own[i], SIGKILL) == 0);
    finish(payload, 0);
}
