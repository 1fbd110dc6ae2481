//! The headers of a core file (elf(5)), for x86-64. Pure.

use farfork_wire::PAGE_SIZE;

use super::areas::Area;

/// With so many program headers, one of them the notes', a count does not fit its field (PN_XNUM).
pub(super) const AREAS_MAX: usize = 0xffff - 1;

const HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
const TYPE_CORE: u16 = 4;
const MACHINE_X86_64: u16 = 62;
const SEGMENT_LOAD: u32 = 1;
const SEGMENT_NOTE: u32 = 4;

/// All before the areas' contents; where in the file those of each area are; the file's length.
pub(super) fn lay_out(notes: &[u8], areas: &[Area]) -> (Vec<u8>, Vec<u64>, u64) {
    let headers = areas.len() as u64 + 1;
    let notes_at = HEADER_BYTES + headers * PROGRAM_HEADER_BYTES;
    let mut end = (notes_at + notes.len() as u64).next_multiple_of(PAGE_SIZE);
    let mut head = file_header(headers as u16);
    program_header(&mut head, SEGMENT_NOTE, 0, [notes_at, 0, notes.len() as u64, 0, 4]);
    let mut places = Vec::with_capacity(areas.len());
    for area in areas {
        let (bytes, file_bytes) = (area.end - area.start, area.file_bytes());
        program_header(&mut head, SEGMENT_LOAD, flags(area), [end, area.start, file_bytes, bytes, PAGE_SIZE]);
        places.push(end);
        end += file_bytes;
    }
    head.extend_from_slice(notes);
    (head, places, end)
}

fn file_header(headers: u16) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [TYPE_CORE, MACHINE_X86_64] {
        bytes.extend_from_slice(&half.to_le_bytes());
    }
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    for word in [0, HEADER_BYTES, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&0_u32.to_le_bytes());
    for half in [HEADER_BYTES as u16, PROGRAM_HEADER_BYTES as u16, headers, 0, 0, 0] {
        bytes.extend_from_slice(&half.to_le_bytes());
    }
    debug_assert_eq!(bytes.len() as u64, HEADER_BYTES);
    bytes
}

/// `words`: offset in the file, address, bytes in the file, bytes in memory, alignment.
fn program_header(into: &mut Vec<u8>, kind: u32, flags: u32, [offset, address, file, memory, align]: [u64; 5]) {
    into.extend_from_slice(&kind.to_le_bytes());
    into.extend_from_slice(&flags.to_le_bytes());
    for word in [offset, address, 0, file, memory, align] {
        into.extend_from_slice(&word.to_le_bytes());
    }
}

/// PROT_READ, PROT_WRITE, PROT_EXEC as PF_R, PF_W, PF_X.
fn flags(area: &Area) -> u32 {
    [(1, 4), (2, 2), (4, 1)].iter().filter(|(prot, _)| area.protection & prot != 0).map(|(_, flag)| flag).sum()
}
