/* Requests its own checkpoint twice, from a thread, with callbacks around each. Before the second time, the thread
 * selects a CPU. Prints `seed ID` for each seed, then waits.
 *
 * A child checks that its callbacks ran in order, that its threads run, and that each may use the same CPUs as in the
 * parent. It returns `result SEED-NUMBER PAYLOAD` and a megabyte of data. */
#include "../forked.h"

#include <farfork.h>
#include <pthread.h>
#include <sched.h>

#define FILLING_BYTES (1 << 20)

static char order[32];

static void note(const char *letter) { strcat(order, letter); }

static void before(void *name) { note(*(char *)name == 'a' ? "A" : "B"); }
static void in_parent(void *name) { note(*(char *)name == 'a' ? "p" : "q"); }
static void in_child(void *name) { note(*(char *)name == 'a' ? "c" : "d"); }

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int question, answer;

static void *answer_questions(void *unused) {
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!question) pthread_cond_wait(&changed, &mutex);
        answer = question + 1;
        question = 0;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static int ask(int number) {
    pthread_mutex_lock(&mutex);
    question = number;
    pthread_cond_broadcast(&changed);
    while (!answer) pthread_cond_wait(&changed, &mutex);
    int told = answer;
    answer = 0;
    pthread_mutex_unlock(&mutex);
    return told;
}

static cpu_set_t allowed(void) {
    cpu_set_t cpus;
    REQUIRE(sched_getaffinity(0, sizeof cpus, &cpus) == 0);
    return cpus;
}

__attribute__((noreturn)) static void be_child(struct farfork_outcome *who, int number) {
    static char filling[FILLING_BYTES];
    char text[128];
    REQUIRE(strcmp(order, number == 1 ? "BAcd" : "BApqBAcd") == 0, "callbacks: %s", order);
    REQUIRE(ask(5) == 6);
    REQUIRE(strlen(who->child) > 3 && who->payload && who->result_fd > 2);
    int length = snprintf(text, sizeof text, "result %d %s ", number, (const char *)who->payload);
    memset(filling, '.', sizeof filling);
    REQUIRE(farfork_result(who, text, (size_t)length) == 0);
    REQUIRE(farfork_result(who, filling, sizeof filling) == 0);
    farfork_forget(who);
    REQUIRE(farfork_checkpoint(NULL, who) < 0 && strstr(farfork_error(), "cannot be forked further"));
    _exit(EXIT_RIGHT);
}

static void *checkpoints(void *unused) {
    (void)unused;
    struct farfork_options options = {.ttl_ms = 600000};
    cpu_set_t cpus = allowed();
    for (int number = 1; number <= 2; number++) {
        struct farfork_outcome who;
        REQUIRE(farfork_checkpoint(&options, &who) == 0, "%s", farfork_error());
        cpu_set_t now = allowed();
        REQUIRE(CPU_EQUAL(&now, &cpus), "the thread may run on %d CPUs", CPU_COUNT(&now));
        if (who.is_child) be_child(&who, number);
        REQUIRE(!who.payload && who.result_fd < 0 && farfork_result(&who, "x", 1) < 0);
        say("seed %s", who.seed);
        CPU_ZERO(&cpus);
        CPU_SET(sched_getcpu(), &cpus);
        REQUIRE(sched_setaffinity(0, sizeof cpus, &cpus) == 0);
    }
    return NULL;
}

int main(void) {
    pthread_t answering, asking;
    REQUIRE(farfork_at_checkpoint(before, in_parent, in_child, "a") == 0);
    REQUIRE(farfork_at_checkpoint(before, in_parent, in_child, "b") == 0);
    REQUIRE(pthread_create(&answering, NULL, answer_questions, NULL) == 0);
    REQUIRE(pthread_create(&asking, NULL, checkpoints, NULL) == 0);
    pthread_join(asking, NULL);
    REQUIRE(strcmp(order, "BApqBApq") == 0, "callbacks: %s", order);
    REQUIRE(ask(7) == 8);
    pause();
}
