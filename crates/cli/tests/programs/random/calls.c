/* A process whose state is made by system calls of all kinds. `calls actions` lists what it can do, `calls coverage DIRECTORY` says by which
 * calls, as the kernel saw them, and `calls run SEED DIRECTORY ACTION...` does it: it says `ready PID 0` and `.`, and stands.
 *
 * An action is one of the kinds of resources of process.c, or one of the calls_*.h beside this; the order here is the order in which they are done,
 * because the last ones take away what others need. Which calls no action makes, and why, is in calls_left_out.txt.
 */
#pragma GCC diagnostic ignored "-Wunused-function" /* kinds also state what they are, which the differ does here */

#include "kinds.h"

#include "calls_actions.h"
#include "calls_coverage.h"

/* In a namespace of its own, where System V objects go with it. */
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
