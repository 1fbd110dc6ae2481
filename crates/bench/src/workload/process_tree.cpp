// A tree of processes whose pause is measured. The first process forks PROCESSES - 1 others.
//
// Each process fills MIB of private memory, and all share a mapping of SHARED_MIB. The first process runs commands of
// one letter from standard input. It passes `w` and `f` on to the others, one after another.
#include "../baseline/endpoint.h"

#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t PAGE_BYTES = 4096;
// Number of standard streams. Higher descriptors belong to a single process.
constexpr unsigned STREAMS = 3;

// The pipes between the first process and another one.
struct Member {
    int command;
    int answer;
};

size_t own_bytes, shared_bytes;
unsigned char *own, *shared_memory;

unsigned char *map(size_t bytes, int kind) {
    if (bytes == 0) return nullptr;
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    // Use small pages, because fewer pages would lower the cost of a fork.
    madvise(at, bytes, MADV_NOHUGEPAGE);
    memset(at, 0x5a, bytes);
    return static_cast<unsigned char *>(at);
}

int64_t write_all() {
    int64_t began_ns = now_ns();
    for (size_t at = 0; at < own_bytes; at += PAGE_BYTES) own[at]++;
    return now_ns() - began_ns;
}

int64_t time_fork() {
    int64_t began_ns = now_ns();
    pid_t pid = fork();
    int64_t ended_ns = now_ns();
    if (pid == 0) _exit(0);
    if (pid < 0 || waitpid(pid, nullptr, 0) != pid) fail("fork");
    return ended_ns - began_ns;
}

int64_t time_copy() {
    if (shared_bytes == 0) return 0;
    // Mapped only temporarily, because the floor's memory must not be part of the process.
    unsigned char *copy = map(shared_bytes, MAP_PRIVATE);
    int64_t began_ns = now_ns();
    memcpy(copy, shared_memory, shared_bytes);
    int64_t ended_ns = now_ns();
    munmap(copy, shared_bytes);
    return ended_ns - began_ns;
}

int64_t run_command(char command) { return command == 'f' ? time_fork() : write_all(); }

[[noreturn]] void run_member(Member member) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    own = map(own_bytes, MAP_PRIVATE);
    int64_t ns = 0;
    char command;
    do {
        if (write(member.answer, &ns, sizeof ns) != sizeof ns) _exit(1);
        if (read(member.command, &command, 1) != 1) _exit(0);
        ns = run_command(command);
    } while (true);
}

int64_t read_answer(const Member &member) {
    int64_t ns;
    if (read(member.answer, &ns, sizeof ns) != sizeof ns) fail("read from a process of the tree");
    return ns;
}

Member fork_member() {
    int command[2], answer[2];
    if (pipe(command) || pipe(answer)) fail("pipe");
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        // Close the inherited pipes of other members. Otherwise, a pipe would not end with its member, because this
        // process has a copy.
        int above = answer[1] + 1;
        Member member = {dup2(command[0], above), dup2(answer[1], above + 1)};
        close_range(STREAMS, static_cast<unsigned>(answer[1]), 0);
        run_member(member);
    }
    close(command[0]);
    close(answer[1]);
    Member member = {command[1], answer[0]};
    read_answer(member);
    return member;
}

int64_t command_all(const std::vector<Member> &members, char command) {
    int64_t ns = run_command(command);
    for (const Member &member : members) {
        if (write(member.command, &command, 1) != 1) fail("write to a process of the tree");
        ns += read_answer(member);
    }
    return ns;
}

} // namespace

// Commands:
//
// - w: each process writes to all of its own pages, as a busy program would. Prints `written NS`.
// - f: each process calls fork(). The forked process exits at once. Prints `forked NS`, the sum of the calls alone.
// - m: the first process copies the shared memory to memory that is present. Prints `copied NS`.
//
// Usage: process_tree PROCESSES MIB SHARED_MIB
int main(int count, char **arguments) {
    if (count != 4) {
        fputs("usage: process_tree PROCESSES MIB SHARED_MIB\n", stderr);
        return 2;
    }
    own_bytes = strtoul(arguments[2], nullptr, 10) << 20;
    shared_bytes = strtoul(arguments[3], nullptr, 10) << 20;
    shared_memory = map(shared_bytes, MAP_SHARED);
    std::vector<Member> members;
    for (long left = strtol(arguments[1], nullptr, 10) - 1; left > 0; left--) members.push_back(fork_member());
    own = map(own_bytes, MAP_PRIVATE);
    puts("ready");
    for (;;) {
        fflush(stdout);
        char command;
        if (read(STDIN_FILENO, &command, 1) != 1) return 0;
        switch (command) {
        case 'w': printf("written %lld\n", static_cast<long long>(command_all(members, 'w'))); break;
        case 'f': printf("forked %lld\n", static_cast<long long>(command_all(members, 'f'))); break;
        case 'm': printf("copied %lld\n", static_cast<long long>(time_copy())); break;
        }
    }
}
