/* A parent with a large table. Each child looks up the square of its payload in the table, which is in the child's memory.
**
**   make -C crates/program examples
**   crates/program/target/squares > seed &
**   seq 1 8 > numbers; farfork fork $(cat seed) --to any --payloads numbers --detach | xargs farfork wait --results
**/
#include <farfork.h>

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT 1000000

static unsigned long table[COUNT];

static void greet(void *context) { fprintf(stderr, "%s: this is a child\n", (const char *)context); }

int main(void) {
    for (unsigned long n = 0; n < COUNT; n++) table[n] = n * n;
    if (farfork_at_checkpoint(NULL, NULL, greet, "squares") < 0) errx(1, "%s", farfork_error());

    struct farfork_outcome who;
    if (farfork_checkpoint(NULL, &who) < 0) errx(1, "%s", farfork_error());
    if (who.is_child) {
        char text[64];
        unsigned long n = who.payload ? strtoul(who.payload, NULL, 10) : 0;
        int length = snprintf(text, sizeof text, "%lu squared is %lu\n", n, table[n % COUNT]);
        return farfork_result(&who, text, (size_t)length) < 0;
    }

    puts(who.seed);
    fflush(stdout);
    pause(); /* optional: the seed holds the memory itself and does not need its parent */
}
