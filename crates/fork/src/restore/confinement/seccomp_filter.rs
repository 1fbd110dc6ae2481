//! The seccomp(2) filter of untrusted children, as classic BPF. Pure; `confinement` adds it to every thread.
//! It denies system calls that reach the kernel's internals, other processes, mounts or namespaces.
//! Most of these also need a capability, which the child lacks: the filter is a second barrier.

/// The first system call number that this list does not know (the highest of Linux 6.18 is one less). Numbers of x32
/// are far higher.
const FIRST_UNKNOWN_SYSCALL: u32 = 470;

/// Name and number (on x86-64) of each denied call.
const DENIED_SYSCALLS: [(&str, u32); 66] = [
    // Mounts and roots.
    ("mount", 165),
    ("umount2", 166),
    ("pivot_root", 155),
    ("chroot", 161),
    ("open_tree", 428),
    ("move_mount", 429),
    ("fsopen", 430),
    ("fsconfig", 431),
    ("fsmount", 432),
    ("fspick", 433),
    ("mount_setattr", 442),
    ("open_tree_attr", 467),
    ("open_by_handle_at", 304),
    // Namespaces; clone(2) is checked below.
    ("unshare", 272),
    ("setns", 308),
    // Other processes, and their memory and files.
    ("ptrace", 101),
    ("process_vm_readv", 310),
    ("process_vm_writev", 311),
    ("process_madvise", 440),
    ("pidfd_getfd", 438),
    ("kcmp", 312),
    ("migrate_pages", 256),
    ("move_pages", 279),
    // Large parts of the kernel that few programs need.
    ("bpf", 321),
    ("perf_event_open", 298),
    ("userfaultfd", 323),
    ("io_uring_setup", 425),
    ("io_uring_enter", 426),
    ("io_uring_register", 427),
    ("fanotify_init", 300),
    ("lookup_dcookie", 212),
    // Keys, which are not separated by namespace.
    ("add_key", 248),
    ("request_key", 249),
    ("keyctl", 250),
    // The machine: its kernel, clocks, names, disks.
    ("init_module", 175),
    ("finit_module", 313),
    ("delete_module", 176),
    ("create_module", 174),
    ("query_module", 178),
    ("get_kernel_syms", 177),
    ("kexec_load", 246),
    ("kexec_file_load", 320),
    ("reboot", 169),
    ("syslog", 103),
    ("settimeofday", 164),
    ("clock_settime", 227),
    ("clock_adjtime", 305),
    ("adjtimex", 159),
    ("sethostname", 170),
    ("setdomainname", 171),
    ("iopl", 172),
    ("ioperm", 173),
    ("swapon", 167),
    ("swapoff", 168),
    ("quotactl", 179),
    ("quotactl_fd", 443),
    ("acct", 163),
    ("vhangup", 153),
    // Obsolete calls.
    ("nfsservctl", 180),
    ("uselib", 134),
    ("ustat", 136),
    ("sysfs", 139),
    ("_sysctl", 156),
    ("afs_syscall", 183),
    ("tuxcall", 184),
    ("security", 185),
];

