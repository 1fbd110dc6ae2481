/* A child that is forked again while it has files open that only its container has: its payload, a changed file of the
 * node, and a file that it created and mapped.
 * usage: own_files FILE
 */
#include "../forked.h"

#define PAYLOAD_FD 1000

/* Requires that a descriptor reads this text from its offset on. */
static void require_rest(int fd, const char *expected) {
    char text[PAYLOAD_BYTES_MAX] = {0};
    REQUIRE(read(fd, text, sizeof text - 1) >= 0);
    text[strcspn(text, "\n")] = 0;
    REQUIRE(strcmp(text, expected) == 0, "fd %d reads `%s`, not `%s`", fd, text, expected);
}

/* Waits until the payload is a different one, or absent. */
static void await_second_fork(const char *first, char second[PAYLOAD_BYTES_MAX]) {
    struct timespec tick = {.tv_sec = 0, .tv_nsec = TICK_NS};
    say("waiting");
    while (find_payload(second) && strcmp(second, first) == 0) nanosleep(&tick, NULL);
    if (access(PAYLOAD_PATH, F_OK) == -1) strcpy(second, "0");
}

int main(int count, char **arguments) {
    REQUIRE(count == 2, "usage: own_files FILE");
    char first[PAYLOAD_BYTES_MAX], second[PAYLOAD_BYTES_MAX], made_path[PAYLOAD_BYTES_MAX], byte;
    ready(0);
    await_fork(first);

    int changed = open(arguments[1], O_RDWR | O_CLOEXEC);
    REQUIRE(changed >= 0 && write(changed, "child", 5) == 5, "%s", arguments[1]);
    snprintf(made_path, sizeof made_path, "%s.made", arguments[1]);
    int made = open(made_path, O_RDWR | O_CREAT | O_EXCL, 0640);
    REQUIRE(made >= 0 && ftruncate(made, PAGE_BYTES) == 0, "%s", made_path);
    char *view = (char *)mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    REQUIRE(view != MAP_FAILED);
    strcpy(view, "made");
    int payload = open(PAYLOAD_PATH, O_RDONLY);
    REQUIRE(payload >= 0 && read(payload, &byte, 1) == 1 && read(PAYLOAD_FD, &byte, 1) == 1);
    await_second_fork(first, second);

    require_rest(changed, ", and more");
    REQUIRE(lseek(changed, 0, SEEK_SET) == 0);
    require_rest(changed, "child, and more");
    REQUIRE(strcmp(view, "made") == 0 && pwrite(made, "anew", 4, 0) == 4);
    REQUIRE(strcmp(view, "anew") == 0, "the mapping does not follow the file: %s", view);
    REQUIRE(access(made_path, F_OK) == -1, "a file of another container is visible");
    require_rest(payload, first + 1);
    require_rest(PAYLOAD_FD, access(PAYLOAD_PATH, F_OK) == 0 ? second : first + 1);
    finish(second, 0);
}
