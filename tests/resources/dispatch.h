/* Syscall User Dispatch (prctl(2)), with a selector byte for each thread. */
#pragma once

#include "resource.h"

#include <sys/prctl.h>
#include <ucontext.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static __thread volatile char selector;
static __thread volatile int dispatched_number;

static void on_dispatch(int signal, siginfo_t *info, void *context) {
    (void)signal;
    selector = 0;
    dispatched_number = info->si_syscall;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4711;
}

/* Turns the thread's calls into SIGSYS while its selector is 1. */
static void dispatch_calls(void) {
    struct sigaction action = {.sa_sigaction = on_dispatch, .sa_flags = SA_SIGINFO};
    REQUIRE(sigaction(SIGSYS, &action, NULL) == 0);
    REQUIRE(prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector) == 0);
}

/* Whether a blocked call raises SIGSYS instead of being executed. */
static int is_call_dispatched(void) {
    long result;
    dispatched_number = 0;
    selector = 1;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getppid) : "rcx", "r11", "memory");
    selector = 0;
    return result == 4711 && dispatched_number == SYS_getppid;
}
