/* A 32-bit program that sleeps. Built by `gcc -m32 -nostdlib -static`, because a machine may lack a 32-bit libc. */

struct timespec32 {
    int seconds, nanoseconds;
};

/* Calls nanosleep(2) by its 32-bit number. */
static int sleep_for(const struct timespec32 *time) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(162), "b"(time), "c"(0) : "memory");
    return result;
}

void _start(void) {
    struct timespec32 hour = {3600, 0};
    for (;;) sleep_for(&hour);
}
