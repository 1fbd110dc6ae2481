//! The Linux interface of farfork: the one crate for `unsafe` system calls. Functions return an errno as `io::Error`, or as
//! an enum if the caller needs its meaning.
//!
//! Each module covers one facility of the kernel and nothing above it: no seeds, no children, no policy.

pub mod affinity;
pub mod allocator;
pub mod any_ip;
pub mod arena;
mod bpf;
pub mod cgroup;
pub mod clock;
pub mod clone;
pub mod companion;
pub mod cpu;
pub mod datagram;
pub mod fd_owner;
pub mod fd_passing;
pub mod fd_query;
pub mod file_handle;
pub mod fork;
pub mod huge_page;
pub mod hugetlbfs;
pub mod landlock;
pub mod memfd;
pub mod mount;
pub mod namespace;
mod netlink;
pub mod pagemap;
pub mod pidfd;
pub mod poll;
pub mod priority;
pub mod process;
pub mod process_identity;
pub mod process_memory;
pub mod ptrace;
pub mod reflink;
pub mod rights;
mod sched_attr;
pub mod sched_slice;
pub mod shared_mapping;
pub mod sock_diag;
pub mod socket;
pub mod socket_abi;
pub mod socket_lookup;
pub mod syscall_alarm;
pub mod system_memory;
pub mod system_v;
pub mod terminal;
pub mod user_namespace;
pub mod userfaultfd;
pub mod write_ring;
