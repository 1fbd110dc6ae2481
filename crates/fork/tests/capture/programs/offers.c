// A parent that offers pages for the calls of its capture. Its first argument selects the kind, its second the number of
// sleeping threads. It reports the address of the pages, and for each line on its standard input that it still runs.
#include "parent.h"

static void *sleeper(void *unused) {
    for (;;) pause();
    return unused;
}

// A thread that executes code in the pages, as if a capture had died while it used them.
static void *occupier(void *code) {
    ((void (*)(void))code)();
    return code;
}

int main(int count, char **words) {
    begin();
    const char *what = words[1];
    for (int thread = 0; count > 2 && thread < atoi(words[2]); thread++) {
        pthread_t id;
        start(&id, "sleeper", sleeper);
    }
    int is_shared = !strcmp(what, "shared"), is_writable = !strcmp(what, "writable");
    char *pages =
        offer(is_shared ? MAP_SHARED : MAP_PRIVATE, PROT_READ | PROT_EXEC | (is_writable ? PROT_WRITE : 0));
    if (!strcmp(what, "unmarked")) pages[PAGE]++;
    if (!strcmp(what, "used")) {
        CHECK(mprotect(pages, PAGE, PROT_READ | PROT_WRITE));
        pages[1] = 1;
        CHECK(mprotect(pages, PAGE, PROT_READ | PROT_EXEC));
    }
    if (!strcmp(what, "occupied")) {
        pthread_t id;
        CHECK(mprotect(pages, PAGE, PROT_READ | PROT_WRITE));
        memcpy(pages + PAGE / 2, "\xf3\x90\xeb\xfc", 4); // 1: pause; jmp 1b
        CHECK(mprotect(pages, PAGE, PROT_READ | PROT_EXEC));
        if (pthread_create(&id, NULL, occupier, pages + PAGE / 2)) die("occupier");
        usleep(100 * 1000);
    }
    if (!strcmp(what, "absent")) CHECK(madvise(pages, PAGES_BYTES, MADV_DONTFORK));
    if (!strcmp(what, "wiped")) CHECK(madvise(pages, PAGE, MADV_WIPEONFORK));
    // Since Linux 6.3: no memory that is writable and executable, now or later.
    if (!strcmp(what, "strict")) CHECK(prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0));
    tell("pages", (unsigned long)pages);
    ready();
    char line[16];
    while (fgets(line, sizeof line, stdin)) tell("runs", 1);
}
