// Floors of pausing: local forks that answer requests as children do. Between two requests each is paused, by SIGSTOP
// or by the freezer of a control group of version 2. They are forks of this program, or forks of another program that
// connect to it.
#include "../workload/warm_function.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

namespace {

struct FunctionRun {
    Answer answer;
    int64_t unpause_ns, answer_ns, pause_ns;
};

void write_file(const std::string &path, const std::string &text) {
    int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text.data(), text.size()) != (ssize_t)text.size()) fail(path.c_str());
    close(file);
}

// Maximum length of an error text.
const uint64_t FAILURE_BYTES_MAX = 4096;

// Prints an error text, and ends the program. No other thread prints before it has joined.
[[noreturn]] void report_failure(const std::string &text) {
    printf("%s\n", text.c_str());
    fflush(stdout);
    _exit(1);
}

struct Child {
    pid_t pid;
    int end;
    // cgroup.freeze and cgroup.events of its control group; negative if signals pause it.
    int freeze = -1, events = -1;

    Child(uint64_t steps, const std::string &group) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail("socketpair");
        pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(ends[0]);
            // The parent waits for this write. If it stopped the fork before prctl(2), the fork would outlive the
            // parent.
            if (write(ends[1], "", 1) != 1) _exit(1);
            serve(ends[1], steps);
            _exit(0);
        }
        close(ends[1]);
        end = ends[0];
        char letter;
        if (read(end, &letter, 1) != 1) fail("a fork");
        if (!group.empty()) join(group);
    }

    // Adopts a fork of another program. It has connected, and writes its index first.
    Child(int connection, const std::string &group) : end(connection) {
        ucred peer;
        socklen_t length = sizeof peer;
        uint64_t index;
        if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length)) fail("SO_PEERCRED");
        if (read(connection, &index, sizeof index) != sizeof index) fail("a fork");
        pid = peer.pid;
        join(group);
    }

    void join(const std::string &group) {
        if (mkdir(group.c_str(), 0755)) fail(group.c_str());
        write_file(group + "/cgroup.procs", std::to_string(pid));
        freeze = open((group + "/cgroup.freeze").c_str(), O_WRONLY | O_CLOEXEC);
        events = open((group + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC);
        if (freeze < 0 || events < 0) fail("open of cgroup.freeze or cgroup.events");
    }

    bool is_frozen() {
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
        // Poll the state: the kernel limits the rate of notifications of cgroup.events, so waiting for one would take
        // too long for a floor.
        while (!is_frozen()) sched_yield();
    }

    void unpause() {
        if (freeze < 0 ? kill(pid, SIGCONT) != 0 : pwrite(freeze, "0", 1, 0) != 1) fail("unpause");
    }

    // Reads the error text of a failed call.
    std::string read_text(uint64_t length) {
        std::string text(std::min<uint64_t>(length, FAILURE_BYTES_MAX), 0);
        ssize_t got = recv(end, &text[0], text.size(), MSG_WAITALL);
        text.resize(std::max<ssize_t>(got, 0));
        return text;
    }

    FunctionRun request_run(uint64_t number) {
        FunctionRun run;
        Request request = {number};
        if (write(end, &request, sizeof request) != sizeof request) fail("write of a request");
        int64_t began = now_ns();
        unpause();
        run.unpause_ns = now_ns() - began;
        if (read(end, &run.answer, sizeof run.answer) != sizeof run.answer)
            report_failure("failed a call in a child of os.fork() ended the process");
        if (run.answer.number == FAILED_CALL) report_failure(read_text(run.answer.value));
        int64_t answered = now_ns();
        run.answer_ns = answered - began;
        pause();
        run.pause_ns = now_ns() - answered;
        return run;
    }
};

void run(std::vector<Child> &children, size_t parallel, int64_t ms, long gap_us, uint64_t first) {
    std::vector<std::vector<FunctionRun>> runs(parallel);
    std::vector<std::thread> threads;
    int64_t began = now_ns();
    for (size_t i = 0; i < parallel; i++)
        threads.emplace_back([&, i] {
            uint64_t number = first + i;
            do {
                if (gap_us) usleep(gap_us);
                runs[i].push_back(children[i].request_run(number));
                number += parallel;
            } while (now_ns() - began < ms * 1000000);
        });
    for (std::thread &thread : threads) thread.join();
    int64_t took = now_ns() - began;
    size_t all = 0;
    for (auto &child_runs : runs) all += child_runs.size();
    printf("halted %lld %zu\n", (long long)took, all);
    for (auto &child_runs : runs)
        for (FunctionRun &one : child_runs)
            printf("turn %lld %lld %lld %lld %lld\n", (long long)one.answer.number, (long long)one.answer.value,
                   (long long)one.unpause_ns, (long long)one.answer_ns, (long long)one.pause_ns);
    fflush(stdout);
}

int listen_at(const char *path) {
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {AF_UNIX, {}};
    if (strlen(path) >= sizeof address.sun_path) fail(path);
    strcpy(address.sun_path, path);
    if (listener < 0 || bind(listener, (sockaddr *)&address, sizeof address) || listen(listener, 256)) fail(path);
    puts("listening");
    fflush(stdout);
    return listener;
}

} // namespace

// Usage:
//
// - paused_forks stop STEPS CHILDREN
// - paused_forks freeze STEPS CHILDREN GROUP: creates a group for each child below GROUP.
// - paused_forks adopt SOCKET CHILDREN GROUP: the same, with forks of another program that connect to SOCKET.
//
// Input:
//
// - PARALLEL MS GAP_US FIRST: runs PARALLEL children for MS, each with its own thread and at least one request. GAP_US
//   passes before each request.
//
// Output:
//
// - listening: only with `adopt`.
// - ready
// - failed WHY: instead of the following, if a child failed.
// - halted NS TURNS: for each request a line follows: turn NUMBER VALUE UNPAUSE_NS ANSWER_NS PAUSE_NS.
int main(int count, char **arguments) {
    std::string mode = count > 1 ? arguments[1] : "";
    if (mode == "stop" ? count != 4 : count != 5 || (mode != "freeze" && mode != "adopt")) return 2;
    uint64_t steps = strtoull(arguments[2], nullptr, 10), all = strtoull(arguments[3], nullptr, 10);
    int listener = mode == "adopt" ? listen_at(arguments[2]) : -1;
    std::vector<Child> children;
    for (uint64_t i = 0; i < all; i++) {
        std::string group = mode == "stop" ? "" : std::string(arguments[4]) + "/" + std::to_string(i);
        if (listener < 0) {
            children.emplace_back(steps, group);
        } else {
            int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
            if (connection < 0) fail("accept");
            children.emplace_back(connection, group);
        }
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
