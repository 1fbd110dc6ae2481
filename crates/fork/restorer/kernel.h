/* System calls and kernel interface for stub and restorer, without a C library: no memory of a library may remain in a
 * child. */
#pragma once

#include <asm/unistd.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;
typedef int64_t i64;

static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define CALL0(nr) call6(__NR_##nr, 0, 0, 0, 0, 0, 0)
#define CALL1(nr, a) call6(__NR_##nr, (long)(a), 0, 0, 0, 0, 0)
#define CALL2(nr, a, b) call6(__NR_##nr, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL3(nr, a, b, c) call6(__NR_##nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define CALL4(nr, a, b, c, d) call6(__NR_##nr, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define CALL5(nr, a, b, c, d, e) call6(__NR_##nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define CALL6(nr, a, b, c, d, e, f) \
	call6(__NR_##nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

#define PAGE_BYTES 4096ull

/* Replacements of memcpy(3) and memset(3), because there is no C library. */
static inline void copy_bytes(void *to, const void *from, u64 bytes)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

static inline void clear_bytes(void *at, u64 bytes)
{
	__asm__ volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(0) : "memory");
}

/* Names of the kernel's interface, from its uapi headers. Without a C library, those headers conflict with one another, so
 * this file defines the few that are needed. */
enum {
	K_EPERM = 1,
	K_EINTR = 4,
	K_ETIMEDOUT = 110,
	K_ENOENT = 2,
	K_EINVAL = 22,
	K_EMFILE = 24,
	K_ENOSYS = 38,
	K_O_RDONLY = 0,
	K_O_WRONLY = 1,
	K_O_CLOEXEC = 02000000,
	K_O_NONBLOCK = 04000,
	K_PROT_READ = 1,
	K_PROT_WRITE = 2,
	K_PROT_EXEC = 4,
	K_MAP_SHARED = 0x01,
	K_MAP_PRIVATE = 0x02,
	K_MAP_DROPPABLE = 0x08, /* instead of K_MAP_SHARED and K_MAP_PRIVATE */
	K_MAP_FIXED = 0x10,
	K_MAP_ANONYMOUS = 0x20,
	K_MAP_GROWSDOWN = 0x0100,
	K_MAP_NORESERVE = 0x4000,
	K_MAP_FIXED_NOREPLACE = 0x100000,
	K_MREMAP_MAYMOVE = 1,
	K_MREMAP_FIXED = 2,
	K_MADV_RANDOM = 1,
	K_MADV_SEQUENTIAL = 2,
	K_MADV_DONTFORK = 10,
	K_MADV_MERGEABLE = 12,
	K_MADV_HUGEPAGE = 14,
	K_MADV_NOHUGEPAGE = 15,
	K_MADV_DONTDUMP = 16,
	K_MADV_WIPEONFORK = 18,
	K_MADV_POPULATE_READ = 22,
	K_MADV_GUARD_INSTALL = 102,
	K_MLOCK_ONFAULT = 1,
	K_SIGCHLD = 17,
	K_SIG_SETMASK = 2,
	K_F_DUPFD_CLOEXEC = 1030,
	K_F_SETPIPE_SZ = 1031,
	K_SEEK_SET = 0,
	K_EPOLL_CTL_ADD = 1,
	K_EPOLL_CTL_MOD = 3,
	K_EPOLLERR = 0x8,
	K_EPOLLHUP = 0x10,
	K_EPOLL_ALL_EVENTS = 0x27df,
	K_EPOLLONESHOT = 1 << 30,
	K_MSG_NOSIGNAL = 0x4000,
	K_MSG_CTRUNC = 8,
	K_MSG_CMSG_CLOEXEC = 0x40000000,
	K_AF_UNIX = 1,
	K_SOL_SOCKET = 1,
	K_SCM_RIGHTS = 1,
	K_FUTEX_WAIT = 0,
	K_FUTEX_WAKE = 1,
	K_FUTEX_CMP_REQUEUE = 4,
	K_FUTEX_PRIVATE = 128,
	K_FUTEX_ALL = 0x7fffffff,
	K_CLOCK_REALTIME = 0,
	K_ARCH_SET_GS = 0x1001,
	K_ARCH_SET_FS = 0x1002,
	K_ARCH_GET_FS = 0x1003,
	K_ARCH_GET_GS = 0x1004,
	K_PR_SET_PDEATHSIG = 1,
	K_PR_SET_DUMPABLE = 4,
	K_PR_SET_NAME = 15,
	K_CAP_SYS_ADMIN = 21,
	K_PR_SET_TSC = 26,
	K_PR_TSC_SIGSEGV = 2,
	K_PR_CAPBSET_READ = 23,
	K_PR_CAPBSET_DROP = 24,
	K_PR_SET_SECUREBITS = 28,
	K_PR_MCE_KILL = 33,
	K_PR_MCE_KILL_SET = 1,
	K_PR_MCE_KILL_DEFAULT = 2,
	K_PR_SET_IO_FLUSHER = 57,
	K_PR_SET_SYSCALL_USER_DISPATCH = 59,
	K_IOPRIO_WHO_PROCESS = 1,
	K_PR_SET_TIMERSLACK = 29,
	K_PR_SET_MM = 35,
	K_PR_SET_MM_MAP = 14,
	K_PR_SET_NO_NEW_PRIVS = 38,
	K_PR_CAP_AMBIENT = 47,
	K_PR_CAP_AMBIENT_RAISE = 2,
	K_PR_SET_SPECULATION_CTRL = 53,
	K_PR_SPEC_STORE_BYPASS = 0,
	K_PR_SPEC_INDIRECT_BRANCH = 1,
	K_KEYCTL_JOIN_SESSION_KEYRING = 1,
	K_RLIMIT_CORE = 4,
	K_RLIMIT_NOFILE = 7,
	K_SECBIT_NO_SETUID_FIXUP = 4,
	K_TIOCSCTTY = 0x540e,
	K_CLONE_VM = 0x100,
	K_CLONE_FS = 0x200,
	K_CLONE_FILES = 0x400,
	K_CLONE_SIGHAND = 0x800,
	K_CLONE_VFORK = 0x4000,
	K_CLONE_THREAD = 0x10000,
	K_CLONE_SYSVSEM = 0x40000,
	K_CLONE_SETTLS = 0x80000,
	K_CLONE_CHILD_CLEARTID = 0x200000,
	K_CLONE_NEWTIME = 0x80,
	K_CLONE_NEWNS = 0x20000,
	K_CLONE_NEWUTS = 0x04000000,
	K_CLONE_NEWIPC = 0x08000000,
	K_CLONE_NEWUSER = 0x10000000,
	K_CLONE_NEWPID = 0x20000000,
	K_CLONE_NEWNET = 0x40000000,
	K_EAGAIN = 11,
	K_SIGSTOP = 19,
	K_P_PID = 1,
	K_WSTOPPED = 2,
	K_WNOHANG = 1,
	K_WEXITED = 4,
	K_CLD_EXITED = 1,
	K_CLD_STOPPED = 5,
	K_WNOWAIT = 0x01000000,
	K_WALL = 0x40000000,
	K_PR_SET_CHILD_SUBREAPER = 36,
};

struct k_iovec {
	void *base;
	u64 bytes;
};

struct k_msghdr {
	void *name;
	u32 name_bytes;
	struct k_iovec *vectors;
	u64 vector_count;
	void *control;
	u64 control_bytes;
	u32 flags;
};

struct k_cmsghdr {
	u64 bytes;
	i32 level;
	i32 type;
};

struct k_clone_args {
	u64 flags;
	u64 pidfd;
	u64 child_tid;
	u64 parent_tid;
	u64 exit_signal;
	u64 stack;
	u64 stack_size;
	u64 tls;
	u64 set_tid;
	u64 set_tid_size;
	u64 cgroup;
};

#define K_CLONE_INTO_CGROUP 0x200000000ull

struct k_timespec {
	i64 seconds;
	i64 nanoseconds;
};

struct k_futex_waitv {
	u64 value;
	u64 address;
	u32 flags;
	u32 reserved;
};

struct k_rlimit {
	u64 soft;
	u64 hard;
};

struct k_capability_header {
	u32 version;
	i32 pid;
};

struct k_capability_data {
	u32 effective;
	u32 permitted;
	u32 inheritable;
};

struct k_sched_param {
	i32 priority;
};

struct k_epoll_event {
	u32 events;
	u64 data;
} __attribute__((packed));

struct k_uffdio_api {
	u64 api;
	u64 features;
	u64 ioctls;
};

struct k_uffdio_register {
	u64 start;
	u64 bytes;
	u64 mode;
	u64 ioctls;
};

/* linux/userfaultfd.h */
#define K_UFFD_API 0xAAull
#define K_UFFDIO_API 0xc018aa3full
#define K_UFFDIO_REGISTER 0xc020aa00ull
#define K_UFFDIO_REGISTER_MODE_MISSING 1ull
#define K_UFFD_FEATURE_EVENT_FORK (1ull << 1)
#define K_UFFD_FEATURE_EVENT_REMAP (1ull << 2)
#define K_UFFD_FEATURE_EVENT_REMOVE (1ull << 3)
#define K_UFFD_FEATURE_EVENT_UNMAP (1ull << 6)
#define K_UFFD_FEATURE_THREAD_ID (1ull << 8)
#define K_CAPABILITY_VERSION_3 0x20080522u
