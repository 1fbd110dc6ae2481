/* A program whose executable was deleted and replaced while it ran, as in an upgrade. /proc/self/exe can still be read
 * and executed. */
#include "resource.h"

#define ANSWER 7
#define OTHER "#!/bin/false\n"

static uint64_t hash;
static size_t bytes;

/* Runs before main. If the program is executed by its child, this is all that it does. */
__attribute__((constructor)) static void answer(void) {
    if (getenv("ANSWER")) _exit(ANSWER);
}

static char *contents_of(const char *path, size_t *length) {
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(file >= 0 && fstat(file, &status) == 0, "%s", path);
    char *contents = (char *)malloc((size_t)status.st_size);
    REQUIRE(contents && read(file, contents, (size_t)status.st_size) == status.st_size && close(file) == 0);
    *length = (size_t)status.st_size;
    return contents;
}

static uint64_t hash_of_executable(size_t *length) {
    uint64_t hash = 0xcbf29ce484222325u;
    char *contents = contents_of("/proc/self/exe", length);
    for (size_t i = 0; i < *length; i++) hash = (hash ^ (unsigned char)contents[i]) * 0x100000001b3u;
    free(contents);
    return hash;
}

static void put(const char *path, const char *contents, size_t length) {
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0750);
    REQUIRE(file >= 0 && write(file, contents, length) == (ssize_t)length && close(file) == 0, "%s", path);
}

/* Executes a copy of the program. The copy may have been deleted. */
static void execute_copy(const char *path) {
    char *arguments[8] = {0}, *line;
    size_t length, count = 0;
    char *contents = contents_of("/proc/self/exe", &length);
    put(path, contents, length);
    FILE *file = fopen("/proc/self/cmdline", "re");
    for (line = NULL, length = 0; count < 7 && getdelim(&line, &length, 0, file) > 0; count++) arguments[count] = strdup(line);
    execv(path, arguments);
    REQUIRE(0, "execv");
}

static void set_up(void) {
    char path[PATH_BYTES_MAX], own[PATH_BYTES_MAX] = {0};
    snprintf(path, sizeof path, "%s", path_of("program"));
    REQUIRE(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
    if (strcmp(own, path) != 0) execute_copy(path);
    hash = hash_of_executable(&bytes);
    REQUIRE(unlink(path) == 0);
    put(path, OTHER, strlen(OTHER));
}

static void check(void) {
    size_t length;
    int status;
    REQUIRE(hash_of_executable(&length) == hash && length == bytes, "%zu bytes", length);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        setenv("ANSWER", "", 1);
        execl("/proc/self/exe", "program", NULL);
        _exit(1);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == ANSWER, "status %x", status);
}
