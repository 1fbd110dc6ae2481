//! The notes of a core file: everything except memory. Layouts as in linux/elfcore.h, for x86-64.

use std::fs;
use std::ops::Range;

use farfork_sys::cpu;
use farfork_sys::process::{ProcStat, ProcStatus};
use farfork_sys::ptrace::{self, Registers};
use farfork_wire::PAGE_SIZE;

use super::CoreError;
use super::segments::CoreSegment;
use crate::capture::StoppedProcess;

const NT_PRSTATUS: u32 = 1;
const NT_PRFPREG: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_X86_XSTATE: u32 = 0x202;
const NT_FILE: u32 = 0x4649_4c45;

/// Size of the x87 and SSE state in the extended state, in the layout of FXSAVE.
const FXSAVE_BYTES: usize = 512;

const PRSTATUS_BYTES: usize = 336;
const PRPSINFO_BYTES: usize = 136;
/// Sizes of the name and of the arguments in `struct elf_prpsinfo`, each including a final zero.
const NAME_BYTES: usize = 16;
const ARGUMENTS_BYTES: usize = 80;

/// Encodes all notes of a stopped process. The registers of the main thread are first, as debuggers expect.
pub(super) fn encode_notes(pid: i32, still: &StoppedProcess, areas: &[CoreSegment]) -> Result<Vec<u8>, CoreError> {
    let auxv = fs::read(format!("/proc/{pid}/auxv")).map_err(CoreError::read_error("auxiliary vector"))?;
    let mut notes = Vec::new();
    for (index, tid) in still.threads().enumerate() {
        let registers = ptrace::read_registers(tid).map_err(CoreError::read_error("registers"))?;
        let state = ptrace::read_extended_state(tid).map_err(CoreError::read_error("registers"))?;
        let state = strip_unused_amx(state);
        let status = ProcStatus::read(tid).map_err(CoreError::read_error("status"))?;
        let inner = status.namespace_ids.last().copied().unwrap_or(tid.unsigned_abs());
        let registers = registers.unwrap_or_default();
        append_note(&mut notes, b"CORE", NT_PRSTATUS, &encode_prstatus(inner, &registers, still.signal_mask(tid)));
        if index == 0 {
            append_note(&mut notes, b"CORE", NT_PRPSINFO, &encode_prpsinfo(pid, inner, &status)?);
            append_note(&mut notes, b"CORE", NT_AUXV, &auxv);
            append_note(&mut notes, b"CORE", NT_FILE, &encode_file_note(areas));
        }
        append_note(&mut notes, b"CORE", NT_PRFPREG, &state[..FXSAVE_BYTES.min(state.len())]);
        append_note(&mut notes, b"LINUX", NT_X86_XSTATE, &state);
    }
    Ok(notes)
}

/// Removes the AMX components from the extended state if they are not in use: debuggers without AMX support do not
/// expect their space.
fn strip_unused_amx(mut state: Vec<u8>) -> Vec<u8> {
    const XCR0_RANGE: Range<usize> = 464..472;
    const XSTATE_BV_RANGE: Range<usize> = 512..520;
    const AMX_COMPONENTS: u64 = 0b11 << 17;
    let components = |at: Range<usize>| Some(u64::from_le_bytes(state.get(at)?.try_into().ok()?));
    let (Some(enabled), Some(in_use)) = (components(XCR0_RANGE), components(XSTATE_BV_RANGE)) else { return state };
    if enabled & AMX_COMPONENTS != 0 && in_use & AMX_COMPONENTS == 0 {
        let kept = enabled & !AMX_COMPONENTS;
        state[XCR0_RANGE].copy_from_slice(&kept.to_le_bytes());
        state.truncate(cpu::default_state_bytes(kept));
    }
    state
}

fn append_note(into: &mut Vec<u8>, name: &[u8], kind: u32, description: &[u8]) {
    let padded = |into: &mut Vec<u8>, bytes: &[u8]| {
        into.extend_from_slice(bytes);
        into.resize(into.len().next_multiple_of(4), 0);
    };
    for word in [name.len() as u32 + 1, description.len() as u32, kind] {
        into.extend_from_slice(&word.to_le_bytes());
    }
    padded(into, &[name, &[0]].concat());
    padded(into, description);
}

/// Encodes `struct elf_prstatus`: the registers of a thread, with its id in its own pid namespace.
fn encode_prstatus(id: u32, registers: &Registers, signal_mask: u64) -> [u8; PRSTATUS_BYTES] {
    const SIGNAL_MASK_AT: usize = 24;
    const ID_AT: usize = 32;
    const REGISTERS_AT: usize = 112;
    const HAS_FLOATING_POINT_AT: usize = 328;
    let mut bytes = [0; PRSTATUS_BYTES];
    bytes[SIGNAL_MASK_AT..][..8].copy_from_slice(&signal_mask.to_le_bytes());
    bytes[ID_AT..][..4].copy_from_slice(&id.to_le_bytes());
    for (index, word) in registers.to_words().into_iter().enumerate() {
        bytes[REGISTERS_AT + 8 * index..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes[HAS_FLOATING_POINT_AT] = 1;
    bytes
}

/// Encodes `struct elf_prpsinfo`: process information as in ps(1).
fn encode_prpsinfo(pid: i32, id: u32, status: &ProcStatus) -> Result<[u8; PRPSINFO_BYTES], CoreError> {
    const USER_AT: usize = 16;
    const ID_AT: usize = 24;
    const NAME_AT: usize = 40;
    const ARGUMENTS_AT: usize = NAME_AT + NAME_BYTES;
    let stat = ProcStat::read(pid).map_err(CoreError::read_error("status"))?;
    let mut arguments = fs::read(format!("/proc/{pid}/cmdline")).map_err(CoreError::read_error("arguments"))?;
    arguments.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    let mut bytes = [0; PRPSINFO_BYTES];
    bytes[1] = b'R';
    bytes[USER_AT..][..4].copy_from_slice(&status.uids[0].to_le_bytes());
    bytes[USER_AT + 4..][..4].copy_from_slice(&status.gids[0].to_le_bytes());
    bytes[ID_AT..][..4].copy_from_slice(&id.to_le_bytes());
    let name = &stat.name[..stat.name.len().min(NAME_BYTES - 1)];
    bytes[NAME_AT..][..name.len()].copy_from_slice(name);
    let arguments = arguments.trim_ascii_end();
    let arguments = &arguments[..arguments.len().min(ARGUMENTS_BYTES - 1)];
    bytes[ARGUMENTS_AT..][..arguments.len()].copy_from_slice(arguments);
    Ok(bytes)
}

/// Encodes the mapped files (NT_FILE): count, page size, then start, end and offset in pages of each, then the paths.
fn encode_file_note(areas: &[CoreSegment]) -> Vec<u8> {
    let mapped: Vec<(&CoreSegment, &[u8], u64)> = areas
        .iter()
        .filter_map(|core_segment| core_segment.file.as_ref().map(|(path, offset)| (core_segment, &path[..], *offset)))
        .collect();
    let mut bytes = Vec::new();
    let mut word = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
    word(mapped.len() as u64);
    word(PAGE_SIZE);
    for (area, _, offset) in &mapped {
        word(area.start);
        word(area.end);
        word(offset / PAGE_SIZE);
    }
    for (_, path, _) in mapped {
        bytes.extend_from_slice(path);
        bytes.push(0);
    }
    bytes
}
