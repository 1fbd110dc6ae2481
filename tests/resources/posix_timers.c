/* POSIX timers: ids with a gap, remaining times, intervals, values; one that signals a certain thread, one that signals a
 * thread that has ended, two that count the CPU time of one thread each, and more than the kernel lists at once. */
#include "resource.h"
#include "time_left.h"

#define MANY 200
#define VALUE ((void *)0x123456789abcdef0)

static int many[MANY];
static int far_off, gap, to_thread, to_ended, silent, own_work, others_work;
static volatile pid_t ended;
static volatile pid_t listener;
static volatile int go_on, told;
static pthread_t thread;

static int create(clockid_t clock, struct sigevent *event) {
    int id = -1;
    REQUIRE(syscall(SYS_timer_create, clock, event, &id) == 0);
    return id;
}

static void arm(int id, long seconds, long nanoseconds, long interval_s) {
    struct itimerspec when = {.it_interval = {.tv_sec = interval_s}, .it_value = {.tv_sec = seconds, .tv_nsec = nanoseconds}};
    REQUIRE(syscall(SYS_timer_settime, id, 0, &when, NULL) == 0, "timer %d", id);
}

static void *listen_for_timer(void *unused) {
    listener = gettid();
    siginfo_t info = take(SIGRTMIN + 2);
    REQUIRE(info.si_code == SI_TIMER && info.si_timerid == to_thread && gettid() == listener);
    told = 1;
    return unused;
}

static void *end_when_told(void *unused) {
    ended = gettid();
    while (!go_on) usleep(1000);
    return unused;
}

static clockid_t clock_of(pthread_t whose) {
    clockid_t clock;
    REQUIRE(pthread_getcpuclockid(whose, &clock) == 0);
    return clock;
}

static void set_up(void) {
    block(SIGRTMIN + 1);
    block(SIGRTMIN + 3);
    block(SIGRTMIN + 2);
    begin_arming();
    struct sigevent valued = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1, .sigev_value = {.sival_ptr = VALUE}};
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    far_off = create(CLOCK_MONOTONIC, &valued);
    gap = create(CLOCK_REALTIME, &none);
    silent = create(CLOCK_BOOTTIME, &none);
    REQUIRE(syscall(SYS_timer_delete, gap) == 0);
    REQUIRE(pthread_create(&thread, NULL, listen_for_timer, NULL) == 0 && COMES_TRUE(listener != 0));
    struct sigevent thread_event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 2};
    thread_event._sigev_un._tid = listener;
    to_thread = create(CLOCK_REALTIME, &thread_event);
    pthread_t ending;
    REQUIRE(pthread_create(&ending, NULL, end_when_told, NULL) == 0 && COMES_TRUE(ended != 0));
    struct sigevent ended_event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 3};
    ended_event._sigev_un._tid = ended;
    to_ended = create(CLOCK_MONOTONIC, &ended_event);
    go_on = 1;
    REQUIRE(pthread_join(ending, NULL) == 0);
    struct sigevent worked = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3};
    own_work = create(clock_of(pthread_self()), &worked);
    others_work = create(clock_of(thread), &worked);
    for (int i = 0; i < MANY; i++) {
        many[i] = create(CLOCK_MONOTONIC, &none);
        arm(many[i], 1000 + i, 0, 0);
    }
    arm(others_work, 500, 0, 7);
    arm(far_off, 3600, 0, 9);
    arm(silent, 1000, 0, 0);
    arm(to_ended, 1000, 0, 0);
    end_arming();
}

static long left_s(int id, long *interval_s) {
    struct itimerspec now;
    REQUIRE(syscall(SYS_timer_gettime, id, &now) == 0, "timer %d is gone", id);
    *interval_s = now.it_interval.tv_sec;
    return now.it_value.tv_sec;
}

static void check(void) {
    long interval_s;
    begin_asking();
    long left = left_s(far_off, &interval_s);
    REQUIRE(interval_s == 9 && may_be_left(left, 3600, 2), "%ld s left, every %ld", left, interval_s);
    begin_asking();
    left = left_s(silent, &interval_s);
    REQUIRE(interval_s == 0 && may_be_left(left, 1000, 2), "%ld s left", left);
    REQUIRE(left_s(to_thread, &interval_s) == 0);
    begin_asking();
    left = left_s(to_ended, &interval_s);
    REQUIRE(interval_s == 0 && may_be_left(left, 1000, 2), "%ld s left", left);
    left = left_s(others_work, &interval_s);
    REQUIRE(interval_s == 7 && left >= 490 && left <= 500, "%ld s of work left, every %ld", left, interval_s);
    REQUIRE(left_s(own_work, &interval_s) == 0 && interval_s == 0);
    for (int i = 0; i < MANY; i++) {
        begin_asking();
        left = left_s(many[i], &interval_s);
        REQUIRE(interval_s == 0 && may_be_left(left, 1000 + i, 2), "timer %d: %ld s left", many[i], left);
    }
    struct itimerspec none;
    REQUIRE(syscall(SYS_timer_gettime, gap, &none) == -1 && errno == EINVAL, "a deleted timer exists");
    arm(far_off, 0, 1000000, 0);
    siginfo_t info = take(SIGRTMIN + 1);
    REQUIRE(info.si_code == SI_TIMER && info.si_timerid == far_off && info.si_value.sival_ptr == VALUE);
    /* This timer counts only the CPU time of this thread. */
    uint64_t worked_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    arm(own_work, 0, 30000000, 0);
    sigset_t pending;
    do REQUIRE(sigpending(&pending) == 0 && now_ns(CLOCK_THREAD_CPUTIME_ID) - worked_ns < 5000000000, "work is not counted");
    while (!sigismember(&pending, SIGRTMIN + 3));
    REQUIRE(now_ns(CLOCK_THREAD_CPUTIME_ID) - worked_ns >= 30000000, "the CPU time of other threads is counted");
    info = take(SIGRTMIN + 3);
    REQUIRE(info.si_code == SI_TIMER && info.si_timerid == own_work);
    REQUIRE(syscall(SYS_timer_delete, silent) == 0 && syscall(SYS_timer_gettime, silent, &none) == -1 && errno == EINVAL);
    arm(to_thread, 0, 1000000, 0);
    REQUIRE(pthread_join(thread, NULL) == 0 && told);
}
