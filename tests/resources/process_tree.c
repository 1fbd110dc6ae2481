/* A process tree: children in their parent's group, in their own group and in their own session, and a grandchild.
 * Each has written to inherited memory. They share memory, an offset, an eventfd, and pipes with unread data. In the
 * child all have their ids and resources, and can be waited for. */
#include "resource.h"

#include <sys/eventfd.h>

#define PAGES 64
#define CHILDREN 4

enum role { ROOT, SAME_GROUP, OWN_GROUP, OWN_SESSION, GRANDCHILD };

struct place {
    pid_t pid, parent;
    char verdict[200]; /* empty before the check; then `right` or the difference */
};

static struct {
    uint32_t go;
    uint32_t counted;
    struct place of[CHILDREN + 1];
} *shared;

static unsigned char *pages;
static enum role role;
static int down[2], up[2], counter, file;
static pid_t children[CHILDREN + 1];

static void say(const char *text) { snprintf(shared->of[role].verdict, sizeof shared->of[role].verdict, "%s", text); }

/* Ends a process of the tree with a report, if a condition is false. */
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            char text[200];                                                                                            \
            snprintf(text, sizeof text, "role %d, line %d: %s (errno %d)", role, __LINE__, #condition, errno);           \
            say(text);                                                                                                 \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)

static void write_pages(void) {
    for (int i = 0; i < PAGES; i++)
        if (i % (CHILDREN + 1) == (int)role) memset(pages + i * PAGE_BYTES, 0x40 + role, PAGE_BYTES);
}

static void look_at_pages(enum role parent) {
    for (int i = 0; i < PAGES; i++) {
        int writer = i % (CHILDREN + 1), expected = 0x11;
        if (writer == (int)role) expected = 0x40 + role;
        if (writer == (int)parent && parent != ROOT) expected = 0x40 + parent;
        EXPECT(pages[i * PAGE_BYTES] == expected && pages[i * PAGE_BYTES + 4095] == expected);
    }
}

static void look_at_ids(void) {
    EXPECT(getpid() == shared->of[role].pid && getppid() == shared->of[role].parent);
    pid_t root = shared->of[ROOT].pid;
    switch (role) {
    case SAME_GROUP: EXPECT(getpgrp() == getpgid(root) && getsid(0) == getsid(root)); break;
    case OWN_GROUP: EXPECT(getpgrp() == getpid() && getsid(0) == getsid(root)); break;
    case OWN_SESSION: EXPECT(getpgrp() == getpid() && getsid(0) == getpid()); break;
    case GRANDCHILD: EXPECT(getpgrp() == getppid() && getsid(0) == getppid()); break;
    default: break;
    }
}

/* Makes changes to files that the other processes must see. */
static void use_files(void) {
    char text[16] = "";
    uint64_t count = 0;
    if (role == SAME_GROUP) {
        EXPECT(read(down[0], text, 4) == 4 && memcmp(text, "down", 4) == 0);
        EXPECT(read(counter, &count, sizeof count) == 8 && count == 7);
        EXPECT(read(file, text, 10) == 10 && memcmp(text, "0123456789", 10) == 0);
    }
    if (role == GRANDCHILD) EXPECT(write(up[1], "grand", 5) == 5);
    if (role == OWN_SESSION) {
        int status;
        EXPECT(waitpid(children[GRANDCHILD], &status, 0) == children[GRANDCHILD]);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 40 + GRANDCHILD);
    }
}

static __attribute__((noreturn)) void live(enum role parent) {
    write_pages();
    shared->of[role].pid = getpid();
    shared->of[role].parent = getppid();
    if (role == OWN_SESSION) {
        children[GRANDCHILD] = fork();
        if (children[GRANDCHILD] == 0) {
            role = GRANDCHILD;
            live(OWN_SESSION);
        }
    }
    __atomic_add_fetch(&shared->counted, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST)) {
        if (getppid() != shared->of[role].parent) _exit(98); /* the parent was killed */
        usleep(1000);
    }
    look_at_ids();
    look_at_pages(parent);
    use_files();
    say("right");
    _exit(40 + role);
}

static void set_up(void) {
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED && sizeof *shared <= PAGE_BYTES);
    pages = (unsigned char *)map_private(PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE);
    memset(pages, 0x11, PAGES * PAGE_BYTES);
    REQUIRE(pipe(down) == 0 && pipe(up) == 0 && write(down[1], "down", 4) == 4);
    REQUIRE((counter = eventfd(7, EFD_NONBLOCK)) >= 0);
    REQUIRE((file = open(path_of("shared_offset"), O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
    REQUIRE(write(file, "skip0123456789rest", 18) == 18 && lseek(file, 4, SEEK_SET) == 4);
    shared->of[ROOT].pid = getpid();
    for (enum role one = SAME_GROUP; one <= OWN_SESSION; one++) {
        REQUIRE((children[one] = fork()) >= 0);
        if (children[one] > 0) continue;
        role = one;
        if (one == OWN_GROUP) EXPECT(setpgid(0, 0) == 0);
        if (one == OWN_SESSION) EXPECT(setsid() > 0);
        live(ROOT);
    }
    REQUIRE(COMES_TRUE(__atomic_load_n(&shared->counted, __ATOMIC_SEQ_CST) == CHILDREN));
}

static void check(void) {
    char text[16] = "";
    int status;
    REQUIRE(getpid() == shared->of[ROOT].pid);
    __atomic_store_n(&shared->go, 1, __ATOMIC_SEQ_CST);
    for (enum role one = SAME_GROUP; one <= OWN_SESSION; one++) {
        REQUIRE(waitpid(children[one], &status, 0) == children[one], "role %d", one);
        REQUIRE(strcmp(shared->of[one].verdict, "right") == 0, "%s", shared->of[one].verdict);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 40 + (int)one, "role %d: status %#x", one, status);
    }
    REQUIRE(strcmp(shared->of[GRANDCHILD].verdict, "right") == 0, "%s", shared->of[GRANDCHILD].verdict);
    REQUIRE(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
    REQUIRE(lseek(file, 0, SEEK_CUR) == 14, "at %ld", (long)lseek(file, 0, SEEK_CUR));
    REQUIRE(read(counter, text, 8) == -1 && errno == EAGAIN);
    REQUIRE(read(up[0], text, 5) == 5 && memcmp(text, "grand", 5) == 0);
    close(up[1]);
    REQUIRE(read(up[0], text, 1) == 0, "another process has the write end open");
    for (int i = 0; i < PAGES; i++) REQUIRE(pages[i * PAGE_BYTES] == 0x11, "page %d", i);
}
