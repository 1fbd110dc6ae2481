/* Builds process state with system calls of all kinds. `calls actions` lists the actions. `calls coverage DIRECTORY`
 * lists the calls that they make, as seen by ptrace(2). `calls run SEED DIRECTORY ACTION...` performs actions, prints
 * `ready PID 0` and `.`, and waits.
 *
 * An action makes a resource of process.c, or is a function of a calls_*.h file in this directory. Actions run in the
 * order of these tables: the last ones remove privileges that others need. calls_left_out.txt lists the calls that no
 * action makes, with reasons.
 */
#pragma GCC diagnostic ignored "-Wunused-function" /* here, functions that print state are unused */

#include "kinds.h"

#include "calls_actions.h"
#include "calls_coverage.h"

/* Enters a new IPC namespace, so that System V objects are removed with it. */
static void begin(void) {
    REQUIRE(unshare(CLONE_NEWIPC) == 0);
    block_sent_signals();
}

static int perform(const char *name) {
    int is_found = 0;
    for (size_t i = 0; i < sizeof first_actions / sizeof *first_actions; i++)
        if (strcmp(first_actions[i].name, name) == 0) first_actions[i].perform(), is_found = 1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) kinds[i].make(), is_found = 1;
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(actions[i].name, name) == 0) actions[i].perform(), is_found = 1;
    return is_found;
}

static void say_action(const struct action *action) { say("%s %s", action->is_refused ? "refused" : "carried", action->name); }

static void list_actions(void) {
    for (size_t i = 0; i < sizeof first_actions / sizeof *first_actions; i++) say_action(&first_actions[i]);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) say("carried %s", kinds[i].name);
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) say_action(&actions[i]);
}

static void name_action_and_perform(const char *name) {
    begin();
    REQUIRE(perform(name), "no action `%s`", name);
    set_limits();
}

int main(int count, char **arguments) {
    REQUIRE(count >= 2, "usage: %s actions | coverage DIRECTORY | run SEED DIRECTORY ACTION...", arguments[0]);
    if (strcmp(arguments[1], "stand") == 0) stand();
    if (strcmp(arguments[1], "actions") == 0) {
        list_actions();
        return 0;
    }
    REQUIRE(count >= 3);
    if (strcmp(arguments[1], "coverage") == 0) {
        directory = arguments[2];
        for (size_t i = 0; i < sizeof first_actions / sizeof *first_actions; i++) trace_action(first_actions[i].name, name_action_and_perform);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) trace_action(kinds[i].name, name_action_and_perform);
        for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) trace_action(actions[i].name, name_action_and_perform);
        say_coverage();
        return 0;
    }
    REQUIRE(count >= 4);
    drawn = strtoul(arguments[2], NULL, 10) << 32, directory = arguments[3];
    begin();
    for (int i = 4; i < count; i++) REQUIRE(perform(arguments[i]), "no action `%s`", arguments[i]);
    set_limits();
    ready(0);
    say(".");
    stand();
}
