/* Registers of running threads: x87, SSE, AVX and, if the machine has it, AVX-512; rounding modes, flags, and both
 * segment bases.
 */
#include "../forked.h"

#include <asm/prctl.h>
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static atomic_int stop;
static atomic_uint started;

/* Keeps known values in sixteen 256-bit registers while it runs. */
__attribute__((target("avx2"))) static void *keep_avx(void *unused) {
    (void)unused;
    uint64_t put[64], got[64];
    fill(put, sizeof put, 2000);
    atomic_fetch_add(&started, 1);
    __asm__ volatile(
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu \\n*32(%[put]), %%ymm\\n\n .endr\n"
        WAIT_FOR_STOP
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu %%ymm\\n, \\n*32(%[got])\n .endr\n"
        "vzeroupper\n" ::[put] "r"(put),
        [got] "r"(got), WAIT_INPUTS
        : WAIT_CLOBBERS, "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12", "xmm13", "xmm14", "xmm15");
    REQUIRE(memcmp(put, got, sizeof put) == 0, "AVX registers changed");
    return NULL;
}

/* Keeps known values in low and high 512-bit registers and in mask registers. */
__attribute__((target("avx512f,avx512bw"))) static void *keep_avx512(void *unused) {
    (void)unused;
    uint64_t put[34], got[34];
    fill(put, sizeof put, 3000);
    atomic_fetch_add(&started, 1);
    __asm__ volatile("vmovdqu64 (%[put]), %%zmm0\n vmovdqu64 64(%[put]), %%zmm15\n"
                     "vmovdqu64 128(%[put]), %%zmm16\n vmovdqu64 192(%[put]), %%zmm31\n"
                     "kmovq 256(%[put]), %%k1\n kmovq 264(%[put]), %%k7\n"
                     WAIT_FOR_STOP
                     "vmovdqu64 %%zmm0, (%[got])\n vmovdqu64 %%zmm15, 64(%[got])\n"
                     "vmovdqu64 %%zmm16, 128(%[got])\n vmovdqu64 %%zmm31, 192(%[got])\n"
                     "kmovq %%k1, 256(%[got])\n kmovq %%k7, 264(%[got])\n vzeroupper\n" ::[put] "r"(put),
                     [got] "r"(got), WAIT_INPUTS
                     : WAIT_CLOBBERS, "xmm0", "xmm15", "xmm16", "xmm31", "k1", "k7");
    REQUIRE(memcmp(put, got, sizeof put) == 0, "AVX-512 registers changed");
    return NULL;
}

/* Keeps a rounding mode that is not the default, in x87 and in SSE, and a value on the x87 stack. */
static void *keep_floating_point(void *unused) {
    (void)unused;
    double put = 1.0 / 3.0, got = 0;
    fesetround(FE_UPWARD);
    atomic_fetch_add(&started, 1);
    __asm__ volatile("fldl (%[put])\n" WAIT_FOR_STOP "fstpl (%[got])\n" ::[put] "r"(&put), [got] "r"(&got), WAIT_INPUTS
                     : WAIT_CLOBBERS, "st");
    REQUIRE(got == put, "the x87 stack changed");
    REQUIRE(fegetround() == FE_UPWARD, "the rounding mode changed");
    volatile double one = 1.0, three = 3.0;
    REQUIRE(one / three * three >= 1.0 && -(-one / three) <= one / three);
    return NULL;
}

/* Keeps a known base of the segment GS, which programs may use. */
static void *keep_gs(void *unused) {
    (void)unused;
    static uint64_t target;
    target = word_of(77);
    REQUIRE(syscall(SYS_arch_prctl, ARCH_SET_GS, &target) == 0);
    atomic_fetch_add(&started, 1);
    while (!atomic_load(&stop)) usleep(1000);
    uint64_t found;
    __asm__ volatile("movq %%gs:0, %0" : "=r"(found));
    REQUIRE(found == word_of(77), "the base of GS changed");
    return NULL;
}

int main(void) {
    void *(*bodies[4])(void *) = {keep_floating_point, keep_gs};
    unsigned count = 2;
    if (__builtin_cpu_supports("avx2")) bodies[count++] = keep_avx;
    if (__builtin_cpu_supports("avx512bw")) bodies[count++] = keep_avx512;
    pthread_t threads[4];
    for (unsigned i = 0; i < count; i++) REQUIRE(pthread_create(&threads[i], NULL, bodies[i], NULL) == 0);
    while (atomic_load(&started) < count) usleep(100);

    char payload[PAYLOAD_BYTES_MAX];
    ready(0);
    await_fork(payload);

    atomic_store(&stop, 1);
    for (unsigned i = 0; i < count; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    finish(payload, 0);
}
