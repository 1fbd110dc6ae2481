// Floors of pausing: local forks that answer requests as children do, and stand still between two of them, by SIGSTOP or by
// the freezer of a control group of version 2.
// usage: halts stop STEPS CHILDREN
//        halts freeze STEPS CHILDREN GROUP     a group for each child is made below that one
// takes: PARALLEL MS GAP_US FIRST              so many children, each by a thread of its own, for so long, one turn at least;
//                                              a gap before each turn, in which nothing happens
// says:  ready
//        halted NS TURNS, and for each turn: turn NUMBER VALUE UNPAUSE_NS ANSWER_NS PAUSE_NS
#include "../workload/warm_function.h"

#include <csignal>
#include <cstring>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

namespace {

struct Turn {
    Answer answer;
    int64_t unpause_ns, answer_ns, pause_ns;
};

void write_file(const std::string &path, const std::string &text) {
    int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text.data(), text.size()) != (ssize_t)text.size()) fail(path.c_str());
    close(file);
}

struct Child {
    pid_t pid;
    int end;
    // Of its control group: what stops it, and what tells that it stands. Negative where signals do that.
    int freeze = -1, events = -1;

    Child(uint64_t steps, const std::string &group) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail("socketpair");
        pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(ends[0]);
            // One that is stopped before would outlive this program.
            if (write(ends[1], "", 1) != 1) _exit(1);
            serve(ends[1], steps);
            _exit(0);
        }
        close(ends[1]);
        end = ends[0];
        char letter;
        if (read(end, &letter, 1) != 1) fail("a fork");
        if (group.empty()) return;
        if (mkdir(group.c_str(), 0755)) fail(group.c_str());
        write_file(group + "/cgroup.procs", std::to_string(pid));
        freeze = open((group + "/cgroup.freeze").c_str(), O_WRONLY | O_CLOEXEC);
        events = open((group + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC);
        if (freeze < 0 || events < 0) fail("the freezer");
    }

    bool stands() {
        char text[128];
        ssize_t length = pread(events, text, sizeof text - 1, 0);
        if (length < 0) fail("cgroup.events");
        text[length] = 0;
        return strstr(text, "frozen 1");
    }

    void pause() {
        if (freeze < 0) {
            int status;
            if (kill(pid, SIGSTOP) || waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status)) fail("stop");
            return;
        }
        if (pwrite(freeze, "1", 1, 0) != 1) fail("cgroup.freeze");
        // The kernel tells of few changes of a group a second: waiting for that would be no floor.
        while (!stands()) sched_yield();
    }

    void unpause() {
        if (freeze < 0 ? kill(pid, SIGCONT) != 0 : pwrite(freeze, "0", 1, 0) != 1) fail("unpause");
    }

    Turn turn(uint64_t number) {
        Turn turn;
        Request request = {number};
        if (write(end, &request, sizeof request) != sizeof request) fail("a request");
        int64_t began = now_ns();
        unpause();
        turn.unpause_ns = now_ns() - began;
        if (read(end, &turn.answer, sizeof turn.answer) != sizeof turn.answer) fail("an answer");
        int64_t answered = now_ns();
        turn.answer_ns = answered - began;
        pause();
        turn.pause_ns = now_ns() - answered;
        return turn;
    }
};

void run(std::vector<Child> &children, size_t parallel, int64_t ms, long gap_us, uint64_t first) {
    std::vector<std::vector<Turn>> turns(parallel);
    std::vector<std::thread> threads;
    int64_t began = now_ns();
    for (size_t i = 0; i < parallel; i++)
        threads.emplace_back([&, i] {
            uint64_t number = first + i;
            do {
                if (gap_us) usleep(gap_us);
                turns[i].push_back(children[i].turn(number));
                number += parallel;
            } while (now_ns() - began < ms * 1000000);
        });
    for (std::thread &thread : threads) thread.join();
    int64_t took = now_ns() - began;
    size_t all = 0;
    for (auto &of_child : turns) all += of_child.size();
    printf("halted %lld %zu\n", (long long)took, all);
    for (auto &of_child : turns)
        for (Turn &t : of_child)
            printf("turn %lld %lld %lld %lld %lld\n", (long long)t.answer.number, (long long)t.answer.value,
                   (long long)t.unpause_ns, (long long)t.answer_ns, (long long)t.pause_ns);
    fflush(stdout);
}

} // namespace

int main(int count, char **arguments) {
    bool freezes = count == 5 && !strcmp(arguments[1], "freeze");
    if (!freezes && (count != 4 || strcmp(arguments[1], "stop"))) return 2;
    uint64_t steps = strtoull(arguments[2], nullptr, 10), all = strtoull(arguments[3], nullptr, 10);
    std::vector<Child> children;
    for (uint64_t i = 0; i < all; i++) {
        children.emplace_back(steps, freezes ? std::string(arguments[4]) + "/" + std::to_string(i) : std::string());
        children.back().pause();
    }
    puts("ready");
    fflush(stdout);
    unsigned long long parallel, first;
    long long ms;
    long gap_us;
    while (scanf("%llu %lld %ld %llu", &parallel, &ms, &gap_us, &first) == 4 && parallel <= all)
        run(children, parallel, ms, gap_us, first);
    return 0;
}
