/*
 * A program with paged memory. It maps an area, registers it with a userfaultfd, and sends the userfaultfd to the pager
 * over its standard input (a Unix socket). Then it does one of the things that programs do to their memory, and checks
 * every byte. It exits with 0 if all was right, else with 1 and a line on standard error.
 *
 *	program SCENARIO PAGES
 *
 * Page p of the area holds data unless the last octal digit of p is 7 or p lies in HOLE; seed.rs has the same contents.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define WORDS (PAGE / 8)
#define AREA ((uint8_t *)0x200000000000)
#define HOLE_FIRST 256
#define HOLE_END 384
#define ELSEWHERE 0x100000000

static unsigned long pages;

#define FAIL(...)                                                                                                      \
	do {                                                                                                           \
		fprintf(stderr, __VA_ARGS__);                                                                          \
		fprintf(stderr, "\n");                                                                                 \
		exit(1);                                                                                               \
	} while (0)
#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what))                                                                                           \
			FAIL("%s:%d: %s: %s", __FILE__, __LINE__, #what, strerror(errno));                             \
	} while (0)

/* ---- what the memory holds ---- */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static int is_populated(unsigned long page)
{
	return page % 8 != 7 && !(page >= HOLE_FIRST && page < HOLE_END);
}

static uint64_t expected(unsigned long page, unsigned long word)
{
	return is_populated(page) ? mix(page * WORDS + word) : 0;
}

static void check_page(const uint8_t *at, unsigned long page)
{
	const volatile uint64_t *words = (const volatile uint64_t *)at;
	for (unsigned long word = 0; word < WORDS; word++)
		if (words[word] != expected(page, word))
			FAIL("page %lu at %p, word %lu: %lx, not %lx", page, (void *)at, word, (long)words[word],
			     (long)expected(page, word));
}

static void check_pages(const uint8_t *at, unsigned long first, unsigned long count)
{
	for (unsigned long index = 0; index < count; index++)
		check_page(at + index * PAGE, first + index);
}

static void check_zeroes(const uint8_t *at, unsigned long count)
{
	const volatile uint64_t *words = (const volatile uint64_t *)at;
	for (unsigned long word = 0; word < count * WORDS; word++)
		if (words[word])
			FAIL("%p: %lx, not zero", (void *)&words[word], (long)words[word]);
}

static unsigned long *shuffled(unsigned long count, uint64_t seed)
{
	unsigned long *order = malloc(count * sizeof *order);
	for (unsigned long index = 0; index < count; index++)
		order[index] = index;
	for (unsigned long index = count - 1; index > 0; index--) {
		unsigned long other = (seed = mix(seed)) % (index + 1), kept = order[index];
		order[index] = order[other];
		order[other] = kept;
	}
	return order;
}

static void check_shuffled(const uint8_t *at, unsigned long first, unsigned long count, uint64_t seed, useconds_t pause)
{
	unsigned long *order = shuffled(count, seed);
	for (unsigned long index = 0; index < count; index++) {
		check_page(at + order[index] * PAGE, first + order[index]);
		if (pause)
			usleep(pause);
	}
	free(order);
}

/* ---- becoming a paged process ---- */

