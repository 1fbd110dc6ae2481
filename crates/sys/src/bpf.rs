//! BPF programs and maps (bpf(2)).

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A BPF instruction (Documentation/bpf/standardization/instruction-set.rst).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct BpfInstruction {
    pub(crate) code: u8,
    /// The destination register in the lower half, the source register in the upper half.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

const BPF_SK_LOOKUP: u32 = 36;

/// Creates a map of up to `entries_max` sockets, keyed by number. The map does not keep a socket open.
///
/// # Errors
/// EPERM without CAP_BPF and CAP_NET_ADMIN; ENOSYS or EINVAL if the kernel has no such maps.
pub(crate) fn create_sockmap(entries_max: u32) -> io::Result<OwnedFd> {
    /// The fields of `union bpf_attr` that BPF_MAP_CREATE uses. The other structures of this module are also parts of that
    /// union.
    #[repr(C)]
    struct MapCreateAttributes {
        kind: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries_max: u32,
    }
    const BPF_MAP_CREATE: libc::c_int = 0;
    const BPF_MAP_TYPE_SOCKMAP: u32 = 15;
    let create = MapCreateAttributes { kind: BPF_MAP_TYPE_SOCKMAP, key_bytes: 4, value_bytes: 8, entries_max };
    // SAFETY: the kernel reads the attributes, which hold no pointers.
    unsafe { bpf_descriptor(BPF_MAP_CREATE, &create) }
}

/// Puts a socket into a map from [`create_sockmap`].
///
/// # Errors
/// As bpf(2): EOPNOTSUPP for a socket that is neither bound nor listening.
pub(crate) fn update_sockmap(map: BorrowedFd<'_>, key: i32, socket: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct MapUpdateAttributes {
        map: u64,
        key: *const i32,
        value: *const u64,
        flags: u64,
    }
    const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
    let (map, value) = (map.as_raw_fd() as u64, socket.as_raw_fd() as u64);
    let update = MapUpdateAttributes { map, key: &raw const key, value: &raw const value, flags: 0 };
    // SAFETY: the kernel reads a key and a value of the map's sizes, which live on this frame.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &update) }.map(drop)
}

/// Loads a program that selects the socket for incoming packets (BPF_PROG_TYPE_SK_LOOKUP).
///
/// # Errors
/// As bpf(2): EPERM; EACCES or EINVAL if the kernel rejects the program or does not support its type.
pub(crate) fn load_socket_lookup(instructions: &[BpfInstruction]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct ProgramLoadAttributes {
        kind: u32,
        count: u32,
        instructions: *const BpfInstruction,
        licence: *const libc::c_char,
        log: [u32; 2],
        log_buffer: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_kind: u32,
    }
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_PROG_TYPE_SK_LOOKUP: u32 = 30;
    let mut name = [0; 16];
    name[..12].copy_from_slice(b"farfork_lead");
    let load = ProgramLoadAttributes {
        kind: BPF_PROG_TYPE_SK_LOOKUP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr(),
        licence: c"Apache-2.0".as_ptr(),
        log: [0; 2],
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
        name,
        interface: 0,
        attach_kind: BPF_SK_LOOKUP,
    };
    // SAFETY: the kernel reads `count` instructions and the licence string, which outlive the call.
    unsafe { bpf_descriptor(BPF_PROG_LOAD, &load) }
}

/// Attaches a program to the socket lookup of a network namespace, until the returned descriptor is closed.
///
/// # Errors
/// As bpf(2): E2BIG if 64 programs are attached already.
pub(crate) fn attach_socket_lookup(program: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LinkCreateAttributes {
        program: u32,
        target: u32,
        attach_kind: u32,
        flags: u32,
    }
    const BPF_LINK_CREATE: libc::c_int = 28;
    let fd = |fd: BorrowedFd<'_>| fd.as_raw_fd() as u32;
    let create =
        LinkCreateAttributes { program: fd(program), target: fd(namespace), attach_kind: BPF_SK_LOOKUP, flags: 0 };
    // SAFETY: the kernel reads the attributes, which hold no pointers.
    unsafe { bpf_descriptor(BPF_LINK_CREATE, &create) }
}

/// Runs a bpf(2) command that creates an object, and returns its descriptor. The kernel makes it close-on-exec.
///
/// # Safety
/// As [`bpf`].
unsafe fn bpf_descriptor<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller guarantees; the descriptor is new, so it has no other owner.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` must be the structure that the command reads, with valid pointers.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads the attributes, within the size passed to it; otherwise as the caller guarantees.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attributes as *const T, mem::size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done as libc::c_int),
    }
}
