/* A process with at least five random resources, which follow from a seed: SEED DIRECTORY [refused]. With `refused`, it
 * also has one or two resources that prepare may refuse.
 *
 * It prints a statement of all state that it can read without a change, and waits for its standard input. Then it
 * prints the statement again, and the state that it can show only by using it up. Parent and child must print the same.
 *
 *  set up ─ `ready PID 0` ─ statement ─ `.` ─ standard input has data, or ends ─ statement ─ `:` ─ the rest ─ `.`
 *
 * Each part, such as memory or descriptors, has a header in this directory with functions that make it, state it and
 * use it up.
 */
#include "random.h"

#include "kinds.h"

#define KINDS_MIN 5
#define KINDS_MORE_MAX 10

static void set_up(int may_be_refused) {
    block_sent_signals();
    for (uint64_t left = KINDS_MIN + below(KINDS_MORE_MAX + 1); left > 0; left--) {
        size_t kind = below(sizeof kinds / sizeof *kinds);
        state("has %s\n", kinds[kind].name);
        kinds[kind].make();
    }
    for (uint64_t left = may_be_refused ? 1 + below(2) : 0; left > 0; left--) ONE_OF(refused_kinds)();
    set_limits();
}

static void state_all(void) {
    state_identity();
    state_mappings();
    state_memory();
    state_descriptors();
    state_signals();
    state_own_signals("main");
    state_timers();
    state_threads();
}

static void use_up_all(void) {
    use_up_epolls();
    use_up_signals("main");
    use_up_threads();
    use_up_descriptors();
    use_up_filter();
    use_up_memory();
}

int main(int count, char **arguments) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte;
    REQUIRE(count == 3 || count == 4, "usage: %s SEED DIRECTORY [refused]", arguments[0]);
    drawn = strtoul(arguments[1], NULL, 10) << 32, directory = arguments[2];
    set_up(count == 4);
    int polls = one_in(2);
    state_all();
    ready(0);
    say_statement();
    say(".");
    if (polls) REQUIRE(poll(&input, 1, -1) == 1);
    REQUIRE(read(STDIN_FILENO, &byte, 1) >= 0);
    is_child = access(PAYLOAD_PATH, F_OK) == 0;
    state_all();
    state(":\n");
    use_up_all();
    state(".\n");
    say_statement();
    _exit(0);
}
