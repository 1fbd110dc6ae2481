// A floor of a fan-out: the kernel's work for children that are isolated as in a container, and nothing else.
//
// Two processes (`Maker`) create the children, each one child after another. Each process has one mount namespace for
// all of its children. `Maker::contain` has the steps of one child.
#include "local_fanout.h"

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <linux/sched.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace {

enum Network : uint64_t { PRIVATE, SHARED, HOST };

constexpr unsigned MAKERS = 2;
constexpr uint64_t COUNT_MAX = 16384;
constexpr int REMOVE_TRIES = 10000;

// One fan-out, in memory that both makers share.
struct Round {
    std::atomic<uint64_t> next;
    std::atomic<int> error;
    uint64_t first, count;
    ChildAnswer answers[COUNT_MAX];
};

// A group may still be busy for a moment after its processes have ended.
int remove_group(const char *path) {
    for (int tries = 0; rmdir(path); tries++) {
        if (errno != EBUSY || tries == REMOVE_TRIES) return errno;
        usleep(100);
    }
    return 0;
}

// Removes the groups of all makers, and their parent group. Each process calls this function at its end, because the
// others may have been killed before they could.
void remove_all(const char *group) {
    for (unsigned i = 0; i < MAKERS; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%u", group, i);
        remove_group(path);
    }
    remove_group(group);
}

int raise_loopback() {
    int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request = {};
    strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    int error = ioctl(socket, SIOCSIFFLAGS, &request) ? errno : 0;
    close(socket);
    return error;
}

struct Maker {
    Sparse &memory;
    Round &round;
    bool private_network;
    pid_t parent;
    char path[PATH_MAX];
    int ends[2];

    // Runs a process 1 from its start to its end. The process uses its maker's stack, below the frames of the maker,
    // which waits (CLONE_VFORK).
    [[noreturn]] __attribute__((noinline)) void run_init(uint64_t number) {
        umount2("/proc", MNT_DETACH);
        if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr)) _exit(errno);
        if (int error = private_network ? raise_loopback() : 0) _exit(error);
        long pid = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
        if (pid < 0) _exit(errno);
        if (pid == 0) _exit(touch_and_report(memory, number, ends[1]) ? 0 : errno);
        int status;
        if (syscall(SYS_wait4, pid, &status, 0, nullptr) != pid) _exit(errno);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD);
    }

    // Does not use the wrapper syscall(2). Both processes share a stack and would return from the wrapper, so the first
    // one to return would overwrite the stack of the other.
    __attribute__((noinline)) pid_t clone_init(const clone_args &args, uint64_t number) {
        long result = SYS_clone3;
        __asm__ volatile("syscall" : "+a"(result) : "D"(&args), "S"(sizeof args) : "rcx", "r11", "memory");
        if (result == 0) run_init(number);
        return (pid_t)result;
    }

    int contain_in(int group, uint64_t number, ChildAnswer &answer) {
        clone_args args = {};
        args.flags = CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP;
        if (private_network) args.flags |= CLONE_NEWNET;
        args.exit_signal = SIGCHLD;
        args.cgroup = (uint64_t)group;
        pid_t pid = clone_init(args, number);
        if (pid < 0) return -pid;
        int status;
        if (waitpid(pid, &status, 0) != pid) return errno;
        if (status) return WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
        // The process that wrote the result has ended, so the result is in the pipe.
        if (read(ends[0], &answer.result, sizeof answer.result) != sizeof answer.result) return EPIPE;
        answer.answered_ns = now_ns();
        return 0;
    }

    int contain(uint64_t number, ChildAnswer &answer) {
        if (mkdir(path, 0755)) return errno;
        int group = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int error = group < 0 ? errno : contain_in(group, number, answer);
        close(group);
        int left = remove_group(path);
        return error ? error : left;
    }

    // Runs a maker, which ends when the socket `orders` closes or the parent has been killed.
    void work(int orders) {
        if (pipe(ends) || unshare(CLONE_NEWNS) || mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr)) round.error = errno;
        char letter;
        while (read(orders, &letter, 1) == 1) {
            uint64_t i;
            while (!round.error && getppid() == parent && (i = round.next++) < round.count)
                if (int error = contain(round.first + i, round.answers[i])) round.error = error;
            if (write(orders, &letter, 1) != 1) break;
        }
    }
};

struct Makers {
    Round &round;
    const char *group;
    int orders[MAKERS];

    Makers(Sparse &memory, Round &round, bool private_network, const char *group) : round(round), group(group) {
        for (unsigned i = 0; i < MAKERS; i++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("socketpair");
            orders[i] = pair[0];
            pid_t parent = getpid(), pid = fork();
            if (pid < 0) fail("fork");
            if (pid > 0) {
                close(pair[1]);
                continue;
            }
            for (unsigned other = 0; other <= i; other++) close(orders[other]);
            Maker maker = {memory, round, private_network, parent, {}, {}};
            snprintf(maker.path, sizeof maker.path, "%s/%u", group, i);
            maker.work(pair[1]);
            remove_all(group);
            _exit(0);
        }
    }

    // Returns an error number, or 0.
    int fan(uint64_t count, uint64_t first) {
        round.first = first;
        round.count = count;
        round.next = 0;
        for (int order : orders)
            if (write(order, "", 1) != 1) fail("a maker");
        char letter;
        for (int order : orders) {
            if (read(order, &letter, 1) == 1) continue;
            errno = ECHILD;
            fail("a maker was killed");
        }
        return round.error;
    }

    void end() {
        for (int order : orders) close(order);
        while (wait(nullptr) > 0) {
        }
        remove_all(group);
    }
};

} // namespace

// For each child a maker creates and opens a control group. Into that group it clones process 1 of new pid, UTS and IPC
// namespaces, and of a network namespace if each child has its own. Process 1 uses its maker's memory, as a stub does
// until its exec. It replaces /proc, and brings up the loopback interface of its own network. It forks a child of that
// memory, which is in huge pages like a zygote's. The child touches four pages and reports the result. Both are reaped,
// and the group is removed.
//
// Usage: container MIB NETWORK GROUP
//
// NETWORK is as in local_fanout. GROUP is created, and removed even if a process is killed.
//
// Input:
//
// - COUNT FIRST: forks COUNT children, numbered from FIRST.
//
// Output:
//
// - ready ERRNO: 0, or why GROUP or the first children could not be created. If it is not 0, the program ends.
// - fanned NS: the whole time. For each child a line follows: answered NUMBER VALUE RESULT_NS ANSWERED_NS.
int main(int count, char **arguments) {
    if (count != 4) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    uint64_t network = strtoull(arguments[2], nullptr, 10);
    if (network == SHARED && unshare(CLONE_NEWNET)) fail("unshare");
    void *common = mmap(nullptr, sizeof(Round), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED) fail("memory");
    Round &round = *static_cast<Round *>(common);
    Sparse memory(strtoull(arguments[1], nullptr, 10), MADV_HUGEPAGE);
    const char *group = arguments[3];
    int error = mkdir(group, 0755) ? errno : 0;
    if (error) {
        printf("ready %d\n", error);
        return 0;
    }
    Makers makers(memory, round, network == PRIVATE, group);
    error = makers.fan(MAKERS, 0);
    printf("ready %d\n", error);
    fflush(stdout);
    unsigned long long children, first;
    while (!error && scanf("%llu %llu", &children, &first) == 2 && children <= COUNT_MAX) {
        int64_t began = now_ns();
        error = makers.fan(children, first);
        if (!error) print_answers(began, round.answers, children);
    }
    makers.end();
    errno = error;
    if (error) fail("a container");
    return 0;
}
