/*
 * Executes a command on a kernel that seems to lack a feature: a seccomp filter answers one request as such a kernel does.
 *
 *   missing_feature rseq COMMAND ARGUMENT...	ptrace(PTRACE_GET_RSEQ_CONFIGURATION) fails with EIO
 *   missing_feature tsc COMMAND ARGUMENT...	prctl(PR_GET_TSC) fails with EINVAL
 *
 * Needs CAP_SYS_ADMIN, so that the command may gain privileges as usual.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/ptrace.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int deny(unsigned int call, unsigned int request, unsigned int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, request, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int count, char **arguments)
{
	int denied;

	if (count < 3) {
		fprintf(stderr, "usage: %s rseq|tsc COMMAND ARGUMENT...\n", arguments[0]);
		return 2;
	}
	if (strcmp(arguments[1], "rseq") == 0)
		denied = deny(SYS_ptrace, PTRACE_GET_RSEQ_CONFIGURATION, EIO);
	else
		denied = deny(SYS_prctl, PR_GET_TSC, EINVAL);
	if (denied != 0) {
		perror("PR_SET_SECCOMP");
		return 1;
	}
	execv(arguments[2], arguments + 2);
	perror(arguments[2]);
	return 1;
}
