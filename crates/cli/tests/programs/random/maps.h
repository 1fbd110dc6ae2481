/* States the address space in a form that does not depend on its history. Equal neighbours count as one mapping. The
 * file of private memory is omitted, because written pages of a private file mapping are anonymous in a child.
 */
#pragma once

#include "memory.h"

/* The address range of the restorer in a child. Its code and one page for each thread stay mapped. */
#define RESTORERS 0x1ff000000000UL
#define RESTORERS_END 0x200000000000UL

struct mapping {
    uint64_t start, end;
    char kind[512];
};

/* Flags that a program can give a mapping, by their names in proc_pid_smaps(5). */
static const char *const told_flags[] = {"gd", "lo", "sr", "rr", "dc", "dd", "hg", "nh", "mg", "wf"};

static void read_mapping(const char *line, struct mapping *mapping, int *is_kernels) {
    char protection[8], path[300] = "";
    uint64_t offset;
    int fields = sscanf(line, "%lx-%lx %7s %lx %*s %*s %299[^\n]", &mapping->start, &mapping->end, protection, &offset, path);
    REQUIRE(fields >= 4, "%s", line);
    *is_kernels = strcmp(path, "[vvar]") == 0 || strcmp(path, "[vvar_vclock]") == 0 || strcmp(path, "[vsyscall]") == 0;
    const char *name = path[0] == '[' ? path : strstr(path, " (deleted)") || !path[0] ? "deleted" : path;
    if (protection[3] == 'p' && path[0] != '[') name = "";
    snprintf(mapping->kind, sizeof mapping->kind, "%s %s", protection, name);
    /* The kernel grows the stack on demand, so its size differs from process to process. */
    if (strcmp(path, "[stack]") == 0) mapping->start = mapping->end - PAGE_BYTES;
}

static void add_flags(const char *line, struct mapping *mapping) {
    for (size_t i = 0; i < sizeof told_flags / sizeof *told_flags; i++) {
        char word[8];
        snprintf(word, sizeof word, " %s", told_flags[i]);
        if (strstr(line, word)) strncat(mapping->kind, word, sizeof mapping->kind - strlen(mapping->kind) - 1);
    }
}

static void state_mapping(const struct mapping *mapping) {
    if (mapping->end) state("mapping %lx-%lx %s\n", mapping->start, mapping->end, mapping->kind);
}

/* Adds a mapping, unless it may differ in a child; merges equal neighbours. */
static void add_mapping(struct mapping *last, struct mapping *next) {
    if (is_child && next->start >= RESTORERS && next->end <= RESTORERS_END) return;
    for (size_t i = 0; i < areas_count; i++) {
        uint64_t absent = (uintptr_t)areas[i].absent, absent_end = (uintptr_t)areas[i].absent_end;
        if (next->start >= absent && next->end <= absent_end) return;
    }
    if (last->end == next->start && strcmp(last->kind, next->kind) == 0) {
        last->end = next->end;
        return;
    }
    state_mapping(last);
    *last = *next;
}

static void state_mappings(void) {
    struct mapping last = {0}, next = {0};
    int is_kernels = 1;
    char *save, *line = strtok_r(read_whole("/proc/self/smaps"), "\n", &save);
    for (; line; line = strtok_r(NULL, "\n", &save)) {
        unsigned long start, end;
        if (strncmp(line, "VmFlags:", 8) == 0) {
            add_flags(line, &next);
            if (!is_kernels) add_mapping(&last, &next);
        } else if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            read_mapping(line, &next, &is_kernels);
    }
    state_mapping(&last);
}