const SYS_CLONE: u32 = 56;
const SYS_CLONE3: u32 = 435;
const SYS_SOCKET: u32 = 41;

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET. (In clone(2), the bit of CLONE_NEWTIME is part
/// of the exit signal.)
const CLONE_NEW_FLAGS: u32 = 0x7e02_0000;

/// AF_ALG gives access to the kernel's ciphers. AF_VSOCK connects to the virtual machine's host, regardless of network
/// namespaces.
const DENIED_FAMILIES: [u32; 2] = [38, 40];

/// AUDIT_ARCH_X86_64.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// SECCOMP_RET_*.
const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;
const SECCOMP_RET_EPERM: u32 = 0x0005_0000 | EPERM;
const SECCOMP_RET_ENOSYS: u32 = 0x0005_0000 | ENOSYS;
const SECCOMP_RET_KILL_PROCESS: u32 = 0x8000_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Codes of classic BPF: load a word; jump if equal, if greater or equal, or if bits are set; return.
const BPF_LD_W_ABS: u16 = 0x20;
const BPF_JEQ_K: u16 = 0x15;
const BPF_JGE_K: u16 = 0x35;
const BPF_JSET_K: u16 = 0x45;
const BPF_RET_K: u16 = 0x06;

/// Offsets in `struct seccomp_data`. clone(2) and socket(2) use only the lower half of the first argument.
const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARG0_OFFSET: u32 = 16;

/// An instruction: code; numbers of instructions to skip if the condition is true, and if it is false; constant.
type BpfInstruction = (u16, u8, u8, u32);

//  not x86-64?                           kill: numbers of another table mean other calls
//  newer than this list, or of x32?      ENOSYS, as on a kernel that lacks the call: programs have another way
//  clone3?                               ENOSYS: its flags are in memory, which a filter cannot read; libraries use clone
//  denied?                               EPERM
//  clone with a namespace?               EPERM
//  a socket that leaves the network?     EPERM
//  else                                  allowed
/// Returns the filter of untrusted children as an array of the kernel's `struct sock_filter`.
pub fn encode_filter() -> Vec<u8> {
    let bytes = |(code, then, otherwise, constant): BpfInstruction| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&code.to_ne_bytes());
        bytes[2..4].copy_from_slice(&[then, otherwise]);
        bytes[4..].copy_from_slice(&constant.to_ne_bytes());
        bytes
    };
    build_program().into_iter().flat_map(bytes).collect()
}

fn build_program() -> Vec<BpfInstruction> {
    let mut program = vec![
        (BPF_LD_W_ABS, 0, 0, ARCH_OFFSET),
        (BPF_JEQ_K, 1, 0, AUDIT_ARCH_X86_64),
        (BPF_RET_K, 0, 0, SECCOMP_RET_KILL_PROCESS),
        (BPF_LD_W_ABS, 0, 0, NR_OFFSET),
        (BPF_JGE_K, 0, 1, FIRST_UNKNOWN_SYSCALL),
        (BPF_RET_K, 0, 0, SECCOMP_RET_ENOSYS),
        (BPF_JEQ_K, 0, 1, SYS_CLONE3),
        (BPF_RET_K, 0, 0, SECCOMP_RET_ENOSYS),
    ];
    let calls = DENIED_SYSCALLS.map(|(_, number)| number);
    program.extend(refuse_if(BPF_JEQ_K, &calls));
    program.extend(refuse_if_argument(SYS_CLONE, BPF_JSET_K, &[CLONE_NEW_FLAGS]));
    program.extend(refuse_if_argument(SYS_SOCKET, BPF_JEQ_K, &DENIED_FAMILIES));
    program.push((BPF_RET_K, 0, 0, SECCOMP_RET_ALLOW));
    program
}

/// Returns instructions that refuse the call if the loaded word matches one of these constants, and otherwise continue
/// after the last of them.
fn refuse_if(condition: u16, constants: &[u32]) -> Vec<BpfInstruction> {
    let count = constants.len();
    let mut tests: Vec<BpfInstruction> = constants
        .iter()
        .enumerate()
        // If a test matches, it jumps to the refusal, which follows all tests. If the last test does not match, it skips the
        // refusal.
        .map(|(index, constant)| (condition, (count - 1 - index) as u8, u8::from(index + 1 == count), *constant))
        .collect();
    tests.push((BPF_RET_K, 0, 0, SECCOMP_RET_EPERM));
    tests
}

