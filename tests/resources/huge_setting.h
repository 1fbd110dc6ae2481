/* A temporary change of the machine's number of huge pages. A guard process in its own session waits on a pipe for the
 * end of the change or of the process, and restores the number. The number is also in a file: if both processes are
 * killed, the next process that changes the number restores it first. Include this after a header that has REQUIRE. */
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE_SETTING "/proc/sys/vm/nr_hugepages"
#define HUGE_SETTING_BEFORE "/run/farfork-tests-nr_hugepages"

struct huge_setting {
    /* Locked until the guard ends. Without the lock, each of two concurrent changes would restore the number of the
     * other. */
    int file;
    int guards_pipe;
    pid_t guard;
    unsigned long before;
};

/* Writes the number at offset 0. The kernel ignores a write at another offset (proc_sys_kernel(5),
 * sysctl_writes_strict). */
static void huge_setting_write(int file, unsigned long pages) {
    char text[32];
    int length = snprintf(text, sizeof text, "%lu", pages);
    REQUIRE(pwrite(file, text, (size_t)length, 0) == length, "%s", HUGE_SETTING);
}

/* Reads a number. Returns whether the file has one. */
static int huge_setting_read(int file, unsigned long *pages) {
    char text[32] = "";
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    *pages = strtoul(text, NULL, 10);
    return length > 0;
}

/* Restores the number that a killed run has left. The file is empty if that run had not changed the number yet. */
static void huge_setting_put_back(int file) {
    unsigned long pages;
    int left = open(HUGE_SETTING_BEFORE, O_RDONLY | O_CLOEXEC);
    if (left < 0) return;
    if (huge_setting_read(left, &pages)) huge_setting_write(file, pages);
    REQUIRE(close(left) == 0 && unlink(HUGE_SETTING_BEFORE) == 0);
}

__attribute__((noreturn)) static void huge_setting_guard(int file, unsigned long before, const int ends[2]) {
    char byte;
    setsid();
    for (int fd = 0; fd < 3; fd++) close(fd);
    close(ends[1]);
    while (read(ends[0], &byte, 1) > 0) continue;
    huge_setting_write(file, before);
    unlink(HUGE_SETTING_BEFORE);
    _exit(0);
}

__attribute__((unused)) static struct huge_setting huge_setting_begin(void) {
    struct huge_setting setting = {.file = open(HUGE_SETTING, O_RDWR | O_CLOEXEC)};
    int ends[2];
    REQUIRE(setting.file >= 0 && flock(setting.file, LOCK_EX) == 0, "%s", HUGE_SETTING);
    huge_setting_put_back(setting.file);
    REQUIRE(huge_setting_read(setting.file, &setting.before));
    int left = open(HUGE_SETTING_BEFORE, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(left >= 0, "%s", HUGE_SETTING_BEFORE);
    huge_setting_write(left, setting.before);
    REQUIRE(close(left) == 0 && pipe2(ends, O_CLOEXEC) == 0 && (setting.guard = fork()) >= 0);
    if (setting.guard == 0) huge_setting_guard(setting.file, setting.before, ends);
    close(ends[0]);
    setting.guards_pipe = ends[1];
    return setting;
}

/* Sets the number to `pages` more than before the change. */
__attribute__((unused)) static void huge_setting_add(const struct huge_setting *setting, unsigned long pages) {
    huge_setting_write(setting->file, setting->before + pages);
}

__attribute__((unused)) static void huge_setting_end(struct huge_setting setting) {
    int status;
    close(setting.guards_pipe);
    REQUIRE(waitpid(setting.guard, &status, 0) == setting.guard && status == 0, "guard of %s: %x", HUGE_SETTING, status);
    REQUIRE(close(setting.file) == 0);
}
