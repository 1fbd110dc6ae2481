//! The BPF program that a namespace's socket lookup runs, as instructions.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{DATAGRAMS_KEY, RedirectRule, STREAMS_KEY};
use crate::bpf::BpfInstruction;

const fn instruction(code: u8, (destination, source): (u8, u8), offset: i16, immediate: i32) -> BpfInstruction {
    BpfInstruction { code, registers: destination | source << 4, offset, immediate }
}

/// Copies a register.
const fn move_register(to: u8, from: u8) -> BpfInstruction {
    instruction(0xbf, (to, from), 0, 0)
}

/// Sets a register.
const fn move_immediate(to: u8, value: i32) -> BpfInstruction {
    instruction(0xb7, (to, 0), 0, value)
}

/// Reads 32 bits of memory, at `offset` bytes after the address in a register.
const fn load_word(to: u8, at: u8, offset: i16) -> BpfInstruction {
    instruction(0x61, (to, at), offset, 0)
}

const fn call(helper: i32) -> BpfInstruction {
    instruction(0x85, (0, 0), 0, helper)
}

/// Skips `count` instructions if the lower 32 bits of a register equal `value`.
const fn jump_if_equal(register: u8, value: i32, count: i16) -> BpfInstruction {
    instruction(0x16, (register, 0), count, value)
}

/// Skips `count` instructions if all 64 bits of a register equal `value`.
const fn jump_if_equal64(register: u8, value: i32, count: i16) -> BpfInstruction {
    instruction(0x15, (register, 0), count, value)
}

const fn jump_unless_equal(register: u8, value: i32, count: i16) -> BpfInstruction {
    instruction(0x56, (register, 0), count, value)
}

const fn jump(count: i16) -> BpfInstruction {
    instruction(0x05, (0, 0), count, 0)
}

/// Returns the register value of an address in network byte order.
fn address_word(address: Ipv4Addr) -> i32 {
    i32::from_ne_bytes(address.octets())
}

const CONTEXT: u8 = 6;
const PASS: i32 = 1;

/// Offsets in `struct bpf_sk_lookup` (linux/bpf.h).
const FAMILY_AT: i16 = 8;
const PROTOCOL_AT: i16 = 12;
const ADDRESS_AT: i16 = 40;
const PORT_AT: i16 = 60;

/// Builds the program. A packet that is not redirected gets the kernel's normal lookup of bound sockets.
///
/// ```text
///  to loopback ─── one of `included` ─┬─▶ the socket of its protocol is assigned ─▶ end
///  to others except the own address ──┘
/// ```
pub(super) fn build_program(rule: RedirectRule<'_>, sockets: BorrowedFd<'_>) -> Vec<BpfInstruction> {
    let assign = assign_socket(sockets);
    // Build from back to front, so that the distance to each jump's target is known.
    let to_end = assign.len() as i16;
    let mut loopback: Vec<BpfInstruction> = vec![jump(to_end)];
    for address in rule.included {
        let to_assign = loopback.len() as i16;
        loopback.splice(
            0..0,
            [jump_unless_equal(2, address_word(*address.ip()), 1), jump_if_equal(4, address.port().into(), to_assign)],
        );
    }
    let loopback_len = loopback.len() as i16;
    let mut all = vec![
        move_register(CONTEXT, 1),
        load_word(2, CONTEXT, FAMILY_AT),
        jump_unless_equal(2, libc::AF_INET, 7 + loopback_len + to_end),
        load_word(2, CONTEXT, ADDRESS_AT),
        load_word(4, CONTEXT, PORT_AT),
        move_register(3, 2),
        // Keep only the first octet.
        instruction(0x57, (3, 0), 0, i32::from_ne_bytes([0xff, 0, 0, 0])),
        jump_if_equal(3, i32::from_ne_bytes([127, 0, 0, 0]), 2),
        jump_if_equal(2, address_word(rule.namespace_address), 1 + loopback_len + to_end),
        jump(loopback_len),
    ];
    all.extend(loopback);
    all.extend(assign);
    all.extend([move_immediate(0, PASS), instruction(0x95, (0, 0), 0, 0)]);
    all
}

/// Assigns the socket of the packet's protocol, if there is one.
fn assign_socket(sockets: BorrowedFd<'_>) -> [BpfInstruction; 19] {
    const SOCKET: u8 = 7;
    const FRAME: u8 = 10;
    /// Position of the key, below the end of the stack frame.
    const KEY_AT: i16 = -4;
    /// Marks an immediate value as a map's descriptor; the kernel replaces it by the map.
    const PSEUDO_MAP_FD: u8 = 1;
    const LOOKUP_ELEMENT: i32 = 1;
    const SK_RELEASE: i32 = 86;
    const SK_ASSIGN: i32 = 124;
    [
        load_word(2, CONTEXT, PROTOCOL_AT),
        move_immediate(3, STREAMS_KEY),
        jump_if_equal(2, libc::IPPROTO_TCP, 2),
        move_immediate(3, DATAGRAMS_KEY),
        // Another protocol: jump to the end.
        jump_unless_equal(2, libc::IPPROTO_UDP, 14),
        instruction(0x63, (FRAME, 3), KEY_AT, 0),
        move_register(2, FRAME),
        instruction(0x07, (2, 0), 0, i32::from(KEY_AT)),
        // A 64-bit immediate takes two instructions.
        instruction(0x18, (1, PSEUDO_MAP_FD), 0, sockets.as_raw_fd()),
        instruction(0, (0, 0), 0, 0),
        call(LOOKUP_ELEMENT),
        jump_if_equal64(0, 0, 7),
        move_register(SOCKET, 0),
        move_register(1, CONTEXT),
        move_register(2, SOCKET),
        move_immediate(3, 0),
        call(SK_ASSIGN),
        move_register(1, SOCKET),
        call(SK_RELEASE),
    ]
}
