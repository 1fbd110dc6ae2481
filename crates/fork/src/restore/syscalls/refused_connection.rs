//! Sockets that must still report ECONNREFUSED. A port of the loopback interface at which no socket takes packets refuses
//! each.

use farfork_sys::socket_abi::{SOCK_DGRAM, SOCK_STREAM};
use farfork_wire::descriptor::Socket;
use rustix::fs::OFlags;
use zerocopy::IntoBytes;

use super::super::RestoreError;
use super::socket::{MSG_DONTWAIT_NOSIGNAL, SOCK_CLOEXEC, loopback_address};
use super::socket_options::set_options;
use super::{SyscallArgument, SyscallBuilder, abi, value};

/// The result of connect(2) with O_NONBLOCK.
const EINPROGRESS_RESULT: u64 = -115_i64 as u64;

/// Creates a TCP socket, as descriptor 0, whose connect(2) was refused.
pub(super) fn create_refused(syscall_builder: &mut SyscallBuilder<'_>, socket: &Socket) -> Result<(), RestoreError> {
    let kind = SOCK_STREAM | SOCK_CLOEXEC | OFlags::NONBLOCK.bits();
    syscall_builder.call_expecting(0, abi::SOCKET, &[value(socket.family), value(kind), value(0_u32)]);
    set_options(syscall_builder, 0, socket, |_| true)?;
    // A bound socket that does not listen keeps its port from other sockets, and refuses connections.
    let (address, length) = bind_refusing(syscall_builder, socket.family, SOCK_STREAM)?;
    // The refusal is processed when connect(2) has released the socket.
    syscall_builder.call_expecting(EINPROGRESS_RESULT, abi::CONNECT, &[value(0_u32), address, value(length)]);
    wait_for_error(syscall_builder)?;
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
    syscall_builder.call_expecting(0, abi::FCNTL, &[value(0_u32), value(abi::F_SETFL), value(0_u32)]);
    Ok(())
}

/// Makes the new UDP socket at descriptor 0 report ECONNREFUSED. It has no address then.
pub(super) fn refuse_datagram(syscall_builder: &mut SyscallBuilder<'_>, family: u32) -> Result<(), RestoreError> {
    const AF_UNSPEC_ADDRESS: [u8; 16] = [0; 16];
    let (address, length) = bind_refusing(syscall_builder, family, SOCK_DGRAM)?;
    // A socket that is connected to itself takes no datagrams from others.
    syscall_builder.call_expecting(0, abi::CONNECT, &[value(1_u32), address, value(length)]);
    syscall_builder.call_expecting(0, abi::CONNECT, &[value(0_u32), address, value(length)]);
    let nothing = [value(0_u32), address, value(0_u32), value(MSG_DONTWAIT_NOSIGNAL)];
    syscall_builder.call_expecting(0, abi::SENDTO, &nothing);
    wait_for_error(syscall_builder)?;
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(1_u32)]);
    let unconnected = syscall_builder.bytes_argument(&AF_UNSPEC_ADDRESS)?;
    let bytes = value(AF_UNSPEC_ADDRESS.len() as u64);
    syscall_builder.call_expecting(0, abi::CONNECT, &[value(0_u32), unconnected, bytes]);
    Ok(())
}

/// Creates a socket, as descriptor 1, with a free port of the loopback interface. Returns its address and the length.
fn bind_refusing(
    syscall_builder: &mut SyscallBuilder<'_>,
    family: u32,
    kind: u32,
) -> Result<(SyscallArgument, u64), RestoreError> {
    let loopback = loopback_address(family);
    let length = loopback.len() as u64;
    let (address, length_word) =
        (syscall_builder.bytes_argument(&loopback)?, syscall_builder.words_argument(&[length])?);
    syscall_builder.call_expecting(1, abi::SOCKET, &[value(family), value(kind | SOCK_CLOEXEC), value(0_u32)]);
    syscall_builder.call_expecting(0, abi::BIND, &[value(1_u32), address, value(length)]);
    syscall_builder.call_expecting(0, abi::GETSOCKNAME, &[value(1_u32), address, length_word]);
    Ok((address, length))
}

/// Waits until descriptor 0 has an error.
fn wait_for_error(syscall_builder: &mut SyscallBuilder<'_>) -> Result<(), RestoreError> {
    /// Bound for a busy machine: the kernel delivers on the loopback interface at once.
    const ERROR_WAIT_MS: u32 = 10_000;
    let polled = syscall_builder.bytes_argument([0_u32, 0].as_bytes())?;
    syscall_builder.call_expecting(1, abi::POLL, &[polled, value(1_u32), value(ERROR_WAIT_MS)]);
    Ok(())
}
