//! Sets the options of a child's socket, in their recorded order. Some wait until a TCP connection is made, or are left to the
//! kernel.

use farfork_sys::socket_abi::{
    AF_UNIX, IP_OPTIONS, IPPROTO_TCP, SO_ATTACH_FILTER, SO_TIMESTAMPING, SO_TIMESTAMPING_NEW, SOL_IP, SOL_SOCKET,
    TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, TCP_MAXSEG, TCP_TX_DELAY, TCP_WINDOW_CLAMP,
};
use farfork_wire::descriptor::{Socket, SocketState};

use super::super::RestoreError;
use super::{SyscallArgument, SyscallBuilder, abi, value};

/// TCP_MAXSEG. On a connection, it is the size that the two ends have negotiated.
pub(super) const MAXSEG_OPTION: (u32, u32) = (IPPROTO_TCP, TCP_MAXSEG);

/// Options that are not set for a TCP connection. The kernel computes the first two for a connection, and refuses the next two
/// for it. TCP_FASTOPEN_KEY has no meaning for it. IP_OPTIONS may keep two ends from each other.
const IDLE_OPTIONS: [(u32, u32); 6] = [
    MAXSEG_OPTION,
    (IPPROTO_TCP, TCP_WINDOW_CLAMP),
    (IPPROTO_TCP, TCP_FASTOPEN_CONNECT),
    (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE),
    (IPPROTO_TCP, TCP_FASTOPEN_KEY),
    (SOL_IP, IP_OPTIONS),
];

/// Options that are set only after a TCP connection is made. The first one delays the connection, and the others may number
/// time stamps by the bytes of a connection. A connection that is reset does not get them.
const CONNECTED_OPTIONS: [(u32, u32); 3] =
    [(IPPROTO_TCP, TCP_TX_DELAY), (SOL_SOCKET, SO_TIMESTAMPING), (SOL_SOCKET, SO_TIMESTAMPING_NEW)];

/// Sets an option of a descriptor to a number.
pub(super) fn set_u32_option(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    option: (u32, u32),
    word: u32,
) -> Result<(), RestoreError> {
    set_option(syscall_builder, fd, option, &word.to_ne_bytes())
}

/// Sets an option, given as level and name, of a descriptor.
pub(super) fn set_option(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    (level, name): (u32, u32),
    bytes: &[u8],
) -> Result<(), RestoreError> {
    let (at, length) = (syscall_builder.bytes_argument(bytes)?, bytes.len() as u64);
    syscall_builder.call_expecting(0, abi::SETSOCKOPT, &[value(fd), value(level), value(name), at, value(length)]);
    Ok(())
}

/// Sets the options that `wanted` selects.
pub(super) fn set_options(
    syscall_builder: &mut SyscallBuilder<'_>,
    fd: u32,
    socket: &Socket,
    wanted: impl Fn((u32, u32)) -> bool,
) -> Result<(), RestoreError> {
    let is_left_out = |option: &(u32, u32)| match socket.state {
        _ if socket.family == AF_UNIX => false,
        SocketState::Unconnected { .. } | SocketState::Listening { .. } => false,
        // The kernel has computed TCP_MAXSEG for the connection that has ended.
        SocketState::Disconnected { .. } => *option == MAXSEG_OPTION,
        SocketState::TcpPaired { .. } => IDLE_OPTIONS.contains(option),
        _ => IDLE_OPTIONS.contains(option) || CONNECTED_OPTIONS.contains(option),
    };
    let is_wanted = |option: (u32, u32)| wanted(option) && !is_left_out(&option);
    for option in socket.options.iter().filter(|option| is_wanted((option.level, option.name))) {
        let (bytes, length) = match (option.level, option.name) {
            (SOL_SOCKET, SO_ATTACH_FILTER) => encode_sock_fprog(syscall_builder, &option.value)?,
            _ => (syscall_builder.bytes_argument(&option.value)?, option.value.len() as u64),
        };
        let set = [value(fd), value(option.level), value(option.name), bytes, value(length)];
        syscall_builder.call_expecting(0, abi::SETSOCKOPT, &set);
    }
    Ok(())
}

/// Encodes `struct sock_fprog`: the number of instructions, and their address.
fn encode_sock_fprog(
    syscall_builder: &mut SyscallBuilder<'_>,
    instructions: &[u8],
) -> Result<(SyscallArgument, u64), RestoreError> {
    const INSTRUCTION_BYTES: usize = 8;
    const SOCK_FPROG_BYTES: u32 = 16;
    let count = (instructions.len() / INSTRUCTION_BYTES) as u64;
    let (instructions, program) =
        (syscall_builder.writer.write_bytes(instructions)?, syscall_builder.words_argument(&[count, 0])?);
    if let SyscallArgument::PlanOffset(program) = program {
        syscall_builder.writer.add_relocation(program + size_of::<u64>() as u32, instructions);
    }
    Ok((program, SOCK_FPROG_BYTES.into()))
}
