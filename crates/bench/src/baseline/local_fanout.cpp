// A floor of a fan-out: a process forks children, a number of them at the same time. They touch four pages and report a
// value computed from them.
//
// Each child runs in the namespaces of an existing container, or in its parent's. Children use the containers in turn,
// which costs less than new namespaces.
#include "local_fanout.h"

#include <csignal>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <vector>

namespace {

enum Network : uint64_t { PRIVATE, SHARED, HOST };

int namespaces = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC;

// Starts process 1 of a container. Returns its pidfd, by which children enter its namespaces.
int make_container() {
    long pid = syscall(SYS_clone, SIGCHLD | CLONE_NEWPID | namespaces, nullptr, nullptr, nullptr, nullptr);
    if (pid < 0) fail("clone into new namespaces");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
        for (;;) pause();
    }
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) fail("pidfd_open");
    return pidfd;
}

struct Fanout {
    Sparse &memory;
    const std::vector<int> &containers;
    int ends[2];
    size_t next = 0;

    Fanout(Sparse &memory, const std::vector<int> &containers) : memory(memory), containers(containers) {
        if (pipe(ends)) fail("pipe");
    }

    pid_t start(uint64_t number, bool stays) {
        int container = containers.empty() ? -1 : containers[next++ % containers.size()];
        if (container >= 0 && setns(container, CLONE_NEWPID)) fail("setns");
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid > 0) return pid;
        if (container >= 0 && setns(container, namespaces)) _exit(1);
        // A child that stays must end if this program is killed. This program still runs at this point, because it waits
        // for the child's answer.
        if (stays) prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!touch_and_report(memory, number, ends[1])) _exit(1);
        if (stays) pause();
        _exit(0);
    }

    ChildAnswer answer() {
        ChildAnswer answer;
        if (read(ends[0], &answer.result, sizeof answer.result) != sizeof answer.result) fail("read of an answer");
        answer.answered_ns = now_ns();
        return answer;
    }

    void fan(uint64_t count, uint64_t first, uint64_t at_once) {
        std::vector<ChildAnswer> answers;
        answers.reserve(count);
        int64_t began = now_ns();
        uint64_t started = 0;
        while (answers.size() < count) {
            while (started < count && started - answers.size() < at_once) start(first + started++, false);
            answers.push_back(answer());
            while (waitpid(-1, nullptr, WNOHANG) > 0) {
            }
        }
        print_answers(began, answers.data(), count);
    }
};

} // namespace

// Usage: local_fanout MIB AT_ONCE CONTAINERS NETWORK
//
// If CONTAINERS is 0, there are no namespaces. NETWORK is 0 for one network per container, 1 for one network of all, and
// 2 for this program's own.
//
// Input:
//
// - COUNT FIRST: forks COUNT children, numbered from FIRST.
// - 0 NUMBER: forks one child, which stays until the next line.
//
// Output:
//
// - ready
// - fanned NS: the whole time. For each child a line follows: answered NUMBER VALUE RESULT_NS ANSWERED_NS.
// - held PID
int main(int count, char **arguments) {
    if (count != 5) return 2;
    uint64_t network = strtoull(arguments[4], nullptr, 10);
    if (network == PRIVATE) namespaces |= CLONE_NEWNET;
    if (network == SHARED && unshare(CLONE_NEWNET)) fail("unshare");
    std::vector<int> containers;
    for (uint64_t i = strtoull(arguments[3], nullptr, 10); i > 0; i--) containers.push_back(make_container());
    Sparse memory(strtoull(arguments[1], nullptr, 10));
    Fanout fanout(memory, containers);
    puts("ready");
    fflush(stdout);
    unsigned long long children, first;
    pid_t held = 0;
    while (scanf("%llu %llu", &children, &first) == 2) {
        if (held) kill(held, SIGKILL);
        held = 0;
        if (children) {
            fanout.fan(children, first, strtoull(arguments[2], nullptr, 10));
            continue;
        }
        held = fanout.start(first, true);
        fanout.answer();
        printf("held %d\n", held);
        fflush(stdout);
    }
    if (held) kill(held, SIGKILL);
    return 0;
}