/// Returns instructions that refuse `call` if its first argument matches one of these constants, and allow it
/// otherwise.
fn refuse_if_argument(call: u32, condition: u16, constants: &[u32]) -> Vec<BpfInstruction> {
    let tests = refuse_if(condition, constants);
    // For other calls, skips the load, the tests and the return.
    let mut all = vec![(BPF_JEQ_K, 0, tests.len() as u8 + 2, call), (BPF_LD_W_ABS, 0, 0, ARG0_OFFSET)];
    all.extend(tests);
    all.push((BPF_RET_K, 0, 0, SECCOMP_RET_ALLOW));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does, and returns its result.
    fn answer(architecture: u32, number: u32, argument: u32) -> u32 {
        let program = build_program();
        let (mut at, mut word) = (0, 0);
        loop {
            let (code, then, otherwise, constant) = program[at];
            at += 1;
            let holds = match code {
                BPF_RET_K => return constant,
                BPF_LD_W_ABS => {
                    word = match constant {
                        NR_OFFSET => number,
                        ARCH_OFFSET => architecture,
                        ARG0_OFFSET => argument,
                        other => panic!("nothing is at {other}"),
                    };
                    continue;
                }
                BPF_JEQ_K => word == constant,
                BPF_JGE_K => word >= constant,
                BPF_JSET_K => word & constant != 0,
                other => panic!("no such code: {other:#x}"),
            };
            at += usize::from(if holds { then } else { otherwise });
        }
    }

    #[test]
    fn each_denied_call_is_refused_and_others_are_not() {
        for number in 0..FIRST_UNKNOWN_SYSCALL {
            let is_denied = DENIED_SYSCALLS.iter().any(|(_, denied)| *denied == number);
            let wanted = match number {
                SYS_CLONE3 => SECCOMP_RET_ENOSYS,
                _ if is_denied => SECCOMP_RET_EPERM,
                _ => SECCOMP_RET_ALLOW,
            };
            assert_eq!(answer(AUDIT_ARCH_X86_64, number, 0), wanted, "call {number}");
        }
    }

    #[test]
    fn system_calls_of_other_abis_are_denied() {
        const X32: u32 = 0x4000_0000;
        const I386: u32 = 0x4000_0003;
        assert_eq!(answer(AUDIT_ARCH_X86_64, X32 | 165, 0), SECCOMP_RET_ENOSYS);
        assert_eq!(answer(AUDIT_ARCH_X86_64, FIRST_UNKNOWN_SYSCALL, 0), SECCOMP_RET_ENOSYS);
        assert_eq!(answer(I386, 21, 0), SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn threads_are_allowed_and_new_namespaces_are_denied() {
        const THREAD: u32 = 0x003d_0f00;
        const SIGCHLD: u32 = 17;
        assert_eq!(
            (answer(AUDIT_ARCH_X86_64, SYS_CLONE, THREAD), answer(AUDIT_ARCH_X86_64, SYS_CLONE, SIGCHLD)),
            (SECCOMP_RET_ALLOW, SECCOMP_RET_ALLOW)
        );
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| CLONE_NEW_FLAGS & bit != 0) {
            assert_eq!(answer(AUDIT_ARCH_X86_64, SYS_CLONE, SIGCHLD | bit), SECCOMP_RET_EPERM, "{bit:#x}");
        }
    }

    #[test]
    fn sockets_of_denied_families_are_refused() {
        let inet = 2;
        assert_eq!(answer(AUDIT_ARCH_X86_64, SYS_SOCKET, inet), SECCOMP_RET_ALLOW);
        DENIED_FAMILIES
            .iter()
            .for_each(|family| assert_eq!(answer(AUDIT_ARCH_X86_64, SYS_SOCKET, *family), SECCOMP_RET_EPERM));
    }

    /// Compares the numbers with the system's header, if it is installed.
    #[test]
    fn system_call_numbers_equal_the_kernel_header() {
        let Ok(header) = std::fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h") else { return };
        let number_of = |name: &str| {
            let line = header.lines().find_map(|line| line.strip_prefix(&format!("#define __NR_{name} ")))?;
            line.trim().parse::<u32>().ok()
        };
        for (name, number) in
            DENIED_SYSCALLS.into_iter().chain([("clone", SYS_CLONE), ("clone3", SYS_CLONE3), ("socket", SYS_SOCKET)])
        {
            assert!(number_of(name).is_none_or(|found| found == number), "{name} is {:?}", number_of(name));
        }
    }
}
