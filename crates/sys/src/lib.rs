//! Linux, as farfork needs it: the one home of `unsafe` system calls. Errno becomes meaning here, once.
//!
//! A module is a facility of the kernel and nothing above it: no seeds, no children, no policy.

pub mod affinity;
pub mod alarm;
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
pub mod fdpass;
pub mod fork;
pub mod handle;
pub mod huge_page;
pub mod hugetlbfs;
pub mod identity;
pub mod inquiry;
pub mod mapping;
pub mod memfd;
pub mod memory;
pub mod memory_info;
pub mod mount;
pub mod namespace;
mod netlink;
pub mod owner;
pub mod pagemap;
pub mod pidfd;
pub mod priority;
pub mod process;
pub mod ptrace;
pub mod socket;
pub mod socket_diagnosis;
pub mod socket_lookup;
pub mod system_v;
pub mod terminal;
pub mod turn;
pub mod user_namespace;
pub mod userfaultfd;
pub mod wait;
