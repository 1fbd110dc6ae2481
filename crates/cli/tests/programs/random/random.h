/* Functions for the parts of process.c: numbers that follow from the seed, and the statement that is being written.
 *
 * A statement is a list of lines that must be equal in parent and child. A word that begins with `~` is a number of
 * milliseconds that need only be close.
 */
#pragma once

#include "../forked.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define STATEMENT_BYTES_MAX (1UL << 20)
#define PATH_BYTES_MAX 256

static uint64_t drawn;                      /* index of the next random number; the seed sets its start */
static int is_child;
static const char *directory;               /* for the process's own files */
static char statement[STATEMENT_BYTES_MAX]; /* not on the heap: printing would change it */
static size_t statement_bytes;

static uint64_t draw(void) { return word_of(drawn++); }

static uint64_t below(uint64_t limit) { return draw() % limit; }

static int one_in(uint64_t count) { return below(count) == 0; }

#define ONE_OF(array) ((array)[below(sizeof(array) / sizeof *(array))])

__attribute__((format(printf, 1, 2))) static void state(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(statement + statement_bytes, STATEMENT_BYTES_MAX - statement_bytes, format, arguments);
    va_end(arguments);
    REQUIRE(bytes >= 0 && (size_t)bytes < STATEMENT_BYTES_MAX - statement_bytes, "the statement is too long");
    statement_bytes += (size_t)bytes;
}

/* Prints the statement, and starts a new one. */
static void say_statement(void) {
    for (size_t at = 0; at < statement_bytes;) {
        ssize_t written = write(STDOUT_FILENO, statement + at, statement_bytes - at);
        REQUIRE(written > 0 || errno == EINTR, "no process reads the output");
        if (written > 0) at += (size_t)written;
    }
    statement_bytes = 0;
}

/* Returns a new path for a file. */
static const char *new_path(void) {
    static char path[PATH_BYTES_MAX];
    static unsigned number;
    snprintf(path, sizeof path, "%s/file%u", directory, number++);
    return path;
}

static void fill_bytes(char *at, size_t bytes) {
    uint64_t first = draw();
    for (size_t i = 0; i < bytes; i++) at[i] = (char)(word_of(first + i / 8) >> i % 8 * 8);
}

/* Adds bytes to a hash (FNV-1a). */
static uint64_t add_to_hash(uint64_t hash, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

#define HASH_OF_NOTHING 0xcbf29ce484222325u

/* Reads a small file, and adds a final zero. */
static char *read_whole(const char *path) {
    static char text[1UL << 19];
    size_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0, "%s", path);
    for (ssize_t more; (more = read(fd, text + bytes, sizeof text - 1 - bytes)) > 0;) bytes += (size_t)more;
    REQUIRE(bytes < sizeof text - 1, "%s is too long", path);
    close(fd);
    text[bytes] = 0;
    return text;
}

/* States the lines of a file in /proc that begin with one of these words, in the order of the words. */
static void state_lines(const char *path, const char *const *words, size_t count) {
    for (char *save, *line = strtok_r(read_whole(path), "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        for (size_t i = 0; i < count; i++)
            if (strncmp(line, words[i], strlen(words[i])) == 0) state("%s\n", line);
}