static void pass(int fd)
{
	char byte = 'u', control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec vector = {&byte, 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	CHECK(sendmsg(0, &message, MSG_NOSIGNAL) == 1);
}

static void page_area(int flags)
{
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	CHECK(uffd >= 0);
	struct uffdio_api api = {UFFD_API, UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_THREAD_ID, 0};
	CHECK(!ioctl(uffd, UFFDIO_API, &api));
	flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	CHECK(mmap(AREA, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == AREA);
	struct uffdio_register area = {{(uint64_t)AREA, pages * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
	CHECK(!ioctl(uffd, UFFDIO_REGISTER, &area));
	pass(uffd);
	close(uffd);
}

/* Reports to the test that the program has reached this point, and waits until it may continue. */
static void rendezvous(void)
{
	char byte;
	CHECK(write(1, "+", 1) == 1);
	CHECK(read(1, &byte, 1) == 1);
}

static void wait_child(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		FAIL("process %d: status %x", pid, status);
}

/* ---- the scenarios ---- */

static void touch_at_random(void)
{
	check_shuffled(AREA, 0, pages, 1, 0);
	check_pages(AREA, 0, pages);
}

static void touch_slowly(void)
{
	check_shuffled(AREA, 0, pages, 2, 1000);
}

/* Touches one page in twenty, at random. */
static void touch_sparsely(void)
{
	unsigned long *order = shuffled(pages, 21);
	for (unsigned long index = 0; index < pages / 20; index++)
		check_page(AREA + order[index] * PAGE, order[index]);
	free(order);
	rendezvous();
}

/* Waits before its first touch. */
static void pause_then_touch_sparsely(void)
{
	rendezvous();
	touch_sparsely();
}

static void touch_in_order(void)
{
	check_pages(AREA, 0, pages / 2);
	for (unsigned long page = pages; page-- > pages / 2;)
		check_page(AREA + page * PAGE, page);
}

static void discard(void)
{
	unsigned long quarter = pages / 4;
	check_shuffled(AREA, 0, quarter / 2, 3, 0);
	CHECK(!madvise(AREA, quarter * PAGE, MADV_DONTNEED));
	check_zeroes(AREA, quarter);
	AREA[5] = 1;
	CHECK(!madvise(AREA, PAGE, MADV_DONTNEED));
	check_zeroes(AREA, 1);
	check_pages(AREA + quarter * PAGE, quarter, quarter);
	/* After MADV_FREE a page has its old contents, or zeroes. Later writes stay. */
	uint8_t *freed = AREA + 2 * quarter * PAGE;
	check_pages(freed, 2 * quarter, quarter / 2);
	CHECK(!madvise(freed, quarter * PAGE, MADV_FREE));
	for (unsigned long index = 0; index < quarter; index++) {
		volatile uint64_t *word = (volatile uint64_t *)(freed + index * PAGE);
		uint64_t was = *word;
		if (was && was != expected(2 * quarter + index, 0))
			FAIL("freed page %lu: %lx", index, (long)was);
		*word = index;
	}
	for (unsigned long index = 0; index < quarter; index++)
		CHECK(*(uint64_t *)(freed + index * PAGE) == index);
	check_shuffled(AREA + 3 * quarter * PAGE, 3 * quarter, quarter, 4, 0);
}

static void unmap(void)
{
	unsigned long quarter = pages / 4;
	uint8_t *middle = AREA + quarter * PAGE;
	check_shuffled(AREA, 0, quarter, 5, 0);
	check_page(middle, quarter);
	CHECK(!munmap(middle, quarter * PAGE));
	CHECK(mmap(middle, quarter * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == middle);
	check_zeroes(middle, quarter);
	memset(middle, 1, quarter * PAGE);
	/* Mapping over memory unmaps it, too. */
	uint8_t *over = AREA + 2 * quarter * PAGE;
	CHECK(mmap(over, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == over);
	check_zeroes(over, 3);
	check_shuffled(over + 3 * PAGE, 2 * quarter + 3, 2 * quarter - 3, 6, 0);
}

static void remap(void)
{
	unsigned long quarter = pages / 4, bytes = quarter * PAGE;
	/* Move and grow the first quarter, with half of it fetched before. */
	check_shuffled(AREA, 0, quarter / 2, 7, 0);
	uint8_t *grown = mremap(AREA, bytes, bytes + 100 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, AREA + 0x100000000);
	CHECK(grown == AREA + 0x100000000);
	check_shuffled(grown, 0, quarter, 8, 0);
	check_zeroes(grown + bytes, 100);
	/* Move a part of the area onto another part. */
	uint8_t *second = AREA + bytes, *third = AREA + 2 * bytes;
	check_page(second + 5 * PAGE, quarter + 5);
	CHECK(mremap(second, 20 * PAGE, 20 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, third + 10 * PAGE) == third + 10 * PAGE);
	check_pages(third + 10 * PAGE, quarter, 20);
	check_pages(third, 2 * quarter, 10);
	check_shuffled(third + 30 * PAGE, 2 * quarter + 30, quarter - 30, 9, 0);
	check_shuffled(second + 20 * PAGE, quarter + 20, quarter - 20, 10, 0);
	/* Move the pages, and leave the mapping (MREMAP_DONTUNMAP). */
	uint8_t *fourth = AREA + 3 * bytes, *elsewhere = AREA + 0x200000000;
	check_page(fourth, 3 * quarter);
	CHECK(mremap(fourth, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, elsewhere) == elsewhere);
	check_zeroes(fourth, quarter);
	check_shuffled(elsewhere, 3 * quarter, quarter, 11, 0);
	/* Move the first quarter back: it has the same contents. Then shrink it. */
	check_pages(grown, 0, quarter);
	CHECK(mremap(grown, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, AREA) == AREA);
	check_pages(AREA, 0, quarter);
	CHECK(mremap(AREA, bytes, 10 * PAGE, 0) == AREA);
	check_pages(AREA, 0, 10);
}

/* Moves the area away and back until *stop is set. No page can be installed during a move, so the thread pauses between
 * moves. */
static void *move_thread(void *stop)
{
	uint8_t *elsewhere = AREA + ELSEWHERE;
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
		CHECK(mremap(AREA, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
		CHECK(mremap(elsewhere, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, AREA) == AREA);
		usleep(50);
	}
	return 0;
}

static long now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pin_to(unsigned long processor)
{
	cpu_set_t only;
	CPU_ZERO(&only);
	CPU_SET(processor, &only);
	CHECK(!sched_setaffinity(0, sizeof only, &only));
}

static unsigned long last_processor(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN) - 1;
}

/* Touches half of the area while it is moved again and again. It uses system calls, which fail while the
 * area is elsewhere. */
static void touch_what_moves(void)
{
	int ends[2], stop = 0;
	char byte;
	pthread_t mover;
	CHECK(!pipe(ends));
	CHECK(!pthread_create(&mover, 0, move_thread, &stop));
	unsigned long *order = shuffled(pages, 31);
	for (unsigned long index = 0; index < pages / 2; index++) {
		uint8_t *page = AREA + order[index] * PAGE;
		while (write(ends[1], page, 1) != 1 && write(ends[1], page + ELSEWHERE, 1) != 1)
			CHECK(errno == EFAULT);
		CHECK(read(ends[0], &byte, 1) == 1);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	CHECK(!pthread_join(mover, 0));
	check_pages(AREA, 0, pages);
}

static int is_over;

/* A disturbing thread ends after this time, even if another thread hangs. */
#define DISTURBED_NS 6000000000
/* The kernel kills the program if a disturber runs for this long without a sleep. It spins for less than half a
 * millisecond. */
#define REAL_TIME_US_MAX 200000

/* Preempts the threads that are pinned to a processor, at unpredictable times. It runs on one processor at a time, the
 * first or the last, so that other processors stay free. */
static void *disturb_thread(void *unused)
{
	uint64_t draw = 1;
	long end = now_ns() + DISTURBED_NS;
	struct rlimit limit = {REAL_TIME_US_MAX, REAL_TIME_US_MAX};
	struct sched_param first = {.sched_priority = 1};
	(void)unused;
	CHECK(!setrlimit(RLIMIT_RTTIME, &limit));
	CHECK(!pthread_setschedparam(pthread_self(), SCHED_FIFO, &first));
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED) && now_ns() < end) {
		struct timespec pause = {0, 5000 + (draw = mix(draw)) % 60000};
		nanosleep(&pause, 0);
		pin_to(draw >> 20 & 1 ? last_processor() : 0);
		for (long until = now_ns() + 100000 + (draw >> 32) % 300000; now_ns() < until;)
			;
	}
	return 0;
}

static void *restless_thread(void *unused)
{
	uint8_t *elsewhere = AREA + ELSEWHERE;
	(void)unused;
	pin_to(last_processor());
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		CHECK(mremap(AREA, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
		CHECK(mremap(elsewhere, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, AREA) == AREA);
	}
	return 0;
}

/* Returns whether memory is mapped, by a system call that would fail with EFAULT. */
static int is_mapped(uint8_t *at)
{
	int ends[2];
	CHECK(!pipe(ends));
	int is = write(ends[1], at, 1) == 1;
	CHECK(is || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return is;
}

/* Forks while another thread moves the area. Each forked process has the area at one of the two addresses, with all
 * contents. */
static void fork_what_moves(void)
{
	pthread_t threads[2];
	CHECK(!pthread_create(&threads[0], 0, restless_thread, 0));
	CHECK(!pthread_create(&threads[1], 0, disturb_thread, 0));
	pin_to(0);
	int wrong = 0;
	/* On a busy machine, this does fewer rounds, to disturb other tests less. */
	long end = now_ns() + 5000000000;
	for (int round = 0; round < 150 && now_ns() < end; round++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			unsigned long page = mix(round) % (HOLE_FIRST / 8) * 8;
			check_page(is_mapped(AREA + page * PAGE) ? AREA + page * PAGE : AREA + ELSEWHERE + page * PAGE, page);
			_exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid);
		wrong += !!status;
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	for (int index = 0; index < 2; index++)
		CHECK(!pthread_join(threads[index], 0));
	if (wrong)
		FAIL("%d forked processes were wrong", wrong);
}

/* ---- ranges that one thread leaves and another one moves into at once ---- */

#define BLOCK (HOLE_FIRST * PAGE)
#define LEFT (AREA + HOLE_END * PAGE)
#define LEFT_FIRST HOLE_END
#define GIVEN_AWAY (HOLE_END + HOLE_FIRST)
#define BESIDE (AREA + 2 * ELSEWHERE)
/* Number of mappings in a range, so that the kernel takes long to unmap it. */
#define SMALL_AREAS 8000UL

/* How a thread vacates a range. */
enum leaving {
	BY_MOVE,
	/* Moves the range onto paged memory: the kernel first reports the unmap of the target. */
	BY_MOVE_ONTO,
	BY_UNMAP,
};

static uint8_t *left_block;
static unsigned long left_bytes;
static int leaving = -1;

static void *leave_thread(void *unused)
{
	(void)unused;
	pin_to(last_processor());
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		int how = __atomic_load_n(&leaving, __ATOMIC_ACQUIRE);
		if (how == BY_UNMAP)
			CHECK(!munmap(left_block, left_bytes));
		else if (how >= 0)
			CHECK(mremap(left_block, left_bytes, left_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, BESIDE) == BESIDE);
		if (how >= 0)
			__atomic_store_n(&leaving, -1, __ATOMIC_RELEASE);
		else
			sched_yield();
	}
	return 0;
}

/* Makes the other thread vacate a range. Returns as soon as nothing is mapped in the range. */
static void have_left(uint8_t *block, unsigned long bytes, enum leaving how)
{
	unsigned char here;
	left_block = block;
	left_bytes = bytes;
	__atomic_store_n(&leaving, how, __ATOMIC_RELEASE);
	while (!mincore(block, PAGE, &here))
		;
}

static void wait_until_it_has_left(void)
{
	while (__atomic_load_n(&leaving, __ATOMIC_ACQUIRE) >= 0)
		sched_yield();
}

static void move_to(uint8_t *from, uint8_t *to, int flags)
{
	CHECK(mremap(from, BLOCK, BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to) == to);
}

/* Moves a block away, and at once moves another block to its range. */
static void reuse_after_move(unsigned long page, enum leaving how)
{
	if (how == BY_MOVE_ONTO)
		CHECK(mremap(AREA + HOLE_FIRST * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, BESIDE) == BESIDE);
	have_left(LEFT, BLOCK, how);
	move_to(AREA, LEFT, 0);
	wait_until_it_has_left();
	check_page(LEFT + page * PAGE, page);
	check_page(BESIDE + page * PAGE, LEFT_FIRST + page);
	move_to(LEFT, AREA, 0);
	move_to(BESIDE, LEFT, 0);
}

/* Unmaps a large block, one page of which is paged, and grows another block, which the kernel moves to the free
 * range. */
static int reuse_after_unmapping(unsigned long page)
{
	unsigned long bytes = SMALL_AREAS * PAGE;
	uint8_t *large = mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(large != MAP_FAILED);
	for (unsigned long area = 0; area < SMALL_AREAS; area += 2)
		CHECK(!mprotect(large + area * PAGE, PAGE, PROT_READ));
	uint8_t *paged = large + bytes - BLOCK / 2;
	CHECK(mremap(AREA + (GIVEN_AWAY + page) * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, paged) == paged);
	have_left(large, bytes, BY_UNMAP);
	uint8_t *grown = mremap(AREA, BLOCK, BLOCK + PAGE, MREMAP_MAYMOVE);
	CHECK(grown != MAP_FAILED);
	wait_until_it_has_left();
	check_page(grown + page * PAGE, page);
	CHECK(mremap(grown, BLOCK + PAGE, BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, AREA) == AREA);
	return grown >= large && grown < large + bytes;
}

static void reuse_what_was_left(void)
{
	pthread_t thread;
	int reused = 0;
	CHECK(!pthread_create(&thread, 0, leave_thread, 0));
	pin_to(0);
	for (unsigned long page = 0; page < HOLE_FIRST; page++) {
		/* These take longer. */
		if (page % 16 == 3)
			reused += reuse_after_unmapping(page);
		else
			reuse_after_move(page, page % 4 == 2 ? BY_MOVE_ONTO : BY_MOVE);
	}
	CHECK(reused > 0);
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	CHECK(!pthread_join(thread, 0));
}

static void fork_and_check(void)
{
	check_shuffled(AREA, 0, pages / 3, 12, 0);
	((volatile uint64_t *)AREA)[0] = 77;
	pid_t first = fork();
	CHECK(first >= 0);
	if (!first) {
		CHECK(((volatile uint64_t *)AREA)[0] == 77);
		pid_t inner = fork();
		CHECK(inner >= 0);
		check_shuffled(AREA + PAGE, 1, pages - 1, 13, 0);
		if (inner)
			wait_child(inner);
		exit(0);
	}
	((volatile uint64_t *)AREA)[0] = 78;
	CHECK(!munmap(AREA + 10 * PAGE, 5 * PAGE));
	check_shuffled(AREA + 15 * PAGE, 15, pages - 15, 14, 0);
	wait_child(first);
	for (int round = 0; round < 50; round++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			check_page(AREA + (20 + round) * PAGE, 20 + round);
			exit(0);
		}
		wait_child(pid);
	}
}

/* In a descendant: touches pages that no earlier process has touched, forks descendants, and touches more pages. */
static void descend(uint64_t draw, int generation)
{
	pid_t inner[2];
	for (int index = 0; index < 2; index++) {
		draw = mix(draw + index);
		check_page(AREA + draw % pages * PAGE, draw % pages);
		inner[index] = generation < 3 ? fork() : -1;
		CHECK(generation >= 3 || inner[index] >= 0);
		if (!inner[index]) {
			descend(draw, generation + 1);
			exit(0);
		}
	}
	for (int index = 0; index < 2; index++) {
		draw = mix(draw + index);
		check_page(AREA + draw % pages * PAGE, draw % pages);
	}
	for (int index = 0; index < 2; index++)
		if (inner[index] > 0)
			wait_child(inner[index]);
}

/* Three generations of processes exist before the test kills anything, and touch memory afterwards. Their forks touch
 * more. */
static void descend_then_touch(void)
{
	int ends[2];
	CHECK(!pipe(ends));
	pid_t first = fork();
	CHECK(first >= 0);
	if (!first) {
		pid_t second = fork();
		CHECK(second >= 0);
		char word;
		CHECK(read(ends[0], &word, 1) == 1);
		check_shuffled(AREA, 0, pages / 2, 51 + !second, 0);
		CHECK(read(ends[0], &word, 1) == 1);
		pid_t last = fork();
		CHECK(last >= 0);
		check_shuffled(AREA, 0, pages, 53 + !second, 0);
		if (last)
			wait_child(last);
		if (second && last)
			wait_child(second);
		exit(0);
	}
	rendezvous();
	CHECK(write(ends[1], "xx", 2) == 2);
	check_shuffled(AREA, 0, pages / 3, 50, 0);
	rendezvous();
	CHECK(write(ends[1], "xx", 2) == 2);
	wait_child(first);
	check_shuffled(AREA, 0, pages, 55, 0);
}

/* Touches nothing itself, like a zygote, so that all pages are missing in its descendants. Prints the number of
 * rounds. */
static void descend_until_told(void)
{
	uint64_t rounds = 0;
	char word;
	rendezvous();
	while (recv(STDOUT_FILENO, &word, 1, MSG_DONTWAIT) != 1) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			descend(mix(rounds ^ (uint64_t)getpid() << 32), 0);
			exit(0);
		}
		rounds++;
		wait_child(pid);
	}
	dprintf(STDOUT_FILENO, "%lu\n", (unsigned long)rounds);
}

/* Touches nothing itself, like a zygote. Each process that it forks, a copy, becomes a separate child, along with the
 * processes that the copy forks before the test transfers it. */
static void bear_copies(void)
{
	for (int round = 0; round < 5; round++) {
		rendezvous();
		int ends[2];
		CHECK(!pipe(ends));
		pid_t copy = fork();
		CHECK(copy >= 0);
		if (!copy) {
			/* The first copies touch pages only after their transfer, so that all of these faults count for
			 * them. */
			char word;
			CHECK(round >= 3 || read(ends[0], &word, 1) == 1);
			pid_t inner = fork();
			CHECK(inner >= 0);
			if (inner)
				CHECK(!munmap(AREA + 10 * PAGE, 5 * PAGE));
			check_shuffled(AREA + 15 * PAGE, 15, pages - 15, 30 + round, inner ? 0 : 20);
			if (inner)
				wait_child(inner);
			exit(0);
		}
		rendezvous();
		CHECK(write(ends[1], "", 1) == 1);
		CHECK(!close(ends[0]) && !close(ends[1]));
		wait_child(copy);
	}
}

static void protect(void)
{
	for (unsigned long page = 0; page < pages; page += 4)
		CHECK(!mprotect(AREA + page * PAGE, PAGE, page % 8 ? PROT_READ : PROT_NONE));
	for (unsigned long page = 0; page < pages; page++)
		if (page % 8)
			check_page(AREA + page * PAGE, page);
	CHECK(!mprotect(AREA, pages * PAGE, PROT_READ | PROT_WRITE));
	check_shuffled(AREA, 0, pages, 15, 0);
	memset(AREA, 3, pages * PAGE);
}

static void system_calls(void)
{
	int ends[2];
	CHECK(!pipe(ends));
	uint8_t *copy = malloc(2 * PAGE);
	for (unsigned long page = 0; page + 1 < pages; page += 5) {
		CHECK(write(ends[1], AREA + page * PAGE, 2 * PAGE) == 2 * (long)PAGE);
		CHECK(read(ends[0], copy, 2 * PAGE) == 2 * (long)PAGE);
		check_pages(copy, page, 2);
	}
	/* read(2) into the middle of a missing page: the rest of the page has the seed's contents. */
	for (unsigned long page = 3; page < pages; page += 5) {
		uint64_t words[4] = {1, 2, 3, 4}, *into = (uint64_t *)(AREA + page * PAGE) + 100;
		CHECK(write(ends[1], words, sizeof words) == sizeof words);
		CHECK(read(ends[0], into, sizeof words) == sizeof words);
		for (unsigned long word = 0; word < 4; word++) {
			CHECK(into[word] == words[word]);
			into[word] = expected(page, 100 + word);
		}
		check_page(AREA + page * PAGE, page);
	}
}

static void *check_thread(void *seed)
{
	check_shuffled(AREA, 0, pages / 2, (uint64_t)seed, 200);
	return 0;
}

static void *shift_thread(void *which)
{
	unsigned long count = pages / 32 * 2, bytes = count * PAGE;
	unsigned long first = pages / 2 + (unsigned long)which * count;
	uint8_t *here = AREA + first * PAGE, *there = AREA + 0x400000000 + first * PAGE;
	for (int round = 0; round < 20; round++) {
		check_page(here + round * PAGE, first + round);
		CHECK(mremap(here, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
		check_page(there + (round + 1) * PAGE, first + round + 1);
		CHECK(mremap(there, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, here) == here);
		usleep(500);
	}
	check_shuffled(here, first, count, 16, 0);
	for (int round = 0; round < 100; round++) {
		CHECK(!madvise(here, bytes / 2, MADV_DONTNEED));
		check_zeroes(here, round % 10 + 1);
		memset(here, round, (round % 10 + 1) * PAGE);
	}
	check_pages(here + bytes / 2, first + count / 2, count / 2);
	return 0;
}

static void *fork_thread(void *unused)
{
	(void)unused;
	for (int round = 0; round < 20; round++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			check_shuffled(AREA, 0, 64, round, 0);
			_exit(0);
		}
		wait_child(pid);
	}
	return 0;
}

/* Does all kinds of changes at the same time, in several threads. */
static void chaos(void)
{
	pthread_t threads[9];
	for (long index = 0; index < 4; index++)
		CHECK(!pthread_create(&threads[index], 0, check_thread, (void *)(index + 20)));
	for (long index = 0; index < 4; index++)
		CHECK(!pthread_create(&threads[4 + index], 0, shift_thread, (void *)index));
	CHECK(!pthread_create(&threads[8], 0, fork_thread, 0));
	for (int index = 0; index < 9; index++)
		CHECK(!pthread_join(threads[index], 0));
}

static void grow_stack(void)
{
	/* Touches a page below a MAP_GROWSDOWN mapping, again and again: the mapping grows, and the new pages are
	 * zeroes. */
	struct rlimit limit = {1 << 30, 1 << 30};
	CHECK(!setrlimit(RLIMIT_STACK, &limit));
	check_pages(AREA, 0, 4);
	for (unsigned long page = 1; page <= 64; page++)
		check_zeroes(AREA - page * PAGE, 1);
	check_shuffled(AREA, 0, pages, 17, 0);
}

static void be_read(void)
{
	rendezvous();
	check_pages(AREA, 0, pages);
}

static void grow_heap(void)
{
	/* A paged mapping grows as by realloc(3): the new memory is zero, and costs little. */
	unsigned long bytes = pages * PAGE, grown = 256 << 20;
	uint8_t *at = mremap(AREA, bytes, grown, MREMAP_MAYMOVE);
	CHECK(at != MAP_FAILED);
	for (unsigned long offset = bytes; offset < grown; offset += PAGE)
		at[offset] = 1;
	check_shuffled(at, 0, pages, 18, 0);
}

/* Moves and grows locked memory: the kernel fills the new part before it reports the move. */
static uint8_t *lengthen_locked(uint8_t *at, unsigned long count, unsigned long more, uint8_t *to)
{
	int flags = MREMAP_MAYMOVE | (to ? MREMAP_FIXED : 0);
	uint8_t *moved = mremap(at, count * PAGE, (count + more) * PAGE, flags, to);
	CHECK(moved != MAP_FAILED && moved != at);
	/* A mapping after it prevents it from growing in place next time. There may already be one. */
	mmap(moved + (count + more) * PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	return moved;
}

static void check_wiped(unsigned long count)
{
	check_zeroes(AREA + count / 2 * PAGE, count / 2);
	check_zeroes(AREA, count / 2);
	check_pages(AREA + count * PAGE, count, count);
}

/* Memory with MADV_WIPEONFORK is empty in forked processes, and in their forks. Other memory is not. */
static void wipe_on_fork(void)
{
	unsigned long count = 16;
	check_pages(AREA, 0, count);
	((volatile uint64_t *)AREA)[1] = 78;
	CHECK(!madvise(AREA, count * PAGE, MADV_WIPEONFORK));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		check_wiped(count);
		((volatile uint64_t *)AREA)[1] = 79;
		pid_t inner = fork();
		CHECK(inner >= 0);
		if (!inner) {
			check_wiped(count);
			exit(0);
		}
		wait_child(inner);
		CHECK(((volatile uint64_t *)AREA)[1] == 79);
		exit(0);
	}
	wait_child(pid);
	CHECK(((volatile uint64_t *)AREA)[1] == 78);
	check_pages(AREA + PAGE, 1, 2 * count);
	/* Without the mark, forks have the memory again. */
	CHECK(!madvise(AREA, count * PAGE, MADV_KEEPONFORK));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		check_pages(AREA + PAGE, 1, 2 * count);
		exit(0);
	}
	wait_child(pid);
}

#define LOCKED_AREAS 3
#define LOCKED_STEP 32

static void *touch_the_rest(void *unused)
{
	unsigned long first = LOCKED_AREAS * LOCKED_STEP;
	check_shuffled(AREA + first * PAGE, first, pages - first, 44, 200);
	return unused;
}

/* Locks a part of the area, and repeatedly moves and grows it, like a growing vector. Another thread waits for pages of
 * the seed at the same time. */
static void lengthen_what_is_locked(void)
{
	unsigned long count = 8;
	pthread_t toucher;
	CHECK(!pthread_create(&toucher, 0, touch_the_rest, 0));
	for (int process = 0; process < LOCKED_AREAS; process++) {
		/* Also in forked processes. */
		pid_t pid = process ? fork() : 0;
		CHECK(pid >= 0);
		if (pid)
			wait_child(pid);
		unsigned long first = process * LOCKED_STEP;
		uint8_t *at = AREA + first * PAGE;
		CHECK(!mlock(at, count * PAGE));
		uint8_t *to = process == 1 ? AREA + ELSEWHERE : 0;
		for (int round = 0; round < 8; round++) {
			unsigned long size = count + round * 3;
			at = lengthen_locked(at, size, 3, to);
			check_pages(at, first, count);
			check_zeroes(at + count * PAGE, size + 3 - count);
			at[(size + 2) * PAGE] = 0;
			to = 0;
		}
		if (process && !pid)
			exit(0);
	}
	CHECK(!pthread_join(toucher, 0));
}

/* Moves parts of the area onto others, leaves the sources mapped, and forks. In the fork, the sources are empty, too,
 * whether or not their pages had arrived, or were read before. The fork does the same. */
static void fork_what_was_left_mapped(void)
{
	unsigned long count = 8;
	for (unsigned long round = 0; round < 16; round++) {
		unsigned long first = round * 2 * count;
		uint8_t *left = AREA + first * PAGE, *onto = left + count * PAGE;
		if (round & 1)
			check_pages(left, first, count / 2);
		if (round & 2)
			check_pages(onto, first + count, count / 2);
		CHECK(mremap(left, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, onto) == onto);
		if (round & 4)
			check_zeroes(left, count / 2);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			pid_t inner = round & 8 ? 0 : fork();
			CHECK(inner >= 0);
			check_zeroes(left, count);
			check_pages(onto, first, count);
			if (inner)
				wait_child(inner);
			exit(0);
		}
		wait_child(pid);
		check_zeroes(left, count);
		check_pages(onto, first, count);
	}
}

/* A forked process moves a part of the area, and grows it. At the same time, its parent moves other pages to the
 * addresses of the grown part. The grown part reads as zeroes, also in forks of the forked process. */
static void grow_beside_a_fork(void)
{
	unsigned long count = 8, longer = 3 * count, overlap = count + count / 2;
	uint8_t *place = mmap(0, longer * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(place != MAP_FAILED);
	for (unsigned long first = 0; first + 2 * count <= pages; first += 2 * count) {
		uint8_t *moved = AREA + first * PAGE, *grown = moved + count * PAGE;
		CHECK(!munmap(place, longer * PAGE));
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			CHECK(mremap(grown, count * PAGE, longer * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
			pid_t inner = fork();
			CHECK(inner >= 0);
			check_zeroes(place + count * PAGE, longer - count);
			check_pages(place, first + count, count);
			if (inner)
				wait_child(inner);
			exit(0);
		}
		uint8_t *there = place + overlap * PAGE;
		CHECK(mremap(moved, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
		wait_child(pid);
		check_pages(there, first, count);
		CHECK(!munmap(there, count * PAGE));
		CHECK(mmap(place, longer * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == place);
	}
}

static __thread sigjmp_buf after_bus;

static void on_bus(int signal)
{
	(void)signal;
	siglongjmp(after_bus, 1);
}

static int raises_bus(unsigned long page)
{
	if (sigsetjmp(after_bus, 1))
		return 1;
	(void)*(volatile uint8_t *)(AREA + page * PAGE);
	return 0;
}

static int is_refused(unsigned long page)
{
	int null = open("/dev/zero", O_RDWR), ends[2];
	CHECK(null >= 0 && !pipe(ends));
	long written = write(ends[1], AREA + page * PAGE, 16);
	int refused = written < 0 && (errno == EFAULT || errno == EHWPOISON);
	close(null);
	close(ends[0]);
	close(ends[1]);
	return refused;
}

/* The owner is gone. Present pages keep their contents, and empty pages read as zeroes. All others raise errors, and
 * never read as zeroes. */
static void lose(void)
{
	struct sigaction action = {.sa_handler = on_bus};
	CHECK(!sigaction(SIGBUS, &action, 0));
	check_page(AREA, 0);
	rendezvous();
	check_page(AREA, 0);
	check_page(AREA + 7 * PAGE, 7);
	check_page(AREA + HOLE_FIRST * PAGE, HOLE_FIRST);
	CHECK(raises_bus(pages - 4));
	CHECK(is_refused(pages - 3));
	CHECK(raises_bus(pages - 4));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(raises_bus(pages - 2));
		CHECK(raises_bus(pages - 4));
		exit(0);
	}
	wait_child(pid);
}

/* Touches a page, waits for the test, and touches the rest. */
static void pause_between(void)
{
	check_page(AREA, 0);
	rendezvous();
	check_shuffled(AREA, 0, pages, 19, 0);
}

/* Runs until the test kills it. */
static void stay(void)
{
	check_page(AREA, 0);
	rendezvous();
	pause();
}

/* Prints two costs in nanoseconds per page, in random order of pages: one touch of each paged page, and a memcpy of
 * each page from present to missing memory. The memcpy is the work that remains if no page must be fetched. */
static void measure(void)
{
	unsigned long *order = shuffled(pages, 20);
	volatile uint64_t sum = 0;
	long begin = now_ns();
	for (unsigned long index = 0; index < pages; index++)
		sum += *(volatile uint64_t *)(AREA + order[index] * PAGE);
	long paged = now_ns() - begin;
	for (unsigned long index = 0; index < pages; index++)
		CHECK(*(uint64_t *)(AREA + index * PAGE) == expected(index, 0));
	uint8_t *fresh = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(fresh != MAP_FAILED);
	begin = now_ns();
	for (unsigned long index = 0; index < pages; index++)
		memcpy(fresh + order[index] * PAGE, AREA + order[index] * PAGE, PAGE);
	long copied = now_ns() - begin;
	printf("%ld %ld\n", paged / (long)pages, copied / (long)pages);
	fflush(stdout);
	free(order);
}

#define STRIP 24

static void *lose_strip(void *argument)
{
	unsigned long number = (unsigned long)argument, first = 1 + number * STRIP;
	/* Threads start one after the other, so that some request pages when others were already refused. */
	usleep(number * 20000);
	for (unsigned long page = first; page < first + STRIP; page++)
		CHECK(!is_populated(page) || raises_bus(page));
	return 0;
}

/* The owner is gone while many pages are requested: each thread gets an error, and none waits forever. */
static void lose_in_threads(void)
{
	struct sigaction action = {.sa_handler = on_bus};
	pthread_t threads[8];
	CHECK(!sigaction(SIGBUS, &action, 0));
	check_page(AREA, 0);
	rendezvous();
	for (unsigned long number = 0; number < 8; number++)
		CHECK(!pthread_create(&threads[number], 0, lose_strip, (void *)number));
	for (unsigned long number = 0; number < 8; number++)
		CHECK(!pthread_join(threads[number], 0));
}

/* Executes orders, one page at a time. Each order is a word: a letter above the page's number. 't' touches the page,
 * 'd' discards it, 'e' ends the program. The reply is '=' if the page was right, and '!' if it is lost. */
static void obey(void)
{
	struct sigaction action = {.sa_handler = on_bus};
	uint8_t *discarded = calloc(pages, 1);
	uint64_t order;
	CHECK(!sigaction(SIGBUS, &action, 0));
	while (read(1, &order, sizeof order) == sizeof order && order >> 56 != 'e') {
		unsigned long page = order & 0xffffffffffffff;
		char answer = '=';
		if (order >> 56 == 'd') {
			CHECK(!madvise(AREA + page * PAGE, PAGE, MADV_DONTNEED));
			discarded[page] = 1;
		} else if (raises_bus(page)) {
			answer = '!';
		} else if (discarded[page]) {
			check_zeroes(AREA + page * PAGE, 1);
		} else {
			check_page(AREA + page * PAGE, page);
		}
		CHECK(write(1, &answer, 1) == 1);
	}
}

/* ---- pages of both sizes ---- */

/* The value of the first word of each page, or 0 if it was not set; and whether the rest of the page was discarded. */
static uint64_t *marks;
static uint8_t *is_discarded;

static void check_marked(const uint8_t *at, unsigned long first, unsigned long count)
{
	for (unsigned long page = first; page < first + count; page++) {
		const volatile uint64_t *words = (const volatile uint64_t *)(at + (page - first) * PAGE);
		for (unsigned long word = 0; word < WORDS; word++) {
			uint64_t right = is_discarded[page] ? 0 : expected(page, word);
			if (!word && marks[page])
				right = marks[page];
			if (words[word] != right)
				FAIL("page %lu, word %lu: %lx, not %lx", page, word, (long)words[word], (long)right);
		}
	}
}

static void mark(unsigned long first, unsigned long count)
{
	static uint64_t last;
	for (unsigned long page = first; page < first + count; page++)
		*(volatile uint64_t *)(AREA + page * PAGE) = marks[page] = ++last;
}

static void check_in_a_fork(unsigned long first, unsigned long count)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		check_marked(AREA, 0, pages);
		mark(first, count);
		check_marked(AREA, 0, pages);
		exit(0);
	}
	mark(first, count / 2);
	wait_child(pid);
}

/* Changes a part of the area, with pages of any size: `kind` selects how. */
static void disturb(int kind, unsigned long first, unsigned long count)
{
	uint8_t *at = AREA + first * PAGE, *elsewhere = at + 0x100000000;
	unsigned long bytes = count * PAGE;
	switch (kind) {
	case 0:
		mark(first, count);
		break;
	case 1:
		CHECK(!madvise(at, bytes, MADV_DONTNEED));
		memset(marks + first, 0, count * sizeof *marks);
		memset(is_discarded + first, 1, count);
		break;
	case 2:
		CHECK(mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
		check_marked(elsewhere, first, count);
		CHECK(mremap(elsewhere, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
		break;
	case 3:
		check_in_a_fork(first, count);
		break;
	case 4:
		CHECK(!mprotect(at, bytes, PROT_READ));
		check_marked(at, first, count);
		CHECK(!mprotect(at, bytes, PROT_READ | PROT_WRITE));
		break;
	}
	check_marked(at, first, count);
}

/* Writes to half of the area, so that its pages are neither shared nor zero pages, and the test can make huge pages
 * of them. */
static void mix_sizes(void)
{
	marks = calloc(pages, sizeof *marks);
	is_discarded = calloc(pages, 1);
	CHECK(!madvise(AREA, pages * PAGE, MADV_HUGEPAGE));
	mark(0, pages / 2);
	rendezvous();
	uint64_t draw = 1;
	for (int round = 0; round < 100; round++) {
		draw = mix(draw);
		unsigned long first = draw % pages, count = 1 + (draw >> 32) % 700;
		disturb(round % 5, first, count < pages - first ? count : pages - first);
		if (round % 10 == 9) {
			mark(0, pages);
			check_marked(AREA, 0, pages);
		}
	}
	check_marked(AREA, 0, pages);
}

static const struct {
	const char *name;
	void (*run)(void);
	int flags;
} scenarios[] = {
	{"touch_at_random", touch_at_random, 0},
	{"touch_slowly", touch_slowly, 0},
	{"touch_sparsely", touch_sparsely, 0},
	{"pause_then_touch_sparsely", pause_then_touch_sparsely, 0},
	{"touch_in_order", touch_in_order, 0},
	{"discard", discard, 0},
	{"unmap", unmap, 0},
	{"remap", remap, 0},
	{"touch_what_moves", touch_what_moves, 0},
	{"fork_what_moves", fork_what_moves, 0},
	{"reuse_what_was_left", reuse_what_was_left, 0},
	{"fork", fork_and_check, 0},
	{"bear_copies", bear_copies, 0},
	{"descend_then_touch", descend_then_touch, 0},
	{"descend_until_told", descend_until_told, 0},
	{"protect", protect, 0},
	{"system_calls", system_calls, 0},
	{"chaos", chaos, 0},
	{"grow_stack", grow_stack, MAP_GROWSDOWN},
	{"grow_heap", grow_heap, 0},
	{"wipe_on_fork", wipe_on_fork, 0},
	{"fork_what_was_left_mapped", fork_what_was_left_mapped, 0},
	{"grow_beside_a_fork", grow_beside_a_fork, 0},
	{"lengthen_what_is_locked", lengthen_what_is_locked, 0},
	{"be_read", be_read, 0},
	{"lose", lose, 0},
	{"lose_in_threads", lose_in_threads, 0},
	{"pause_between", pause_between, 0},
	{"stay", stay, 0},
	{"measure", measure, 0},
	{"obey", obey, 0},
	{"mix_sizes", mix_sizes, 0},
};

int main(int argc, char **argv)
{
	if (argc != 3)
		FAIL("usage: program SCENARIO PAGES");
	pages = strtoul(argv[2], 0, 10);
	for (unsigned long index = 0; index < sizeof scenarios / sizeof *scenarios; index++) {
		if (strcmp(argv[1], scenarios[index].name))
			continue;
		page_area(scenarios[index].flags);
		scenarios[index].run();
		return 0;
	}
	FAIL("no scenario %s", argv[1]);
}
